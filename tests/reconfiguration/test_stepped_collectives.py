"""Collectives for ranks that run them: hops over the links of their topologies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.collectives.phases import COLLECTIVES
from torch_topoopt.reconfiguration.collectives.stepped import (
    SteppedCollective,
    stepped_collectives,
)

COSTS = CircuitCosts(0.1, 1e-4, 0.01)
SIZE = 1e6


def _arrived(found: SteppedCollective) -> tuple[np.ndarray, np.ndarray]:
    """What servers hold at the end, `[server, part, block]`, and the data of the beginning."""
    n, made = found.timeline.servers, found.timeline
    data = np.random.default_rng(n).integers(1, 2**40, (n, made.pieces, made.blocks))
    held = data.copy()
    for number, hops in enumerate(found.hops()):
        for sender, receiver, block, part, adds in hops:
            assert receiver in found.links[number, sender]
            value = held[sender, part, block]
            held[receiver, part, block] = held[receiver, part, block] * adds + value
    return held, data


def check_results(found: SteppedCollective) -> None:
    held, data = _arrived(found)
    collective, own = found.timeline.collective, np.arange(found.timeline.servers)
    if collective == "reduce_scatter":
        assert np.array_equal(held[own, :, own], data.sum(axis=0).T)
    elif collective == "all_reduce":
        assert np.array_equal(held, np.broadcast_to(data.sum(axis=0), data.shape))
    elif collective == "all_gather":
        assert np.array_equal(held, np.broadcast_to(data[own, :, own].T, data.shape))
    else:
        assert np.array_equal(held, np.broadcast_to(data[0], data.shape))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(COLLECTIVES), st.integers(2, 16), st.integers(1, 3))
def test_hops_follow_the_links_and_do_the_collective(
    collective: str, servers: int, degree: int
) -> None:
    everything = stepped_collectives(collective, servers, degree, COSTS, SIZE)
    topologies = [found.reconfigurations for found in everything]
    assert topologies == sorted(set(topologies))
    assert topologies[0] == 1
    for found in everything:
        check_results(found)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_server_has_no_two_circuits_to_another_and_gets_no_block_of_a_gather_twice(
    collective: str,
) -> None:
    for found in stepped_collectives(collective, 12, 2, COSTS, SIZE):
        for strides in found.strides:
            lit = [stride for stride in strides if stride]
            assert len(lit) == len(set(lit)) > 0
        copies = [hop[1:4] for hops in found.hops() for hop in hops if not hop[4]]
        assert set(Counter(copies).values()) <= {1}


def test_the_time_has_all_moves_and_the_move_back() -> None:
    for found in stepped_collectives("all_gather", 8, 1, COSTS, SIZE):
        steps = sum(send.part.count for send in found.timeline.sends)
        assert steps == 7, "each server receives seven blocks over one circuit"
        expected = (found.reconfigurations + 1) * 0.01
        expected += len(found.timeline.sends) * 1e-4 + 7 / 8 * SIZE * COSTS.byte_s
        assert found.running_s(SIZE, COSTS) == pytest.approx(expected)
        doubled = expected + 7 / 8 * SIZE * COSTS.byte_s
        assert found.running_s(2 * SIZE, COSTS) == pytest.approx(doubled)


def test_more_topologies_have_fewer_latencies_and_a_larger_degree_more_bytes_at_once() -> None:
    counts = {
        found.reconfigurations: len(found.timeline.sends)
        for found in stepped_collectives("all_reduce", 16, 1, COSTS, SIZE)
    }
    assert counts == {1: 30, 3: 12, 5: 10, 7: 8}
    slow = stepped_collectives("all_reduce", 16, 1, COSTS, SIZE)[0].running_s(SIZE, COSTS)
    fast = stepped_collectives("all_reduce", 16, 2, COSTS, SIZE)[0].running_s(SIZE, COSTS)
    assert fast < 0.7 * slow


def test_wrong_inputs_are_refused() -> None:
    with refused(ValueError, "collective", "scan", "all_reduce"):
        stepped_collectives("scan", 8, 1, COSTS, SIZE)


@pytest.mark.parametrize(
    ("collective", "servers", "topologies", "present", "unit"),
    [
        ("all_gather", 12, 4, {1, 11}, 1),
        ("all_gather", 12, 4, {5, 7}, 5),
        ("reduce_scatter", 12, 4, {5, 7}, 5),
        ("all_reduce", 8, 2, {1, 7}, 3),
        ("broadcast", 8, 2, {1, 7}, 3),
    ],
)
def test_topologies_of_the_plan_are_no_moves_and_members_take_roles_that_fit_it(
    collective: str, servers: int, topologies: int, present: set[int], unit: int
) -> None:
    def found(strides: set[int]) -> SteppedCollective:
        everything = stepped_collectives(collective, servers, 2, COSTS, SIZE, frozenset(strides))
        (one,) = (one for one in everything if one.reconfigurations == topologies)
        return one

    moving, fitting = found(set()), found(present)
    assert moving.moves == topologies + 1
    assert fitting.moves == topologies
    assert fitting.unit in (unit, servers - unit)
    for strides, of_the_plan in zip(fitting.strides, fitting.of_the_plan, strict=True):
        assert of_the_plan == ({stride for stride in strides if stride} <= present)
    saved = moving.running_s(SIZE, COSTS) - fitting.running_s(SIZE, COSTS)
    assert saved == pytest.approx(COSTS.reconfiguration_s)
    check_results(fitting)


def test_a_schedule_without_a_move_is_there_only_if_there_is_no_other() -> None:
    (only,) = stepped_collectives("all_gather", 2, 1, COSTS, SIZE, frozenset({1}))
    assert only.moves == 0
    assert only.running_s(SIZE, COSTS) == pytest.approx(1e-4 + SIZE / 2 * COSTS.byte_s)
    ring, *_ = stepped_collectives("all_gather", 5, 1, COSTS, SIZE, frozenset({2}))
    assert ring.moves > 0
