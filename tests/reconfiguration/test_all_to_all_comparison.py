"""Strategies for every number of topologies, and the fastest for a delay and for sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from oracles.schedule_matrices import check_barriers, check_matrix_form, matrix_form
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.comparison import Sizes, compared, fastest
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.demand_topologies import (
    greedy_links,
    permutation_schedule,
    permutations,
)
from torch_topoopt.reconfiguration.all_to_all.sequence_routes import sequence_schedule
from torch_topoopt.reconfiguration.all_to_all.sweep import (
    MODES,
    check_size,
    most_topologies,
    strategies,
)
from torch_topoopt.reconfiguration.all_to_all.uneven import (
    assigned,
    check_matrix,
    chunks_of,
    direct_strategies,
    relabelled_links,
)
from torch_topoopt.reconfiguration.all_to_all.verification import verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        every = compared(12, 1, costs, Sizes(4e6), mode=mode, count="all")
        some = compared(12, 1, costs, Sizes(4e6), mode=mode)
        best = fastest(every)
        assert best.seconds <= every[0].seconds
        assert fastest(some).seconds == best.seconds  # what was not tried could not pay
        chosen.append(best.strategy.reconfigurations)
    assert chosen == sorted(chosen, reverse=True)
    assert (chosen[0], chosen[-1]) == (11, 1)


def test_the_worked_example_chooses_two_topologies() -> None:
    best = fastest(compared(8, 1, COSTS[7], Sizes(4e6), mode="paper"))
    assert (best.strategy.reconfigurations, best.strategy.slots) == (2, 16)
    assert best.seconds == pytest.approx(30 * SLOT_S)
    ours = fastest(compared(8, 1, COSTS[7], Sizes(4e6)))
    assert ours.seconds == pytest.approx(28 * SLOT_S)


def test_one_number_alone_is_that_number() -> None:
    (option,) = compared(16, 2, COSTS[1], Sizes(4e6), count=3)
    assert option.strategy.reconfigurations == 3
    with refused(ValueError, "reconfigurations", 9, 1, 8):
        compared(16, 2, COSTS[1], Sizes(4e6), count=9)


def test_sizes_that_cannot_be_planned_are_errors() -> None:
    with refused(ValueError, "servers", 1, 2, 4096):
        check_size(1, 1, "best")
    with refused(ValueError, "degree", 8, 1, 7):
        check_size(8, 8, "best")
    with refused(ValueError, "mode", "x"):
        check_size(8, 1, "x")
    with refused(ValueError, "servers", 300, 256):
        check_size(300, 2, "paper")


def _zipf(n: int) -> np.ndarray:
    """Chunks of each pair, 8 on average."""
    sizes = np.arange(1, n * n + 1) ** -0.4
    counts = np.ceil(8 * sizes / sizes.mean()).astype(np.int32)
    counts = np.random.default_rng(1).permutation(counts).reshape(n, n)
    np.fill_diagonal(counts, 0)
    return counts


@pytest.mark.parametrize(("n", "k"), [(6, 1), (9, 2), (12, 1)])
def test_unequal_sizes_have_verified_strategies_no_worse_than_permutations(n: int, k: int) -> None:
    counts = _zipf(n)
    for delay in (0, 7, 1e6):
        options = compared(n, k, COSTS[delay], Sizes(4e6, counts))
        for option in options:
            schedule = option.strategy.schedule
            replay = verify(schedule)
            assert replay.slots >= option.strategy.carried_bound_slots
            assert np.array_equal(schedule.chunk_counts(), counts)
            terms = matrix_form(schedule)
            assert check_matrix_form(schedule.links, terms, counts) <= replay.slots
        direct = next(o for o in options if o.strategy.base == "permutations")
        assert fastest(options).seconds <= direct.seconds
        if delay == 1e6:
            assert fastest(options).strategy.reconfigurations == 1


def test_permutations_take_the_largest_sum_of_a_row_or_column() -> None:
    counts = _zipf(10)
    found = permutations(counts)
    most = max(counts.sum(axis=0).max(), counts.sum(axis=1).max())
    assert sum(slots for _, slots in found) == most
    assert permutation_schedule(counts, 1).slots == most
    assert all(sorted(target.tolist()) == list(range(10)) for target, _ in found)
    even = np.full((6, 6), 3, dtype=np.int32) - 3 * np.eye(6, dtype=np.int32)
    assert len(permutations(even)) == 5


def test_greedy_circuits_join_all_and_serve_the_largest_demand_first() -> None:
    counts = _zipf(10)
    links = greedy_links(counts, 2, 3)
    source, target = np.unravel_index(counts.argmax(), counts.shape)
    assert target in links[0, source]
    assert verify(sequence_schedule(links[:1], counts)).reconfigurations == 1


def test_servers_take_parts_with_few_hops() -> None:
    n = 8
    hidden = np.random.default_rng(5).permutation(n)
    ahead = (np.arange(n)[None] - np.arange(n)[:, None]) % n == 1
    counts = np.where(ahead, 50, 1) - np.eye(n, dtype=np.int64)
    counts = counts[np.ix_(hidden, hidden)].astype(np.int32)
    ring = next(strategies(n, 1)).schedule
    parts = assigned(ring, counts)
    assert sorted(parts.tolist()) == list(range(n))
    ours = sequence_schedule(relabelled_links(ring.links, parts), counts)
    plain = sequence_schedule(ring.links, counts)
    assert verify(ours).link_slots < verify(plain).link_slots
    assert np.array_equal(parts, assigned(ring, counts))


def test_routes_over_a_sequence_are_balanced_and_skip_what_is_not_used() -> None:
    counts = _zipf(12)
    links = next(strategies(12, 1, first=3)).schedule.links
    schedule = sequence_schedule(links, counts)
    replay = verify(schedule)
    assert replay.slots <= 1.5 * replay.link_slots / 12
    one = np.zeros((12, 12), dtype=np.int32)
    one[0, int(links[1, 0, 0])] = 4
    short = sequence_schedule(links[:2], one)
    assert (short.reconfigurations, short.slots) == (1, 4)
    with refused(ValueError, "topologies", "server 0"):
        sequence_schedule(np.zeros((1, 12, 1), dtype=np.int32), one)


def test_parallel_circuits_share_what_goes_their_way() -> None:
    links = np.array([[[1, 1], [0, 0]]], dtype=np.int32)
    counts = np.array([[0, 6], [4, 0]], dtype=np.int32)
    assert verify(sequence_schedule(links, counts)).slots == 3


def test_chunks_are_as_many_as_bytes_need() -> None:
    matrix = check_matrix(np.array([[5.0, 9.0], [0.0, 7.0]]), 2)
    assert chunks_of(matrix, 4).tolist() == [[0, 3], [0, 0]]
    with refused(ValueError, "chunk", 0):
        chunks_of(matrix, 0)
    with refused(ValueError, "chunk", "1e-06", 4000000):
        chunks_of(matrix, 1e-6)


@pytest.mark.parametrize(
    ("matrix", "tokens"),
    [
        (np.ones((3, 4)), ("matrix", "(3, 4)", 4, "(4, 4)")),
        (-np.ones((4, 4)), ("matrix", 0)),
        (np.full((4, 4), np.nan), ("matrix", 0)),
        (np.full((4, 4), "x"), ("matrix", 0)),
        (np.eye(4), ("matrix", "anything")),
    ],
)
def test_a_matrix_that_is_none_is_an_error(matrix: np.ndarray, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        check_matrix(matrix, 4)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_coarser_permutations_are_fewer_and_last_longer(degree: int) -> None:
    counts = np.random.default_rng(3).integers(0, 40, (12, 12)).astype(np.int32)
    np.fill_diagonal(counts, 0)
    found = direct_strategies(counts, degree)
    assert len(found) > 2
    topologies = [strategy.reconfigurations for strategy in found]
    assert topologies == sorted(topologies, reverse=True)
    assert min(strategy.slots for strategy in found) == found[0].slots
    for strategy in found:
        replay = verify(strategy.schedule)
        assert replay.link_slots == counts.sum()  # every chunk goes directly


def test_exchanged_parts_are_a_minimum_of_exchanges() -> None:
    """By counting hops anew for every exchange of two."""
    even = next(strategies(11, 2)).schedule
    random = np.random.default_rng(5)
    counts = random.integers(0, 50, (11, 11)).astype(np.int32)
    np.fill_diagonal(counts, 0)
    hops = np.zeros((11, 11), dtype=np.int64)
    for _, _, _, source, target, _ in even.whole().sends:
        hops[source, target] += 1

    def all_hops(servers: NDArray[np.int64]) -> int:
        return int((counts[np.ix_(servers, servers)] * hops).sum())

    servers = assigned(even, counts)
    assert sorted(servers) == list(range(11))
    assert all_hops(servers) <= all_hops(np.arange(11))
    for a in range(11):
        for b in range(a):
            exchanged = servers.copy()
            exchanged[[a, b]] = servers[[b, a]]
            assert all_hops(exchanged) >= all_hops(servers)
