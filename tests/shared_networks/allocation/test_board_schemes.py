"""Allocations: legal, the paper's rules for the greedy, never worse for ours."""

from __future__ import annotations

import gc
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.boards import crossing, every_submesh, greedy_submesh, local_submesh, most_boards
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.shared_networks.allocation.board_job import BoardJob, ShapeRules
from torch_topoopt.shared_networks.allocation.boards import Board, Boards, SubMesh
from torch_topoopt.shared_networks.allocation.schemes import (
    SCHEMES,
    Heuristics,
    greedy,
    ruin_and_recreate,
)
from torch_topoopt.shared_networks.allocation.tree_traffic import all_to_all_bytes

if TYPE_CHECKING:
    from torch_topoopt.shared_networks.allocation.board_job import Shape


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> tuple[Boards, list[BoardJob]]:
    columns, rows = draw(st.integers(1, most)), draw(st.integers(1, most))
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    failed = draw(st.frozensets(places, max_size=6))
    sizes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=12))
    jobs = [BoardJob(f"j{i}", u, v) for i, (u, v) in enumerate(sizes)]
    return Boards(columns, rows, failed), jobs


RULES = st.builds(
    ShapeRules, transpose=st.booleans(), most_aspect=st.sampled_from([None, 1.0, 2.0, 8.0])
)
HEURISTICS = st.builds(
    Heuristics,
    shapes=RULES,
    sort=st.booleans(),
    locality=st.booleans(),
    all_starts=st.booleans(),
    boards_per_leaf=st.integers(1, 4),
)


@settings(max_examples=120)
@given(problems(), HEURISTICS, st.sampled_from(sorted(SCHEMES)))
def test_no_board_has_two_jobs_and_no_job_a_failed_board(
    problem: tuple[Boards, list[BoardJob]], heuristics: Heuristics, scheme: str
) -> None:
    boards, jobs = problem
    found = SCHEMES[scheme](boards, jobs, heuristics).validate()
    assert sorted([*found.placed, *found.waiting], key=jobs.index) == jobs
    used: list[Board] = []
    for job, own in found.placed.items():
        assert own.shape in heuristics.shapes.shapes(job, boards.rows, boards.columns)
        used += own.boards()
    assert len(set(used)) == len(used)
    assert not set(used) & boards.failed
    assert found.broken == []
    assert found.allocated == len(used)
    if boards.working:
        assert found.utilisation == len(used) / boards.working


@settings(max_examples=120)
@given(problems())
def test_the_plain_greedy_follows_the_papers_steps(problem: tuple[Boards, list[BoardJob]]) -> None:
    boards, jobs = problem
    taken: set[Board] = set()
    found = greedy(boards, jobs)
    for job in jobs:
        expected = greedy_submesh(boards, taken, (job.rows, job.columns))
        assert found.placed.get(job) == expected
        if expected is not None:
            taken |= set(expected.boards())


@settings(max_examples=80)
@given(problems(), HEURISTICS, st.integers(0, 5))
def test_ours_never_has_fewer_boards_than_the_greedy(
    problem: tuple[Boards, list[BoardJob]], heuristics: Heuristics, seed: int
) -> None:
    boards, jobs = problem
    found = ruin_and_recreate(boards, jobs, heuristics, seed=seed)
    assert found.allocated >= greedy(boards, jobs, heuristics).allocated
    assert found == ruin_and_recreate(boards, jobs, heuristics, seed=seed)


