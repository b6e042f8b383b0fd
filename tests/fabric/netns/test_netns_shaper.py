"""Either queueing discipline holds a link to its rate; without them, an error says so."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import a_name, make_plan, own_state, require_namespaces
from support.refusals import refused

from torch_topoopt.fabric.netns import filters as netns_filters
from torch_topoopt.fabric.netns import goodput as netns_goodput
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)


def has(shaper: str) -> bool:
    try:
        return netns_shaper.choose((shaper,)) == shaper
    except FabricError:
        return False


@pytest.mark.parametrize("shaper", ["tbf", "htb"])
def test_a_link_has_its_rate(shaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has(shaper):
        pytest.skip(f"this kernel has no {shaper}")
    monkeypatch.setattr(netns_goodput, "_WINDOWS", 3)
    fabric = NetnsFabric(a_name(), NetnsOptions(gbps=0.04, mtu=9000, shaper=shaper))
    plan = make_plan(2, 1)
    try:
        fabric.connect(plan)
        record, _, wiring = netns_state.load(fabric.layout.name)
        assert record.shaper == shaper
        for goodput in netns_goodput.measure(record, wiring, plan.network.links):
            assert goodput.right, goodput
    finally:
        fabric.close()


@pytest.mark.parametrize("lossless", [False, True])
def test_what_waits_for_a_link_is_dropped_unless_it_is_lossless(lossless: bool) -> None:
    """A burst of 67 ms, without congestion control: a queue of 20 ms drops of it."""
    sent, payload = 60, bytes(1400)
    fabric = NetnsFabric(a_name(), NetnsOptions(gbps=0.01, lossless=lossless))
    try:
        wiring = fabric.connect(make_plan(2, 1))
        near, far = (fabric.layout.namespace(server) for server in range(2))
        with (
            netns_kernel.inside(far, lambda: socket.socket(type=socket.SOCK_DGRAM)) as receiver,
            netns_kernel.inside(near, lambda: socket.socket(type=socket.SOCK_DGRAM)) as sender,
        ):
            receiver.bind((fabric.layout.server_address(1), 0))
            receiver.settimeout(60.0 if lossless else 2.0)
            for _ in range(sent):
                sender.sendto(payload, receiver.getsockname())
            received = 0
            try:
                while received < sent:
                    received += receiver.recv(len(payload)) == payload
            except TimeoutError:
                pass
        assert (received == sent) == lossless
        assert received > 0
        assert all((port.gbps is None) == lossless for port in wiring.ports)
    finally:
        fabric.close()


def test_without_a_queue_or_a_classifier_the_error_names_those_that_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(route, index, bytes_per_s, mtu, queue_s):  # type: ignore[no-untyped-def]
        route.tc("add", "nosuchqueue", index=index, handle=0x10000)

    monkeypatch.setattr(netns_shaper, "SHAPERS", {"tbf": missing, "htb": missing})
    with refused(FabricError, "rate", "tbf", "htb"):
        NetnsFabric(a_name(), NetnsOptions(gbps=1.0)).connect(make_plan(2, 1))
    with refused(FabricError, "MAC", "nosuchone"):
        netns_filters.choose(("nosuchone",))
    assert netns_state.names() == []


def test_paced_sockets_leave_room_for_the_answers_of_the_other_side() -> None:
    for mtu in (1500, 9000):
        share = netns_shaper.paced_share(mtu)
        segment, answer = mtu + 14, 52 + 14
        assert share * (segment + answer / 2) / (mtu - 52) == pytest.approx(1.0)
        assert 0.97 < share / netns_shaper.goodput_share(mtu) < 1
