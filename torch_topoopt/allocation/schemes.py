"""The greedy allocation of section IV-A, and a search that is never worse.

Where the text leaves a choice: S starts at the first row that has enough columns, and only there
("the first row"); further rows are tried from top to bottom, each once; of the columns that all
rows of S have, the job gets the first. See `Fit` in csrc/allocation/board_mesh.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch_topoopt import _core
from torch_topoopt.allocation.allocation import Allocation
from torch_topoopt.allocation.board_job import ShapeRules
from torch_topoopt.allocation.boards import SubMesh
from torch_topoopt.allocation.tree_traffic import (
    DEFAULT_BOARDS_PER_LEAF,
    all_to_all_bytes,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.allocation.board_job import BoardJob, Shape
    from torch_topoopt.allocation.boards import Boards

Fit = Literal["first", "all-starts", "local", "tight"]

_ROUNDS = 300  # of ruin and recreate
_Places = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Heuristics:
    """Those of section IV-A. `all_starts` is ours: S may begin at any row."""

    shapes: ShapeRules = field(default_factory=ShapeRules)
    sort: bool = False
    locality: bool = False
    all_starts: bool = False
    boards_per_leaf: int = DEFAULT_BOARDS_PER_LEAF

    def __post_init__(self) -> None:
        if self.boards_per_leaf < 1:
            raise ValueError(f"boards per leaf: {self.boards_per_leaf} is not at least 1")


PLAIN = Heuristics()
"""None of them."""


def mesh_of(boards: Boards, running: Mapping[BoardJob, SubMesh]) -> _core.BoardMesh:
    """The boards that are free beside those of `running` jobs."""
    mesh = _core.BoardMesh(boards.rows, boards.columns, sorted(boards.failed))
    healthy = [o for o in running.values() if not boards.failed or mesh.is_free(places_of(o))]
    if len(healthy) < len(running):  # jobs on failed boards: their other boards are taken, too
        every = {b for own in running.values() for b in own.boards()}
        return _core.BoardMesh(boards.rows, boards.columns, sorted(boards.failed | every))
    for own in healthy:
        mesh.take(places_of(own))
    return mesh


def greedy(
    boards: Boards,
    jobs: Sequence[BoardJob],
    heuristics: Heuristics = PLAIN,
    running: Mapping[BoardJob, SubMesh] | None = None,
    seed: int = 0,
) -> Allocation:
    """Jobs one after the other, each in the first sub-mesh that is found for it; `seed` unused.

    Raises ValueError for jobs of one name.
    """
    return _Problem(boards, jobs, heuristics, running or {}).greedy()[1]


def ours(
    boards: Boards,
    jobs: Sequence[BoardJob],
    heuristics: Heuristics = PLAIN,
    running: Mapping[BoardJob, SubMesh] | None = None,
    seed: int = 0,
) -> Allocation:
    """The best of the greedy allocation and others that know all jobs, then ruin and recreate.

    Never fewer boards than `greedy` with the same heuristics. Where all jobs have boards, the
    allocation whose all-to-alls cross the upper tree levels least. Raises ValueError as it does.
    """
    problem = _Problem(boards, jobs, heuristics, running or {})
    best_mesh, best = problem.greedy()
    largest, longest = _largest_first(jobs), _longest_first(jobs)
    tries: tuple[tuple[list[int], Fit], ...] = (
        *((largest, "local"), (largest, "tight"), (largest, "all-starts")),
        *((longest, "tight"), (longest, "all-starts")),
    )
    enough = min(sum(job.size for job in jobs), best_mesh.free_boards + _new(best, running))
    for order, fit in tries:
        if _new(best, running) == enough and not heuristics.locality:
            break
        mesh, found = problem.placed(order, fit)
        if _merit(found, heuristics) > _merit(best, heuristics):
            best, best_mesh = found, mesh
    if _new(best, running) < enough:
        best = problem.improved(best, best_mesh, seed)
    return best


SCHEMES: dict[str, Callable[..., Allocation]] = {"greedy": greedy, "ours": ours}


class _Problem:
    """Jobs to place beside those that run."""

    def __init__(
        self,
        boards: Boards,
        jobs: Sequence[BoardJob],
        heuristics: Heuristics,
        running: Mapping[BoardJob, SubMesh],
    ) -> None:
        seen: set[str] = set()
        for job in (*running, *jobs):
            if job.name in seen:
                raise ValueError(f"job {job.name}: stands twice")
            seen.add(job.name)
        self._boards, self._jobs, self._running = boards, jobs, running
        self._heuristics = heuristics
        known: dict[Shape, list[Shape]] = {}
        for job in jobs:
            own = (job.rows, job.columns)
            if own not in known:
                known[own] = heuristics.shapes.shapes(job, boards.rows, boards.columns)
        self._shapes = [known[job.rows, job.columns] for job in jobs]

    def greedy(self) -> tuple[_core.BoardMesh, Allocation]:
        """As `placed`, in the order and with the fit that the heuristics say."""
        heuristics = self._heuristics
        fit: Fit = "first"
        if heuristics.locality:
            fit = "local"
        elif heuristics.all_starts:
            fit = "all-starts"
        jobs = self._jobs
        return self.placed(_largest_first(jobs) if heuristics.sort else [*range(len(jobs))], fit)

    def placed(self, order: list[int], fit: Fit) -> tuple[_core.BoardMesh, Allocation]:
        """What each job gets, and the boards that are free then."""
        mesh = mesh_of(self._boards, self._running)
        per_leaf = self._heuristics.boards_per_leaf
        return mesh, self._allocation(mesh.allocate(self._shapes, order, fit, per_leaf))

    def improved(self, found: Allocation, mesh: _core.BoardMesh, seed: int) -> Allocation:
        """After ruin and recreate, for which `mesh` is changed."""
        places = [
            places_of(found.placed[job]) if job in found.placed else ([], []) for job in self._jobs
        ]
        return self._allocation(mesh.improve(self._shapes, places, _ROUNDS, seed))

    def _allocation(self, places: _Places) -> Allocation:
        placed = {
            job: SubMesh(tuple(rows), tuple(columns))
            for job, (rows, columns) in zip(self._jobs, places, strict=True)
            if rows
        }
        waiting = tuple(job for job in self._jobs if job not in placed)
        return Allocation(self._boards, {**self._running, **placed}, waiting)


def places_of(own: SubMesh) -> tuple[list[int], list[int]]:
    """As _core takes a sub-mesh."""
    return list(own.rows), list(own.columns)


def _largest_first(jobs: Sequence[BoardJob]) -> list[int]:
    return sorted(range(len(jobs)), key=lambda i: -jobs[i].size)


def _longest_first(jobs: Sequence[BoardJob]) -> list[int]:
    return sorted(
        range(len(jobs)), key=lambda i: (-max(jobs[i].rows, jobs[i].columns), -jobs[i].size)
    )


def _new(found: Allocation, running: Mapping[BoardJob, SubMesh] | None) -> int:
    """Boards of jobs that did not run before."""
    return sum(own.size for job, own in found.placed.items() if job not in (running or {}))


def _merit(found: Allocation, heuristics: Heuristics) -> tuple[int, float]:
    boards = sum(own.size for own in found.placed.values())
    if not heuristics.locality:
        return boards, 0.0
    crossing = (all_to_all_bytes(o, heuristics.boards_per_leaf) for o in found.placed.values())
    return boards, -total(crossing).upper