def test_ours_is_nearly_always_the_optimum_of_small_meshes() -> None:
    """Against all ways to place four jobs on 3x3 boards with one failed."""
    below = 0
    for seed in range(20):
        boards = Boards(3, 3).with_random_failures(1, seed)
        shapes = [(1 + (seed + i) % 2, 1 + (seed // 2 + i) % 3) for i in range(4)]
        jobs = [BoardJob(f"j{i}", u, v) for i, (u, v) in enumerate(shapes)]
        rules = ShapeRules(transpose=True)
        optimum = most_boards(boards, [rules.shapes(job, 3, 3) for job in jobs], set())
        found = ruin_and_recreate(boards, jobs, Heuristics(rules), seed=seed).allocated
        assert found <= optimum
        below += found < optimum
    assert below <= 1


def test_the_papers_figure_5_comes_out() -> None:
    """Boards are (column, row) from 1 there: the blue 2x4 and the yellow 3x3 sub-mesh."""
    boards = Boards(4, 4, frozenset({(1, 2), (2, 1), (2, 2)}))
    blue, yellow = BoardJob("blue", 2, 4), BoardJob("yellow", 3, 3)
    assert greedy(boards, [blue]).placed[blue] == SubMesh((0, 3), (0, 1, 2, 3))
    assert greedy(boards, [yellow]).placed[yellow] == SubMesh((0, 1, 3), (0, 1, 3))


@settings(max_examples=60)
@given(problems(5), st.integers(1, 3))
def test_locality_is_that_of_the_best_submesh_where_all_boards_are_free(
    problem: tuple[Boards, list[BoardJob]], per_leaf: int
) -> None:
    boards = Boards(problem[0].columns, problem[0].rows)
    heuristics = Heuristics(ShapeRules(True, 8.0), locality=True, boards_per_leaf=per_leaf)
    for job in problem[1][:2]:
        found = greedy(boards, [job], heuristics).placed.get(job)
        best = min(
            (
                all_to_all_bytes(own, per_leaf).upper
                for shape in heuristics.shapes.shapes(job, boards.rows, boards.columns)
                for own in every_submesh(boards, set(), shape)
            ),
            default=None,
        )
        if best is None:
            assert found is None
        else:
            assert found is not None
            assert all_to_all_bytes(found, per_leaf).upper == pytest.approx(best)


@settings(max_examples=60)
@given(problems(12), st.integers(1, 4))
def test_locality_places_jobs_as_the_slow_way_does(
    problem: tuple[Boards, list[BoardJob]], per_leaf: int
) -> None:
    boards, jobs = problem
    mesh = _core.BoardMesh(boards.rows, boards.columns, sorted(boards.failed))
    free = [
        {c for c in range(boards.columns) if (r, c) not in boards.failed}
        for r in range(boards.rows)
    ]
    for job in jobs:
        if max(job.rows - boards.rows, job.columns - boards.columns) > 0:
            continue
        shapes = [(job.rows, job.columns)]
        (own,) = mesh.allocate([shapes], [0], [0], "local", per_leaf)
        assert own == local_submesh(free, shapes, per_leaf)
        if own is not None:
            _take(free, own)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 5), st.integers(2, 14), st.integers(2, 14))
def test_what_searches_have_in_common_changes_no_result(
    data: st.DataObject, per_leaf: int, rows: int, columns: int
) -> None:
    """Many jobs of few kinds, so that most of a search is known from the one before; then some
    jobs end, and others come."""
    kinds = [[(1, 2), (2, 1)], [(2, 2), (1, 4), (4, 1)], [(3, 1)], [(3, 4), (4, 3), (2, 6)]]
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    failed = data.draw(st.frozensets(places, max_size=20))
    mesh = _core.BoardMesh(rows, columns, sorted(failed))
    free = [{c for c in range(columns) if (r, c) not in failed} for r in range(rows)]
    for _ in range(2):
        drawn = data.draw(st.lists(st.sampled_from(range(len(kinds))), max_size=40))
        jobs = sorted(drawn) if data.draw(st.booleans()) else drawn
        found = mesh.allocate(kinds, jobs, range(len(jobs)), "local", per_leaf)
        assert found == local_allocation(free, [kinds[kind] for kind in jobs], per_leaf)
        for own in found:
            if own is not None and data.draw(st.integers(0, 3)) == 0:
                mesh.release(own)
                for row in own.rows:
                    free[row] |= set(own.columns)


def local_allocation(
    free: list[set[int]], jobs: list[list[Shape]], per_leaf: int
) -> list[SubMesh | None]:
    """One job after the other, with plain searches. Of those that follow one of the same shapes
    nothing better is wanted than what that one has got. Takes boards of `free`."""
    placed: list[SubMesh | None] = []
    enough, last = Fraction(0), None
    for shapes in jobs:
        if shapes != last:
            enough, last = Fraction(0), shapes
        own = local_submesh(free, shapes, per_leaf, enough)
        if own is not None:
            enough = max(enough, crossing(own, per_leaf))
            _take(free, own)
        placed.append(own)
    return placed


def _take(free: list[set[int]], own: SubMesh) -> None:
    for row in own.rows:
        free[row] -= set(own.columns)


def test_boards_taken_in_between_are_not_given_to_a_job_like_the_last() -> None:
    """A search goes on from what the last one for the same shape has found."""
    mesh = _core.BoardMesh(1, 8, [])
    one = [[(1, 2)]]
    assert mesh.allocate(one, [0, 0], [0], "local", 8) == [SubMesh((0,), (0, 1)), None]
    found = mesh.find(1, 2, "local", 8)
    assert found == SubMesh((0,), (2, 3))
    mesh.take(SubMesh((0,), (4, 5)))
    mesh.take(found)
    assert mesh.find(1, 2, "local", 8) == SubMesh((0,), (6, 7))
    mesh.release(SubMesh((0,), (0, 1)))
    assert mesh.find(1, 2, "local", 8) == SubMesh((0,), (0, 1))
    mesh.take(SubMesh((0,), (0, 1)))
    mesh.take(SubMesh((0,), (6, 7)))
    assert mesh.find(1, 2, "local", 8) is None


def test_what_is_no_job_of_a_kind_is_refused() -> None:
    mesh = _core.BoardMesh(2, 2, [])
    for kind in (-1, 1):
        with refused(ValueError, "jobs", kind, 1):
            mesh.allocate([[(1, 1)]], [kind], [0], "first", 1)
    for order in ([0, 0], [1], [-1]):
        with refused(ValueError, "order", "once"):
            mesh.allocate([[(1, 1)]], [0], order, "first", 1)
    with refused(ValueError, "placed", "each"):
        mesh.improve([[(1, 1)]], [0], [], 1, 0)


def test_a_transposed_job_fits_where_the_job_does_not() -> None:
    job = BoardJob("wide", 1, 6)
    assert greedy(Boards(3, 8), [job]).waiting == (job,)
    found = greedy(Boards(3, 8), [job], Heuristics(ShapeRules(transpose=True)))
    assert found.placed[job].shape == (6, 1)
    found = greedy(Boards(3, 8), [job], Heuristics(ShapeRules(most_aspect=8.0)))
    assert found.placed[job].shape == (2, 3)


def test_sorting_places_a_large_job_that_small_ones_would_split() -> None:
    boards = Boards(4, 4)
    jobs = [BoardJob("small", 1, 1), BoardJob("large", 4, 3), BoardJob("wide", 3, 1)]
    tall = BoardJob("whole", 4, 4)
    assert greedy(boards, [jobs[0], tall]).waiting == (tall,)
    assert greedy(boards, [jobs[0], tall], Heuristics(sort=True)).waiting == (jobs[0],)
    assert greedy(boards, jobs, Heuristics(sort=True)).utilisation == 1


@settings(max_examples=60)
@given(problems(), st.data())
def test_running_jobs_keep_their_boards(
    problem: tuple[Boards, list[BoardJob]], data: st.DataObject
) -> None:
    boards, jobs = problem
    half = len(jobs) // 2
    running = dict(greedy(boards, jobs[:half]).placed)
    board = data.draw(st.tuples(st.integers(0, boards.rows - 1), st.just(0)))
    boards = boards.with_failed(frozenset({board}))
    for scheme in SCHEMES.values():
        found = scheme(boards, jobs[half:], Heuristics(), running).validate()
        assert {job: found.placed[job] for job in running} == running
        new = {b for job in jobs[half:] if job in found.placed for b in found.placed[job].boards()}
        assert not new & boards.failed
        assert set(found.broken) <= set(running)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(is_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        for scheme in SCHEMES.values():
            scheme(Boards(2, 2), [BoardJob("a", 1, 1)])
            assert gc.isenabled() == is_enabled
            with refused(ValueError, "twice"):
                scheme(Boards(2, 2), [BoardJob("a", 1, 1)] * 2)
            assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_jobs_of_one_name_are_refused() -> None:
    with refused(ValueError, "a", "twice"):
        ruin_and_recreate(Boards(4, 4), [BoardJob("a", 1, 1), BoardJob("a", 1, 2)])


@pytest.mark.parametrize(
    ("job", "rules", "shapes"),
    [
        (BoardJob("j", 4, 16), ShapeRules(), [(4, 16)]),
        (BoardJob("j", 4, 16), ShapeRules(transpose=True), [(4, 16), (16, 4)]),
        (BoardJob("j", 4, 16), ShapeRules(most_aspect=8), [(4, 16), (8, 8)]),
        (BoardJob("j", 4, 16), ShapeRules(most_aspect=16), [(4, 16), (8, 8), (2, 32)]),
        (BoardJob.square("j", 12), ShapeRules(True, 3), [(3, 4), (4, 3), (2, 6), (6, 2)]),
        (BoardJob.square("j", 13), ShapeRules(True, 8), [(1, 13), (13, 1)]),
    ],
)
def test_shapes_are_tried_in_their_order(
    job: BoardJob, rules: ShapeRules, shapes: list[tuple[int, int]]
) -> None:
    assert rules.shapes(job, 32, 32) == shapes


def test_a_number_of_boards_is_as_square_as_it_can_be() -> None:
    for boards in range(1, 200):
        job = BoardJob.square("j", boards)
        assert job.size == boards
        assert job.rows <= job.columns
        assert not any(
            boards % r == 0 and r <= boards // r for r in range(job.rows + 1, boards + 1)
        )


@pytest.mark.parametrize("rows", [(0, 0), (1, 0), (-1,), (4,)])
def test_boards_are_taken_by_ascending_numbers_only(rows: tuple[int, ...]) -> None:
    mesh = _core.BoardMesh(4, 4, [(3, 3)])
    for wanted in (
        SimpleNamespace(rows=rows, columns=(0,)),
        SimpleNamespace(rows=(0,), columns=rows),
    ):
        with refused(ValueError, 0, 4):
            mesh.take(cast("SubMesh", wanted))
    with refused(ValueError, "boards"):
        mesh.take(SubMesh((2, 3), (3,)))
    with refused(ValueError, "boards"):
        mesh.release(SubMesh((0,), (0,)))
    assert mesh.free_boards == 15
