"""The bound on what jobs can have: never exceeded, and attained where pairs of jobs decide."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.boards import most_boards as optimum

from figures.papers.upper_bound import most_boards
from torch_topoopt.shared_networks.allocation.board_job import BoardJob, ShapeRules
from torch_topoopt.shared_networks.allocation.boards import Boards
from torch_topoopt.shared_networks.allocation.schemes import Heuristics, ruin_and_recreate

_SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(_SIZES, st.booleans())
def test_no_way_to_place_jobs_exceeds_it(sizes: list[tuple[int, int]], transpose: bool) -> None:
    boards, rules = Boards(4, 3), ShapeRules(transpose=transpose)
    jobs = [BoardJob(f"j{i}", u, v) for i, (u, v) in enumerate(sizes)]
    best = optimum(boards, [rules.shapes(job, 3, 4) for job in jobs], set())
    assert best <= most_boards(boards, jobs, rules) <= sum(job.size for job in jobs)


@pytest.mark.parametrize(
    ("side", "sizes", "lost"),
    [
        (16, [176, 63, 4, 2, 2, 2, 2, 2, 1, 1, 1], 63),
        (16, [210, 40, 2, 1, 1, 1, 1], 40),
        (8, [49, 12, 1, 1, 1], 12),
        (8, [32, 30, 2], 30),
        (8, [25, 25, 4, 2, 2, 1, 1, 1, 1, 1, 1], 25),
    ],
)
def test_of_two_jobs_that_share_a_board_in_all_shapes_the_larger_is_all_there_can_be(
    side: int, sizes: list[int], lost: int
) -> None:
    """Mixes that fill a mesh, as Figure 8 draws them: what ours leaves over nobody can use."""
    boards, rules = Boards(side, side), ShapeRules(transpose=True, most_aspect=8.0)
    jobs = [BoardJob.square(f"j{i}", size) for i, size in enumerate(sizes)]
    assert sum(sizes) == boards.working
    bound = most_boards(boards, jobs, rules)
    assert bound == boards.working - lost
    assert ruin_and_recreate(boards, jobs, Heuristics(rules, sort=True)).allocated == bound


def test_failed_boards_bound_it_too() -> None:
    jobs = [BoardJob("a", 2, 2), BoardJob("b", 3, 3)]
    boards = Boards(4, 4)
    assert most_boards(boards, jobs, ShapeRules()) == 9
    assert most_boards(boards.with_random_failures(8, 1), jobs, ShapeRules()) == 8
