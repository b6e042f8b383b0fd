"""Packets that choose their links: every byte arrives, over allowed links, with or without loss."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.refusals import refused

from figures.papers.traffic_patterns import (
    random_permutation,
    ring_all_reduce,
    shifted_all_to_all,
    torus_all_reduce,
)
from torch_topoopt import _core
from torch_topoopt.architectures import dragonfly, fat_tree, hammingmesh, torus
from torch_topoopt.architectures.adaptive import ANY_PATH, adaptive_routing, every_hop_rule
from torch_topoopt.plan import Cluster
from torch_topoopt.sim import Flow, FlowLink, LinkChange, Reroute, run_flows, run_program

if TYPE_CHECKING:
    from figures.papers.traffic_patterns import PatternProgram
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.sim import FlowsResult

RATE = 100e9
PACKET = {"mtu_bytes": 8192, "header_bytes": 1}
TIGHT = {"lossless": True, "pause_above_bytes": 20_000, "resume_below_bytes": 10_000}


def _hx(board: tuple[int, int] = (2, 2), boards: tuple[int, int] = (3, 3)) -> Topology:
    servers = board[0] * board[1] * boards[0] * boards[1]
    cluster = Cluster(servers=servers, degree=4, link_gbps=100.0, link_latency_s=1e-7)
    return hammingmesh.build(cluster, board=board, boards=boards)


def _run(pattern: PatternProgram, **options: Any) -> FlowsResult:
    given = {"path_choice": "adaptive", "routing": pattern.routing, **PACKET, **options}
    return run_program(pattern.program, level="packet", **given)


def _hop_sum(topology: Topology, pattern: PatternProgram) -> float:
    """Bytes times the links of a shortest path, of all flows."""
    total = 0.0
    for task in range(pattern.program.task_count):
        flow = pattern.program.flow(task)
        total += flow.size_bytes * pattern.routing.hops(flow.target)[flow.source]
    return total


@pytest.mark.parametrize("options", [{}, TIGHT], ids=["unlimited", "lossless"])
@pytest.mark.parametrize("board", [(2, 2), (3, 2), (1, 1)], ids=str)
def test_every_byte_takes_a_shortest_path(board: tuple[int, int], options: dict[str, Any]) -> None:
    topology = _hx(board)
    pattern = shifted_all_to_all(topology, 50_000)
    result = _run(pattern, **options)
    assert result.complete
    assert np.isfinite(result.finish_s).all()
    assert not result.packet_counts["dropped"].any()
    assert result.link_bytes.sum() == pytest.approx(_hop_sum(topology, pattern))
    if options:
        assert result.packet_counts["pauses"].any()
    rates = np.array([link.gbps * 1e9 for link in topology.links])
    assert (result.packet_counts["wire_bytes"] * 8 <= rates * result.completion_s).all()


def test_the_same_seed_gives_the_same_bytes_and_another_other_choices() -> None:
    pattern = shifted_all_to_all(_hx(), 30_000)
    first, second, other = (_run(pattern, seed=seed, **TIGHT) for seed in (5, 5, 6))
    assert np.array_equal(first.finish_s, second.finish_s)
    assert np.array_equal(first.link_bytes, second.link_bytes)
    assert not np.array_equal(first.finish_s, other.finish_s)


def test_unrestricted_choices_end_in_the_deadlock_that_the_rule_excludes() -> None:
    """The links that wait for each other are dependencies of the channel dependency graph."""
    topology = _hx((4, 4), (2, 2))
    pattern = shifted_all_to_all(topology, 400_000)
    assert _run(pattern, **TIGHT).complete
    unrestricted = adaptive_routing(topology, ANY_PATH)
    with refused(ValueError, "lossless", "deadlock") as caught:
        _run(replace(pattern, routing=unrestricted), **TIGHT)
    waiting = [int(link) for link in re.findall(r"link (\d+) \(", str(caught.value))]
    dependencies = set(map(tuple, unrestricted.dependencies(range(topology.servers)).tolist()))
    assert len(waiting) > 2
    assert set(pairwise((*waiting, waiting[0]))) <= dependencies


def test_a_packet_takes_the_shorter_of_two_queues() -> None:
    """Two hosts over two switches: twice the rate of one path, and each carries half."""
    links = [
        *(FlowLink(a, b, 4 * RATE) for a, b in ((0, 2), (5, 1))),
        *(FlowLink(a, b, RATE) for a, b in ((2, 3), (2, 4), (3, 5), (4, 5))),
    ]
    flows = [Flow(0, 1, 8192 * 1000, (0, 2, 4, 1))]
    planned = run_flows(links, flows, level="packet", hosts=2, **PACKET)
    adaptive = run_flows(links, flows, level="packet", hosts=2, path_choice="adaptive", **PACKET)
    assert adaptive.completion_s == pytest.approx(planned.completion_s / 2, rel=0.01)
    assert adaptive.link_bytes[2] == pytest.approx(adaptive.link_bytes[3], rel=0.01)


def test_flows_of_a_host_start_in_their_order_and_so_many_send_at_once() -> None:
    links = [FlowLink(0, 1, RATE), FlowLink(0, 2, RATE)]
    flows = [Flow(0, 1, 8192 * 100, (0,)) for _ in range(6)] + [Flow(0, 2, 8192 * 100, (1,))]
    options = {**PACKET, "path_choice": "adaptive", "start_order": "given"}
    packet_s = 8193 * 8 / RATE
    alone = run_flows(links, flows, level="packet", sends_at_once=1, **options)
    assert alone.finish_s == pytest.approx([100 * (i + 1) * packet_s for i in range(7)], rel=0.01)
    two = run_flows(links, flows, level="packet", sends_at_once=2, **options)
    assert two.finish_s[:6] == pytest.approx(
        [packet_s * n for n in (199, 200, 399, 400, 599, 600)], rel=0.01
    )
    assert two.finish_s[6] == pytest.approx(697 * packet_s, rel=0.01)
    every = run_flows(links, flows, level="packet", **options)
    assert every.finish_s[6] == pytest.approx(100 * packet_s)


def test_a_host_sends_over_all_ports_that_lead_nearer() -> None:
    topology = torus.build(Cluster(servers=25, degree=4, link_gbps=100.0), dimensions=(5, 5))
    routing = adaptive_routing(topology)
    pattern = random_permutation(topology, 8192.0)
    program = _core.FlowProgram(topology.nodes, topology.servers)
    for link in topology.links:
        program.add_link(link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9)
    program.add_flow(0, 12, 8192 * 1000, routing.path(0, 12))  # two to the east, two to the south
    result = _run(replace(pattern, program=program))
    one_port_s = 1000 * 8193 * 8 / RATE
    assert result.completion_s == pytest.approx(one_port_s / 2, rel=0.02)


def _dragonfly(*, detours: bool) -> Topology:
    """Five groups of eight servers, with two links between any two."""
    cluster = Cluster(servers=40, degree=1, link_gbps=100.0, link_latency_s=1e-7)
    built = dragonfly.build(cluster, a=4, p=2, h=2, groups=5, detours=detours)
    if detours:
        return built
    return replace(built, channel_rule=every_hop_rule(built))


def _share(topology: Topology, shifts: list[int]) -> float:
    """Of injection, with buffers that fill where a link is busy."""
    size_bytes = 1 << 20
    result = _run(shifted_all_to_all(topology, size_bytes, shifts=shifts), **TIGHT)
    assert result.complete
    return len(shifts) * size_bytes * 8 / RATE / result.completion_s


def test_detours_carry_what_the_links_between_two_groups_do_not() -> None:
    """All of a group send to the next one, over two links; all eight of a group carry 5 / 8 at
    most, since what goes over a third group leaves two of them."""
    direct, detoured = (_share(_dragonfly(detours=yes), [8]) for yes in (False, True))
    assert direct == pytest.approx(2 / 8, rel=0.03)
    assert 1.5 * direct < detoured < 5 / 8


def test_detours_are_few_where_all_send_to_all() -> None:
    topology = _dragonfly(detours=True)
    everyone = list(range(1, topology.servers))
    pattern = shifted_all_to_all(topology, 50_000)
    carried = _run(pattern, **TIGHT).link_bytes.sum()
    assert _hop_sum(topology, pattern) < carried < 1.2 * _hop_sum(topology, pattern)
    assert _share(topology, everyone) > 0.9 * _share(_dragonfly(detours=False), everyone)


def test_a_routing_with_detours_needs_channels_for_both_parts() -> None:
    topology = _dragonfly(detours=True)
    assert topology.channel_rule is not None
    few = replace(topology, channel_rule=replace(topology.channel_rule, channels=7))
    with refused(ValueError, "channels", 7, 9):
        _run(shifted_all_to_all(few, 1000))


def test_a_paused_channel_leaves_the_others_of_its_link_free() -> None:
    """Both flows share the link from 2 to 3, and the one to 5 goes on at an eighth of its rate."""
    ends = [(0, 2), (1, 2), (2, 3), (3, 4), (3, 5)]
    links = [FlowLink(a, b, RATE / 8 if b == 5 else RATE) for a, b in ends]
    flows = [Flow(0, 5, 8192 * 400, (0, 2, 4)), Flow(1, 4, 8192 * 400, (1, 2, 3))]
    options = {**PACKET, **TIGHT, "path_choice": "adaptive"}
    packet_s = 8193 * 8 / RATE
    one = run_flows(links, flows, level="packet", **options)
    assert one.finish_s[1] > 2500 * packet_s
    routing = _core.AdaptiveRouting(6, ends, 2, [0])  # the first flow is on channel 1
    two = run_flows(links, flows, level="packet", routing=routing, **options)
    assert two.packet_counts["pauses"][2] > 0
    assert two.finish_s[1] < 600 * packet_s
    assert two.finish_s[0] == pytest.approx(3200 * packet_s, rel=0.02)


def test_a_fat_tree_carries_a_permutation_at_nearly_full_rate() -> None:
    cluster = Cluster(servers=64, degree=4, link_gbps=100.0, link_latency_s=1e-7)
    pattern = random_permutation(fat_tree.build(cluster, radix=8), 8192 * 400)
    result = _run(pattern)
    best_s = 8192 * 400 * 8 / 400e9
    assert result.completion_s < 1.25 * best_s


def test_all_reduce_programs_send_what_their_algorithms_say() -> None:
    topology = _hx()
    size = 36 * 36 * 1000.0
    rings = ring_all_reduce(topology, [ring.servers for ring in topology.rings], size)
    sent = np.zeros(36)
    for task in range(rings.program.task_count):
        flow = rings.program.flow(task)
        sent[flow.source] += flow.size_bytes
    assert sent == pytest.approx(np.full(36, 2 * size * 35 / 36))
    grid = torus_all_reduce(topology, 6, 6, size)
    sent[:] = 0
    for task in range(grid.program.task_count):
        flow = grid.program.flow(task)
        assert (flow.source // 6 == flow.target // 6) != (flow.source % 6 == flow.target % 6)
        sent[flow.source] += flow.size_bytes
    # 2 (w - 1) / w along the first dimension, and 2 (h - 1) / h of a chunk along the second
    assert sent == pytest.approx(np.full(36, size * (2 * 5 / 6 + 2 * 5 / 6 / 6)))


def test_rings_on_an_hxmesh_share_no_link_and_take_their_closed_form() -> None:
    topology = _hx((2, 2), (2, 2))
    orders = [ring.servers for ring in topology.rings]
    assert len(orders) == 4
    size = 16 * 4 * 8192 * 8.0
    result = _run(ring_all_reduce(topology, orders, size))
    steps = 2 * 15
    chunk_s = 8 * 8193 * 8 / RATE
    assert result.completion_s >= steps * chunk_s
    # A cable over a switch takes a packet and two latencies more than a trace.
    assert result.completion_s <= steps * (chunk_s + 8193 * 8 / RATE + 2e-7)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"path_choice": "best"}, ("path_choice", "best")),
        ({"path_choice": "adaptive", "transport": "roce"}, ("transport", "roce")),
        ({"path_choice": "adaptive", "sends_at_once": -1}, ("sends_at_once", -1, 0)),
        ({"sends_at_once": 4}, ("sends_at_once", "path_choice")),
        ({"path_choice": "adaptive", "paths": {0: [(0,)]}}, ("paths",)),
        (
            {"path_choice": "adaptive", "reroutes": [Reroute(0.0, 0, (0,))]},
            ("reroutes",),
        ),
        (
            {"path_choice": "adaptive", "changes": [LinkChange(1e-9, 0, 0.0)]},
            ("changes", "link 0", "path_choice"),
        ),
        (
            {"path_choice": "adaptive", "routing": _core.AdaptiveRouting(2, [(1, 0)])},
            ("routing",),
        ),
        ({"routing": _core.AdaptiveRouting(2, [(0, 1)])}, ("routing", "path_choice")),
        (
            {"path_choice": "adaptive", "routing": _core.AdaptiveRouting(2, [(0, 1)], 1, [0])},
            ("channels", 1, "node 0", "node 1", 2),
        ),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], tokens: tuple[object, ...]) -> None:
    links, flows = [FlowLink(0, 1, RATE, 1000)], [Flow(0, 1, 1e6, (0,))]
    with refused(ValueError, *tokens):
        run_flows(links, flows, level="packet", **options)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ((2, [(0, 2)]), ("links[0]", "node 2", "0..1")),
        ((2, [(0, 1)], 0), ("channels", 0, "1..255")),
        ((2, [(0, 1)], 2, [1]), ("raises", "link 1", "0..0")),
        ((2, [(0, 1)], 2, [], [-1]), ("last", "link -1", "0..0")),
        ((2, [(0, 1)], 2, [], [], [], [[0]]), ("detours", "channel")),
        ((2, [(0, 1)], 2, [0], [], [], [[0], []]), ("detours[1]",)),
        ((2, [(0, 1)], 2, [0], [], [], [[2]]), ("detours[0]", "node 2", "0..1")),
        ((2, [(0, 1)], 2, [0], [], [], [[0], [1, 0]]), ("detours[1]", "node 0")),
    ],
)
def test_wrong_routings_are_errors(arguments: tuple[Any, ...], tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        _core.AdaptiveRouting(*arguments)


def test_wrong_patterns_are_errors() -> None:
    topology = _hx()
    with refused(ValueError, "shifts", 36, "1..35"):
        shifted_all_to_all(topology, 1.0, shifts=[36])
    with refused(ValueError, "rows", "columns", "5 x 7", 36):
        torus_all_reduce(topology, 5, 7, 1.0)
    with refused(ValueError, "steps", 71, "1..70"):
        ring_all_reduce(topology, [range(36)], 1.0, steps=71)
