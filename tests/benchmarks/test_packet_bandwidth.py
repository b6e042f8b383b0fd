"""Bandwidths packet by packet: bounds, and what is left out against what is simulated in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.refusals import refused

from figures.papers import packet_bandwidth
from figures.papers.packet_bandwidth import (
    all_reduce_share,
    all_to_all_share,
    injection_bytes_per_s,
    one_plane,
    permutation_shares,
    ring_seconds,
    sampled_shifts,
    torus_seconds,
)
from figures.papers.traffic_patterns import _Flows, ring_all_reduce
from torch_topoopt.architectures import dragonfly, hammingmesh, tapered_fat_tree, torus
from torch_topoopt.architectures.adaptive import ANY_PATH, adaptive_routing
from torch_topoopt.architectures.deadlock import dependency_cycle
from torch_topoopt.architectures.topology import Topology, rank_order
from torch_topoopt.plan import Cluster


def _hx(board: int, boards: int) -> Topology:
    cluster = Cluster((board * boards) ** 2, 16, 400.0)
    topology = hammingmesh.build(cluster, board=(board, board), boards=(boards, boards))
    return one_plane(topology)


def test_a_plane_has_a_quarter_of_the_rates_and_the_latencies_of_table_iii() -> None:
    plane = _hx(2, 3)
    assert {link.gbps for link in plane.links} == {400.0}
    assert injection_bytes_per_s(plane) == 200e9
    by_medium = {link.medium: link.latency_s for link in plane.links}
    assert by_medium["trace"] == pytest.approx(81e-9)
    assert by_medium["dac"] == by_medium["aoc"] == pytest.approx(100e-9)
    tree = one_plane(tapered_fat_tree.build(Cluster(32, 16, 400.0), radix=8, taper=1.0))
    assert injection_bytes_per_s(tree) == 200e9
    assert tree.channel_rule == ANY_PATH


def test_a_rule_is_found_that_cannot_deadlock() -> None:
    cluster = Cluster(72, 16, 400.0)
    joined = one_plane(dragonfly.build(cluster, p=2))
    assert dependency_cycle(joined, adaptive_routing(joined, ANY_PATH))
    assert dependency_cycle(joined, adaptive_routing(joined)) == ()


def test_sampled_shifts_are_runs_spread_over_all() -> None:
    assert sampled_shifts(65) == list(range(1, 65))
    shifts = sampled_shifts(1024)
    assert len(shifts) == len(set(shifts)) == 64
    assert all(0 < shift < 1024 for shift in shifts)
    assert np.mean(shifts) == pytest.approx(512, rel=0.02)


@pytest.mark.parametrize("samples", [1, 4, 15])
def test_samples_of_shifts_have_none_in_common(samples: int) -> None:
    every = [shift for i in range(samples) for shift in sampled_shifts(1024, i, samples)]
    assert len(every) == len(set(every)) == 64 * samples
    assert set(every) <= set(range(1, 1024))


@pytest.mark.parametrize(
    ("servers", "sample", "samples"), [(1024, 4, 4), (1024, -1, 4), (1024, 0, 16), (65, 0, 2)]
)
def test_samples_that_there_are_not_are_refused(servers: int, sample: int, samples: int) -> None:
    with refused(ValueError, "sample", sample, samples, 64):
        sampled_shifts(servers, sample, samples)


def test_all_to_all_stays_below_the_bound_of_the_links_that_leave_boards() -> None:
    # All but one in nine of the pairs cross a row of boards, one link for each accelerator.
    plane = _hx(2, 3)
    bound = 1 / 4 / (24 / 35)
    share = all_to_all_share(plane, 1 << 16)
    assert 0.7 * bound < share < bound
    sample = all_to_all_share(plane, 1 << 16, shifts=list(range(1, 36, 2)))
    assert sample == pytest.approx(share, rel=0.1)


def test_a_permutation_gives_every_accelerator_its_bandwidth() -> None:
    plane = _hx(2, 3)
    shares = permutation_shares(plane, 1 << 20, seed=1)
    assert shares.shape == (36,)
    assert (shares > 0).all()
    assert (shares <= 1).all()
    assert np.array_equal(shares, permutation_shares(plane, 1 << 20, seed=1))


@pytest.mark.parametrize("size_bytes", [1 << 20, 1 << 24], ids=str)
@pytest.mark.parametrize("name", ["hx2mesh", "hx4mesh", "torus", "tree"])
def test_steps_of_a_ring_that_are_left_out_take_as_long_as_the_others(
    name: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = {
        "hx2mesh": lambda: _hx(2, 3),
        "hx4mesh": lambda: _hx(4, 2),
        "torus": lambda: one_plane(torus.build(Cluster(64, 16, 400.0), dimensions=(8, 8))),
        "tree": lambda: one_plane(tapered_fat_tree.build(Cluster(64, 16, 400.0), radix=16)),
    }[name]()
    short = ring_seconds(topology, size_bytes)
    assert short.simulated < short.steps
    monkeypatch.setattr(packet_bandwidth, "RING_STEPS", (short.steps - 1, short.steps))
    full = ring_seconds(topology, size_bytes)
    assert full.simulated == full.steps
    # Chunks of half a packet and less: a ring's cables and traces are not spread evenly along it.
    assert short.seconds == pytest.approx(full.seconds, rel=0.06 if size_bytes == 1 << 20 else 0.01)


@pytest.mark.parametrize("boards", [4, 8])
def test_rings_of_single_accelerators_have_ports_of_their_own(
    boards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ports of a row lead to one switch: where packets choose among them, rings meet and lose
    what the larger mesh loses more of."""
    plane = _hx(1, boards)
    long_bytes = 2.0**20 * boards**2 * len(plane.rings)
    own = all_reduce_share(plane, long_bytes, ring_seconds(plane, long_bytes).seconds)
    steps = 2 * (boards**2 - 1) / boards**2  # of which half of the injection is the peak
    assert 0.97 * 2 / steps < own < 2 / steps
    monkeypatch.setattr(_Flows, "_dealt_paths", lambda *unused: None)
    chosen = all_reduce_share(plane, long_bytes, ring_seconds(plane, long_bytes).seconds)
    assert chosen < (0.95 if boards == 8 else 1.01) * own


