"""Strategies for every number of topologies, and the fastest for a delay and for sizes."""

from __future__ import annotations

import numpy as np
import pytest

from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.comparison import compared, fastest
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.sweep import (
    MODES,
    check_size,
    most_topologies,
    strategies,
)
from torch_topoopt.reconfiguration.all_to_all.uneven import (
    SlotSizes,
    assigned,
    check_matrix,
    relabelled,
)
from torch_topoopt.reconfiguration.all_to_all.verification import check_barriers, verify

SLOT_S = 4e6 * 8 / 800e9
COSTS = {delay: CircuitCosts(800, 0, delay * SLOT_S) for delay in (0, 1, 7, 50, 1e6)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 4), (8, 1), (8, 2), (9, 3), (16, 2), (21, 1)])
def test_every_number_of_topologies_has_a_verified_strategy(n: int, k: int, mode: str) -> None:
    found = list(strategies(n, k, mode=mode))
    slots = [strategy.slots for strategy in found]
    assert [s.reconfigurations for s in found] == list(range(1, len(found) + 1))
    assert slots == sorted(slots, reverse=True)
    for strategy in found:
        replay = verify(strategy.schedule)
        d = strategy.reconfigurations
        assert strategy.lower_bound_slots == uncarried_bound_slots(n, k, d)
        assert replay.slots >= strategy.carried_bound_slots == carried_bound_slots(n, k, d)
        if mode == "paper":
            check_barriers(strategy.schedule)
            assert replay.slots >= strategy.lower_bound_slots
    if mode == "best":
        assert len(found) == most_topologies(n, k)
        assert slots[-1] == most_topologies(n, k)  # every chunk goes directly


def test_best_is_never_slower_than_paper() -> None:
    for n, k in ((8, 1), (16, 1), (8, 2), (16, 2), (20, 3)):
        ours = {s.reconfigurations: s.slots for s in strategies(n, k)}
        for strategy in strategies(n, k, mode="paper"):
            assert ours[strategy.reconfigurations] <= strategy.slots


@pytest.mark.parametrize("mode", MODES)
def test_the_choice_is_never_worse_than_staying_nor_than_any_other(mode: str) -> None:
    chosen = []
    for costs in COSTS.values():
        every = compared(12, 1, costs, 4e6, mode=mode, count="all")
        some = compared(12, 1, costs, 4e6, mode=mode)
        best = fastest(every)
        assert best.seconds <= every[0].seconds
        assert fastest(some).seconds == best.seconds  # what was not tried could not pay
        chosen.append(best.strategy.reconfigurations)
    assert chosen == sorted(chosen, reverse=True)
    assert (chosen[0], chosen[-1]) == (11, 1)


def test_the_worked_example_chooses_two_topologies() -> None:
    best = fastest(compared(8, 1, COSTS[7], 4e6, mode="paper"))
    assert (best.strategy.reconfigurations, best.strategy.slots) == (2, 16)
    assert best.seconds == pytest.approx(30 * SLOT_S)
    ours = fastest(compared(8, 1, COSTS[7], 4e6))
    assert ours.seconds == pytest.approx(28 * SLOT_S)


def test_one_number_alone_is_that_number() -> None:
    (option,) = compared(16, 2, COSTS[1], 4e6, count=3)
    assert option.strategy.reconfigurations == 3
    with pytest.raises(ValueError, match="reconfigurations: 9 is not from 1 to 8"):
        compared(16, 2, COSTS[1], 4e6, count=9)


def test_sizes_that_cannot_be_planned_are_errors() -> None:
    with pytest.raises(ValueError, match="servers: 1 is not from 2 to 4096"):
        check_size(1, 1, "best")
    with pytest.raises(ValueError, match="degree: 8 is not from 1 to 7"):
        check_size(8, 8, "best")
    with pytest.raises(ValueError, match="mode: 'x' is not one of best, paper"):
        check_size(8, 1, "x")
    with pytest.raises(ValueError, match="servers: 300 is more than 256"):
        check_size(300, 2, "paper")


def test_equal_sizes_in_a_matrix_take_as_long_as_one_size() -> None:
    matrix = check_matrix(np.full((8, 8), 4_000_000), 8)
    for even, uneven in zip(
        compared(8, 2, COSTS[1], 4e6), compared(8, 2, COSTS[1], matrix), strict=False
    ):
        assert uneven.seconds == pytest.approx(even.seconds)


def test_servers_take_the_parts_in_which_large_chunks_share_slots() -> None:
    """A shifted all-to-all hidden by other numbers of the servers is found again."""
    n = 8
    rng = np.random.default_rng(5)
    hidden = rng.permutation(n)
    offsets = (np.arange(n)[None] - np.arange(n)[:, None]) % n
    plain = np.where(offsets == 3, 100.0, np.where(offsets == 0, 0.0, 1.0))
    matrix = plain[np.ix_(hidden, hidden)]
    schedule = next(strategies(n, 1, first=n - 1)).schedule
    before = SlotSizes(schedule, matrix).largest_bytes(np.arange(n)).sum()
    servers, largest = assigned(schedule, matrix)
    assert largest.sum() == 106 < before
    ours = relabelled(schedule, servers)
    assert verify(ours) == verify(schedule)
    assert SlotSizes(ours, matrix).largest_bytes(np.arange(n)).sum() == largest.sum()


def test_the_assignment_is_never_worse_and_the_same_for_a_seed() -> None:
    matrix = np.random.default_rng(1).zipf(1.4, (12, 12)).clip(0, 1000).astype(float)
    np.fill_diagonal(matrix, 0)
    schedule = next(strategies(12, 2, first=2)).schedule
    plain = SlotSizes(schedule, matrix).largest_bytes(np.arange(12)).sum()
    servers, largest = assigned(schedule, matrix, seed=4)
    assert largest.sum() < plain
    assert sorted(servers.tolist()) == list(range(12))
    assert np.array_equal(servers, assigned(schedule, matrix, seed=4)[0])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 4)), r"matrix: has the shape \(3, 4\), and 4 servers need \(4, 4\)"),
        (-np.ones((4, 4)), "matrix: expected bytes, numbers from 0 on"),
        (np.full((4, 4), np.nan), "matrix: expected bytes, numbers from 0 on"),
        (np.full((4, 4), "x"), "matrix: expected bytes, numbers from 0 on"),
        (np.eye(4), "matrix: no server has anything for another"),
    ],
)
def test_a_matrix_that_is_none_is_an_error(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_matrix(matrix, 4)
