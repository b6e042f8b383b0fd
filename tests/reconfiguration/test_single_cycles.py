"""Degree 1: the paper's worked example, and the choice of shifts against the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.schedule_matrices import check_barriers, check_matrix_form, matrix_form
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.bounds import uncarried_bound_slots
from torch_topoopt.reconfiguration.all_to_all.single_cycles import (
    best_shifts,
    paper_shifts,
    shift_hops,
    shift_schedule,
    shift_slots,
)
from torch_topoopt.reconfiguration.all_to_all.verification import verify


def _cost(slots: int, reconfigurations: int) -> int:
    """In T, for R = 7 T."""
    return slots + 7 * reconfigurations


def test_the_three_strategies_of_the_worked_example() -> None:
    order = paper_shifts(8)
    costs = {}
    for count in (2, 1, 7):
        replay = verify(shift_schedule(8, order[:count]))
        costs[count] = _cost(replay.slots, replay.reconfigurations)
    assert costs == {2: 30, 1: 35, 7: 56}


def test_figure_7_keeps_rounds_of_20_slots_and_not_19() -> None:
    schedule = shift_schedule(8, [1, 3])
    assert schedule.rounds == ((1, 2, 4, 5), (1, 2, 5))
    assert verify(schedule).slots == 20


def test_the_optimum_over_all_sets_at_eight_servers() -> None:
    sets = best_shifts(8)
    assert [shift_slots(8, sets[d]) for d in range(1, 8)] == [28, 16, 13, 11, 9, 8, 7]


@pytest.mark.parametrize("n", [5, 6, 9])
def test_small_sets_are_optimal(n: int) -> None:
    table = shift_hops(n)
    for count, shifts in best_shifts(n).items():
        every = itertools.combinations(range(1, n), count)
        assert shift_slots(n, shifts) == min(
            int(table[list(some)].min(axis=0).sum()) for some in every
        )


def _worst(n: int, counts: range) -> float:
    table = shift_hops(n)
    ratios = []
    for count, shifts in best_shifts(n, counts).items():
        slots = int(table[list(shifts)].min(axis=0).sum(dtype=np.int64))
        ratios.append(slots / uncarried_bound_slots(n, 1, count))
    return max(ratios)


def test_up_to_64_servers_no_set_is_40_percent_above_the_bound() -> None:
    assert max(_worst(n, range(1, n)) for n in range(2, 65)) <= 1.40


@pytest.mark.parametrize("n", [128, 360, 1009, 1024])
def test_large_sets_stay_within_a_factor_of_the_bound(n: int) -> None:
    assert _worst(n, range(1, n)) <= 2.3


def test_the_paper_s_order_is_within_its_own_ratio_for_64_servers() -> None:
    order = paper_shifts(64)
    ratios = [shift_slots(64, order[:d]) / uncarried_bound_slots(64, 1, d) for d in range(1, 64)]
    assert max(ratios) < 2.22
    assert sorted(order) == list(range(1, 64))
    assert order[:4] == [1, 63, 3, 5]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_schedule_delivers_by_both_checks(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 24))
    shifts = [1, *data.draw(st.sets(st.integers(2, n - 1), max_size=5) if n > 2 else st.just([]))]
    schedule = shift_schedule(n, shifts)
    replay = verify(schedule)
    check_barriers(schedule)
    assert replay.slots == shift_slots(n, shifts) >= uncarried_bound_slots(n, 1, len(shifts))
    assert replay.link_slots == n * replay.slots  # no link is ever idle
    assert replay.carried == 0
    assert verify(schedule.whole()) == replay
    assert check_matrix_form(schedule.links, matrix_form(schedule)) == replay.slots


def test_more_topologies_never_take_more_slots() -> None:
    for n in (12, 30, 61):
        slots = [shift_slots(n, shifts) for shifts in best_shifts(n).values()]
        assert slots == sorted(slots, reverse=True)
        assert slots[-1] == n - 1


def test_what_cannot_be_is_an_error() -> None:
    with refused(ValueError, "shifts", "[2, 4]", "server 1"):
        shift_schedule(8, [2, 4])
    with refused(ValueError, "shifts", 8, 1, 7):
        shift_slots(8, [8])
    with refused(ValueError, 1, 7):
        best_shifts(8, [8])
    with refused(ValueError, "servers", 1, 2):
        shift_hops(1)
