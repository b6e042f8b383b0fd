"""The bound on what mixes get beside failed boards: against all sub-meshes, and never exceeded."""

from __future__ import annotations

from itertools import combinations

import pytest
from support.refusals import refused

from figures.cells.board_failures import bounds_with_failures, most_with_failures, widest
from figures.cells.board_jobs import utilisations
from torch_topoopt.shared_networks.allocation.board_job import BoardJob, ShapeRules
from torch_topoopt.shared_networks.allocation.boards import Boards


@pytest.mark.parametrize("seed", range(4))
def test_the_widest_sub_mesh_of_every_height_is_that_of_all_sets_of_rows(seed: int) -> None:
    boards = Boards(7, 5).with_random_failures(3 * seed, seed)
    for height in range(6):
        assert widest(boards)[height] == max(
            sum(all((r, c) not in boards.failed for r in rows) for c in range(7))
            for rows in combinations(range(5), height)
        )


def test_a_job_without_a_sub_mesh_counts_for_nothing() -> None:
    boards = Boards(4, 4, frozenset({(0, 0), (1, 1), (2, 2), (3, 3)}))
    jobs = [BoardJob.square("a", 9), BoardJob.square("b", 2)]
    assert most_with_failures(boards, jobs, ShapeRules(True, 8.0)) == 2
    with refused(ValueError, "4x17", "64 x 16"):
        widest(Boards(4, 17))


def test_no_allocation_of_a_mix_exceeds_it() -> None:
    mixes = {"law": "powers", "columns": 8, "rows": 8, "mixes": 20, "failed": 10, "seed": 0}
    bounds = bounds_with_failures(**mixes, variant="bound, transpose + aspect")
    found = utilisations(**mixes, variant="ruin-recreate, transpose + aspect")
    assert all(ours <= bound for ours, bound in zip(found, bounds, strict=True))
    assert min(bounds) < 0.7  # nobody uses more
    assert sum(map(float.__eq__, found, bounds)) >= 15
