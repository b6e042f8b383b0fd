"""Routes by a linear program: its load is a bound, and the chunks that follow it come close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.demand_topologies import greedy_links
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.optimal_routes import (
    _TimedGraph,
    _without_loops,
    optimal_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PORT,
    SENDER,
    circulant_links,
)
from torch_topoopt.reconfiguration.all_to_all.sequence_routes import sequence_schedule
from torch_topoopt.reconfiguration.all_to_all.verification import verify

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _random_counts(servers: int, seed: int) -> NDArray[np.int32]:
    counts = np.random.default_rng(seed).integers(0, 9, (servers, servers)).astype(np.int32)
    np.fill_diagonal(counts, 0)
    return counts


@settings(deadline=None, max_examples=25)
@given(st.integers(3, 12), st.integers(1, 3), st.integers(0, 99))
def test_no_schedule_goes_below_the_program_s_load(n: int, degree: int, seed: int) -> None:
    degree = min(degree, n - 1)
    counts = _random_counts(n, seed)
    links = kautz_links(n, degree) if degree > 1 else circulant_links(n, [[1]])[0]
    schedule, least = optimal_schedule(links[None], counts)
    assert verify(schedule).slots == schedule.slots
    busiest = np.bincount(schedule.sends[:, SENDER] * degree + schedule.sends[:, PORT]).max()
    assert least - 1e-6 <= busiest <= schedule.slots
    other = sequence_schedule(links[None], counts)
    assert other.slots >= least - 1e-6


def test_a_ring_s_load_is_that_of_its_only_routes() -> None:
    n = 9
    counts = np.ones((n, n), dtype=np.int32) - np.eye(n, dtype=np.int32)
    schedule, least = optimal_schedule(circulant_links(n, [[1]]), counts)
    assert least == pytest.approx(n * (n - 1) / 2, rel=1e-3)
    assert schedule.slots == n * (n - 1) // 2


def test_rounding_costs_little_where_there_are_many_chunks() -> None:
    counts = 8 * _random_counts(16, 0)
    schedule, least = optimal_schedule(kautz_links(16, 2)[None], counts)
    assert schedule.slots <= 1.02 * least


def test_circuits_side_by_side_share_their_chunks() -> None:
    counts = _random_counts(5, 1)
    one, _ = optimal_schedule(circulant_links(5, [[1]]), counts)
    two, _ = optimal_schedule(circulant_links(5, [[1, 1]]), counts)
    assert set(two.sends[:, PORT]) == {0, 1}
    assert two.slots <= one.slots / 2 + 4


def test_what_has_no_routes_is_an_error() -> None:
    counts = _random_counts(6, 2)
    with refused(ValueError, "links", "linear program"):
        optimal_schedule(circulant_links(6, [[2]]), counts)
    many = np.zeros((70, 70), dtype=np.int32)
    with refused(ValueError, 9800, 8400):
        optimal_schedule(circulant_links(70, [[1, 2]]), many)


@settings(deadline=None, max_examples=15)
@given(st.integers(4, 11), st.integers(1, 2), st.integers(2, 4), st.integers(0, 99))
def test_over_several_topologies_no_routes_go_below_the_program(
    n: int, degree: int, topologies: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    strides = random.integers(1, n, (topologies, degree))
    strides[0, 0] = 1
    counts = 3 * _random_counts(n, seed)
    links = circulant_links(n, strides.tolist())
    schedule, least = optimal_schedule(links, counts)
    other = sequence_schedule(links, counts)
    for found in (schedule, other):
        assert verify(found).slots >= least - 1e-6
    assert schedule.slots <= 1.15 * other.slots + 4


def test_the_program_finds_more_than_trees_do() -> None:
    counts = 4 * _random_counts(16, 4)
    links = circulant_links(16, [[1, 3], [4, 7], [6, 11]])
    schedule, least = optimal_schedule(links, counts)
    assert least <= schedule.slots < sequence_schedule(links, counts).slots


def test_a_walk_that_comes_back_to_a_server_waits_there_instead() -> None:
    """Flows of one source for several targets may be taken apart so that a walk has a loop."""
    graph = _TimedGraph.of(circulant_links(4, [[1], [3]]))
    ends = list(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))

    def kept(*walk: tuple[int, int]) -> list[tuple[int, int]]:
        edges = _without_loops([ends.index(pair) for pair in reversed(walk)], graph)
        return [ends[edge] for edge in reversed(edges)]

    assert kept((0, 1), (1, 2), (2, 6), (6, 5)) == [(0, 1)]  # past its target, and back to it
    assert kept((0, 1), (1, 2), (2, 6), (6, 5), (5, 4), (4, 7)) == [(4, 7)]
    assert kept((0, 1), (1, 2), (2, 3), (3, 0), (0, 1)) == [(0, 1)]
    assert kept((0, 1), (1, 5), (5, 4), (4, 7)) == [(4, 7)]
    assert kept((0, 1), (1, 2), (2, 3)) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(("n", "degree"), [(8, 1), (10, 2)])
def test_chunks_arrive_on_greedy_circuits(n: int, degree: int) -> None:
    for seed in range(3):
        counts = 2 * _random_counts(n, seed)
        for topologies in (3, 6):
            links = greedy_links(counts, degree, topologies, seed=seed)
            schedule, least = optimal_schedule(links, counts)
            assert verify(schedule).slots >= least - 1e-6
