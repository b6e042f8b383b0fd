"""Circulants whose chunks are carried over: routes, slots and schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.schedule_matrices import check_matrix_form, matrix_form
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.circulants import (
    circulant_routes,
    circulant_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.single_cycles import best_shifts, shift_slots
from torch_topoopt.reconfiguration.all_to_all.stride_sets import StrideSets, distances
from torch_topoopt.reconfiguration.all_to_all.verification import verify


@given(st.data())
def test_distances_are_those_of_a_breadth_first_search(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 40))
    strides = data.draw(st.lists(st.integers(1, n - 1), min_size=1, max_size=4))
    expected = [0] + [4 * n] * (n - 1)
    layer, hops = {0}, 0
    while layer:
        hops += 1
        layer = {v for u in layer for s in strides if expected[v := (u + s) % n] == 4 * n}
        for v in layer:
            expected[v] = hops
    assert distances(n, strides).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_schedule_delivers_and_lasts_as_long_as_its_busiest_strides(
    data: st.DataObject,
) -> None:
    n = data.draw(st.integers(2, 26))
    k = data.draw(st.integers(1, 4))
    strides = [1, *data.draw(st.lists(st.integers(1, n - 1), max_size=6, unique=True))]
    strides = list(dict.fromkeys(strides))
    routes = circulant_routes(n, k, strides)
    schedule = circulant_schedule(routes)
    replay = verify(schedule)
    assert replay == verify(schedule.whole())
    assert replay.slots == routes.slots
    assert replay.reconfigurations == -(-len(strides) // k)
    assert replay.link_slots == n * int(distances(n, strides).sum())
    assert check_matrix_form(schedule.links, matrix_form(schedule)) <= replay.slots
    assert replay.slots >= carried_bound_slots(n, k, replay.reconfigurations)


def test_chunks_that_are_carried_over_go_below_theorem_1() -> None:
    """Theorem 1 is for chunks that stay on one topology each; the worked example has 16 slots."""
    routes = circulant_routes(8, 1, [1, 3])
    replay = verify(circulant_schedule(routes))
    assert replay.slots == 14 == carried_bound_slots(8, 1, 2)
    assert replay.slots < uncarried_bound_slots(8, 1, 2) == 16
    assert replay.carried > 0


def test_strides_1_and_3_are_better_than_neighbouring_ones_at_eight_servers() -> None:
    assert circulant_routes(8, 2, [1, 3]).slots < circulant_routes(8, 2, [2, 3]).slots


@pytest.mark.parametrize("n", [13, 24, 64])
def test_carrying_never_takes_more_than_the_same_shifts_without(n: int) -> None:
    for shifts in best_shifts(n).values():
        assert circulant_routes(n, 1, shifts).slots <= shift_slots(n, shifts)


def test_strides_of_a_topology_are_used_alike() -> None:
    strides = StrideSets(64).several(4, restarts=2)[0]
    routes = circulant_routes(64, 2, strides)
    total = int(distances(64, strides).sum())
    assert routes.slots <= 1.06 * total / 2


def test_sets_of_strides_grow_well_and_repeat() -> None:
    sets = StrideSets(64, seed=3)
    for count in (2, 3, 6, 12):
        found = sets.several(count, restarts=2)
        hops = [int(distances(64, strides).sum()) for strides in found]
        assert hops == sorted(hops)
        assert hops[0] <= int(distances(64, sets.greedy(count)).sum())
        assert hops[0] <= 1.07 * carried_bound_slots(64, 1, count)
        assert found == StrideSets(64, seed=3).several(count, restarts=2)
    assert sets.extended((5, 9), 4)[:2] == (5, 9)
    assert len(set(sets.extended((5, 9), 12))) == 12


def test_strides_that_reach_not_all_are_an_error() -> None:
    with refused(ValueError, "strides", "[2, 4]", "server 1"):
        circulant_routes(8, 1, [2, 4])


def test_4096_servers_are_planned() -> None:
    """The strides 1, 2, 4, ... of log2 n topologies: as many hops as bits that are set."""
    routes = circulant_routes(4096, 1, [1 << bit for bit in range(12)])
    assert routes.slots == 12 * 2048
    assert verify(circulant_schedule(routes)).slots == routes.slots
    assert np.all(routes.uses.sum(axis=0) == 2048)
