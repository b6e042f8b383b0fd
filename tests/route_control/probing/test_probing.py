"""What is predicted of a connection is what it does, on switches of three tiers. Needs root."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest
from support.emulated_networks import cables_taken, emulated
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.network_shapes import fat_tree_file
from torch_topoopt.route_control.probing import traced_paths
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths
from torch_topoopt.route_control.probing.port_choice import PortChooser
from torch_topoopt.route_control.probing.probed_flow import TCP, UDP, ProbedFlow
from torch_topoopt.route_control.probing.traced_paths import PathTracer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.route_control.emulation.clos import EmulatedClos

TARGET_PORT = 20000


@pytest.fixture(scope="module")
def clos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedClos]:
    with emulated(fat_tree_file(4, 1e8, 1), tmp_path_factory.mktemp("state")) as built:
        yield built


def chosen(clos: EmulatedClos, source: str, target: str) -> dict[int, tuple[str, ...]]:
    chooser = PortChooser(clos.network, lambda flows: kernel_paths(clos.names, flows), TARGET_PORT)
    return chooser.choose(source, [target])[target]


@pytest.mark.parametrize(("target", "paths"), [("h1", 2), ("h7", 4)])
def test_real_connections_take_the_predicted_path(
    clos: EmulatedClos, target: str, paths: int
) -> None:
    ports = chosen(clos, "h0", target)
    assert len(set(ports.values())) == paths
    for port, path in ports.items():
        taken = cables_taken(clos, ProbedFlow("h0", target, port, TARGET_PORT))
        assert taken == {clos.names.interface(near, far) for near, far in itertools.pairwise(path)}


@pytest.mark.parametrize(("protocol", "port"), [(TCP, TARGET_PORT), (UDP, 4791)])
def test_traced_paths_are_those_of_the_kernels(
    clos: EmulatedClos, protocol: int, port: int
) -> None:
    flows = [
        ProbedFlow("h0", target, 61000 + i, port, protocol)
        for target in ("h1", "h2", "h7")
        for i in range(12)
    ]

    def trace() -> list[tuple[str, ...] | None]:
        with PathTracer(clos.network, clos.names.host_address("h0")) as tracer:
            return tracer.trace(flows)

    traced = netns_kernel.inside(clos.names.namespace("h0"), trace)
    assert traced == kernel_paths(clos.names, flows)
    assert len(set(traced)) > 4


def test_protocols_are_hashed_differently(clos: EmulatedClos) -> None:
    by_protocol = [
        kernel_paths(clos.names, [ProbedFlow("h0", "h7", p, 9, protocol) for p in range(1, 50)])
        for protocol in (TCP, UDP)
    ]
    assert by_protocol[0] != by_protocol[1]


def test_answers_of_strangers_are_no_answers() -> None:
    packet = traced_paths._packet(
        "10.0.0.1", "10.0.0.2", ProbedFlow("a", "b", 61000, 20000), hops=2, mark=7
    )
    answer = bytes([0x45, *[0] * 11, 10, 9, 9, 9, 10, 0, 0, 1, 11, *[0] * 7]) + packet[:28]
    assert traced_paths._expired(answer) == ("10.9.9.9", traced_paths._recognised(packet))
    assert traced_paths._expired(answer[:20] + bytes([3]) + answer[21:]) is None
    draw = random.Random(0)
    for size in range(len(answer)):
        found = traced_paths._expired(answer[:size])
        assert found is None or size >= 48
        traced_paths._expired(draw.randbytes(size))


def test_tracing_without_the_right_to_says_which_one(
    clos: EmulatedClos, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(traced_paths.socket, "socket", refuse)
    with refused(FabricError, "CAP_NET_RAW"):
        PathTracer(clos.network, clos.names.host_address("h0"))