def test_rings_over_several_switches_choose_their_ports() -> None:
    tree = one_plane(tapered_fat_tree.build(Cluster(32, 16, 400.0), radix=8, taper=1.0))
    orders = [ring.servers for ring in tree.rings]
    assert not ring_all_reduce(tree, orders, 2.0**20, steps=2).keep_ports
    plane = _hx(1, 4)
    pattern = ring_all_reduce(plane, [r.servers for r in plane.rings], 2.0**20, steps=1)
    assert pattern.keep_ports
    flows = [pattern.program.flow(task) for task in range(pattern.program.task_count)]
    links = [link for flow in flows for link in flow.links]
    assert sorted(links) == list(range(len(plane.links)))  # each is used, and by one flow


def test_all_reduce_bandwidth_is_a_part_of_half_of_what_is_injected() -> None:
    plane = _hx(2, 2)
    size_bytes = 1 << 28
    share = all_reduce_share(plane, size_bytes, ring_seconds(plane, size_bytes).seconds)
    assert 0.9 * 16 / 15 < share <= 16 / 15
    # By dimensions an accelerator sends as much, (p - 1) / p of the data twice, over all its links.
    both = all_reduce_share(plane, size_bytes, torus_seconds(plane, 4, 4, size_bytes))
    assert both == pytest.approx(share, rel=0.01)


def test_one_ring_of_a_tree_is_as_good_as_its_link() -> None:
    tree = one_plane(tapered_fat_tree.build(Cluster(16, 16, 400.0), radix=8))
    assert tree.rings == rank_order(16, both_ways=False)
    size_bytes = 1 << 28
    share = all_reduce_share(tree, size_bytes, ring_seconds(tree, size_bytes).seconds)
    assert 0.9 * 16 / 15 < share <= 16 / 15
    slower = replace(tree, links=tuple(replace(link, gbps=link.gbps / 2) for link in tree.links))
    assert ring_seconds(slower, size_bytes).seconds > 1.9 * ring_seconds(tree, size_bytes).seconds
