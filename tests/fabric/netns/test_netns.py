"""The fabric of namespaces, built for real; needs root."""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import a_name, make_plan, own_state, require_namespaces
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.fabric.netns.split import forward_interface
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

SIZE_BYTES = 2 << 20
LIMIT_S = limit_s(30.0)


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)


@pytest.fixture(params=["routes", "split", "split-switch"])
def wired(request: pytest.FixtureRequest) -> Iterator[tuple[NetnsFabric, Plan, str]]:
    plan = make_plan(6, 2)
    forwarding, _, switched = request.param.partition("-")
    fabric = NetnsFabric(
        a_name(),
        NetnsOptions(gbps=0.4, forwarding=forwarding, switch_delay_s=0.01 if switched else None),
    )
    try:
        fabric.connect(plan)
        yield fabric, plan, forwarding
    finally:
        fabric.close()


def counters(fabric: NetnsFabric, plan: Plan) -> dict[tuple[int, str], tuple[int, int]]:
    """(server, interface) -> bytes (received, sent)."""
    found = {}
    for server in range(plan.cluster.servers):
        with netns_kernel.open_route(fabric.layout.namespace(server)) as route:
            for link in route.get_links():
                stats = link.get_attr("IFLA_STATS64")
                name = link.get_attr("IFLA_IFNAME")
                found[server, name] = (stats["rx_bytes"], stats["tx_bytes"])
    return found


def send(fabric: NetnsFabric, source: int, target: int) -> None:
    """SIZE_BYTES from the address of one server to that of another."""
    layout = fabric.layout
    there = (layout.server_address(target), 7000)
    listener = netns_kernel.inside(
        layout.namespace(target), lambda: socket.create_server(there, backlog=1)
    )
    with (
        listener,
        netns_kernel.inside(
            layout.namespace(source), lambda: socket.create_connection(there, timeout=LIMIT_S)
        ) as sender,
    ):
        listener.settimeout(LIMIT_S)
        receiver, peer = listener.accept()
        with receiver:
            assert peer[0] == layout.server_address(source)
            receiver.settimeout(LIMIT_S)
            left = SIZE_BYTES
            piece = bytes(64 << 10)
            while left:
                sender.sendall(piece)
                waiting = len(piece)
                while waiting:
                    waiting -= len(receiver.recv(waiting))
                left -= len(piece)


def grown(
    before: dict[tuple[int, str], tuple[int, int]], after: dict[tuple[int, str], tuple[int, int]]
) -> dict[tuple[int, str], tuple[bool, bool]]:
    """The interfaces that (received, sent) at least the bytes of one `send`."""
    return {
        key: (
            after[key][0] - before[key][0] >= SIZE_BYTES,
            after[key][1] - before[key][1] >= SIZE_BYTES,
        )
        for key in before
    }


def test_bytes_between_servers_without_a_cable_cross_exactly_the_planned_relays(
    wired: tuple[NetnsFabric, Plan, str],
) -> None:
    fabric, plan, forwarding = wired
    links = {(link.source, link.target): link for link in plan.network.links}
    routes = {len(route): route for route in plan.network.heaviest_routes().values()}
    assert max(routes) >= 4, "two relays at least"
    for route in routes.values():
        before = counters(fabric, plan)
        send(fabric, route[0], route[-1])
        moved = grown(before, counters(fabric, plan))
        hops = [links[hop] for hop in itertools.pairwise(route)]
        sent = {(link.source, f"port{link.source_port}") for link in hops}
        received = {(link.target, f"port{link.target_port}") for link in hops}
        relayed = {
            (link.target, forward_interface(link.target_port))
            for link in hops[:-1]
            if forwarding == "split"
        }
        outside = ("forward", "management", "host")
        at_ports = {key: both for key, both in moved.items() if not key[1].startswith(outside)}
        assert {key for key, both in at_ports.items() if both[1]} == sent
        assert {key for key, both in at_ports.items() if both[0]} == received
        # The second halves carry what is relayed, and nothing of what is for their server.
        halves = {key for key, both in moved.items() if both[0] and key[1].startswith("forward")}
        assert {key for key in halves if not key[1].endswith("-in")} == relayed
        assert not any(
            moved[s, "management"][way] for s in range(plan.cluster.servers) for way in (0, 1)
        )


def test_it_is_verified_written_down_and_removed() -> None:
    plan = make_plan(4, 2)
    name = a_name()
    fabric = NetnsFabric(name, NetnsOptions(gbps=0.05))
    try:
        wiring = fabric.connect(plan)
        assert wiring.check(plan).fabric == "netns"
        assert wiring.link_rates(plan)[0, 1] == pytest.approx(0.05 * paced_share(1500))
        record, kept_plan, kept_wiring = netns_state.load(name)
        assert (kept_plan, kept_wiring) == (plan, wiring)
        assert netns_state.owner_runs(record)
        assert netns_state.describe(name)[0] == "in use"
        assert len(netns_kernel.of_fabric(name)) == 5
        outside = socket.if_nametoindex(record.layout.launcher_interface)
        with refused(FabricError, "wired"):
            fabric.connect(plan)
        with refused(FabricError, name, "already"):
            NetnsFabric(name).connect(plan)
        assert len(netns_kernel.of_fabric(name)) == 5
    finally:
        fabric.close()
    assert netns_kernel.of_fabric(name) == []
    assert outside not in dict(socket.if_nameindex())
    assert netns_state.names() == []
    fabric.close()


def test_two_stand_side_by_side() -> None:
    plan = make_plan(3, 2)
    first, second = NetnsFabric(a_name()), NetnsFabric(a_name())
    try:
        first.connect(plan)
        second.connect(plan)
        assert first.layout.block != second.layout.block
        assert len(netns_state.names()) == 2
        first.close()
        assert netns_state.names() == [second.layout.name]
        assert netns_state.describe(second.layout.name)[0] == "in use"
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("failure", [FabricError("no room"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    "stage", ["hosts", "cables", "server 2", "routes", "circuits", "verifying"]
)
def test_what_ends_half_way_leaves_nothing(stage: str, failure: BaseException) -> None:
    name = a_name()

    def progress(text: str) -> None:
        if text == stage:
            assert netns_kernel.of_fabric(name), "something is there by now"
            assert netns_state.describe(name)[0] == "being made"
            raise failure

    with pytest.raises(type(failure)):
        NetnsFabric(name, NetnsOptions(switch_delay_s=0.01), progress=progress).connect(
            make_plan(4, 2)
        )
    assert netns_kernel.of_fabric(name) == []
    assert netns_state.names() == []


def test_what_it_cannot_wire_is_refused_by_name() -> None:
    with refused(FabricError, "mtu", 100, "576..65521"):
        NetnsFabric("x", NetnsOptions(mtu=100))
    with refused(FabricError, "bandwidth", 40, 32):
        NetnsFabric("x", NetnsOptions(gbps=40.0))
    with refused(FabricError, "switch-delay", -1, "0..600"):
        NetnsFabric("x", NetnsOptions(switch_delay_s=-1.0))
    import dataclasses

    plan = make_plan(3, 2)
    simplex = dataclasses.replace(plan.cluster, ports="simplex")
    with refused(FabricError, "ports", "simplex"):
        NetnsFabric(a_name()).connect(dataclasses.replace(plan, cluster=simplex))
