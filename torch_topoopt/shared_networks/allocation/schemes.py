"""The greedy allocation of section IV-A, and a search that is never worse.

Where the text leaves a choice: S starts only at the first row with enough columns ("the first
row"); further rows are tried once each, from top to bottom; the job gets the first of the columns
common to all rows of S. See `Fit` in csrc/allocation/board_mesh.h.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch_topoopt import _core
from torch_topoopt.shared_networks.allocation.allocation import Allocation
from torch_topoopt.shared_networks.allocation.board_job import BoardJob, ShapeRules
from torch_topoopt.shared_networks.allocation.boards import SubMesh
from torch_topoopt.shared_networks.allocation.tree_traffic import (
    DEFAULT_BOARDS_PER_LEAF,
    all_to_all_bytes,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch_topoopt.shared_networks.allocation.board_job import Shape
    from torch_topoopt.shared_networks.allocation.boards import Boards

Fit = Literal["first", "all-starts", "local", "tight"]

_ROUNDS = 300  # of ruin and recreate
_Places = list[SubMesh | None]  # of each job


@dataclass(frozen=True)
class Heuristics:
    """The heuristics of section IV-A, and `all_starts`: S may begin at any row."""

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
    """The free boards, given the `running` jobs."""
    mesh = _core.BoardMesh(boards.rows, boards.columns, sorted(boards.failed))
    healthy = [own for own in running.values() if not boards.failed or mesh.is_free(own)]
    if len(healthy) < len(running):  # boards of jobs on failed boards are taken, too
        every = {b for own in running.values() for b in own.boards()}
        return _core.BoardMesh(boards.rows, boards.columns, sorted(boards.failed | every))
    for own in healthy:
        mesh.take(own)
    return mesh


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses garbage collection: hundreds of thousands of sub-meshes are made, none is garbage, and
    scanning all jobs for them takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_collection()
def greedy(
    boards: Boards,
    jobs: Sequence[BoardJob],
    heuristics: Heuristics = PLAIN,
    running: Mapping[BoardJob, SubMesh] | None = None,
    seed: int = 0,
) -> Allocation:
    """Each job in turn gets the first sub-mesh found for it; `seed` is unused.

    Raises ValueError for jobs of one name.
    """
    problem = _Problem(boards, jobs, heuristics, running or {})
    return problem.allocation(problem.greedy()[1])


@_no_collection()
def ruin_and_recreate(
    boards: Boards,
    jobs: Sequence[BoardJob],
    heuristics: Heuristics = PLAIN,
    running: Mapping[BoardJob, SubMesh] | None = None,
    seed: int = 0,
) -> Allocation:
    """The best of the greedy allocation and others that know all jobs, then ruin and recreate.

    Never fewer boards than `greedy` with the same heuristics. If all jobs have boards, the
    allocation whose all-to-alls cross the upper tree levels least. Raises ValueError as it does.
    """
    problem = _Problem(boards, jobs, heuristics, running or {})
    best_mesh, best = problem.greedy()
    largest, longest = _largest_first(jobs), _longest_first(jobs)
    tries: tuple[tuple[list[int], Fit], ...] = (
        *((largest, "local"), (largest, "tight"), (largest, "all-starts")),
        *((longest, "tight"), (longest, "all-starts")),
    )
    least_free = problem.least_free
    for order, fit in tries:
        if best_mesh.free_boards == least_free and not heuristics.locality:
            break
        mesh, found = problem.placed(order, fit)
        if problem.merit(mesh, found) > problem.merit(best_mesh, best):
            best, best_mesh = found, mesh
    if best_mesh.free_boards > least_free:
        best = problem.improved(best, best_mesh, seed)
    return problem.allocation(best)


SCHEMES: dict[str, Callable[..., Allocation]] = {
    "greedy": greedy,
    "ruin-recreate": ruin_and_recreate,
}


class _Problem:
    """Jobs to place next to running ones."""

    def __init__(
        self,
        boards: Boards,
        jobs: Sequence[BoardJob],
        heuristics: Heuristics,
        running: Mapping[BoardJob, SubMesh],
    ) -> None:
        names = {job.name for job in jobs} | {job.name for job in running}
        if len(names) < len(jobs) + len(running):
            counts = Counter(job.name for job in (*running, *jobs))
            raise ValueError(f"job {counts.most_common(1)[0][0]}: is listed twice")
        self._boards, self._jobs, self._running = boards, jobs, running
        self._heuristics = heuristics
        # Many jobs share few board shapes.
        known: dict[Shape, int] = {}
        self._kind_of = [known.setdefault((job.rows, job.columns), len(known)) for job in jobs]
        self._kinds = [
            heuristics.shapes.shapes(BoardJob("", *own), boards.rows, boards.columns)
            for own in known
        ]

    @property
    def least_free(self) -> int:
        """Boards that are free when all jobs have theirs, or none is free."""
        free = mesh_of(self._boards, self._running).free_boards
        return max(0, free - sum(job.rows * job.columns for job in self._jobs))

    def greedy(self) -> tuple[_core.BoardMesh, _Places]:
        """As `placed`, in the order and with the fit of the heuristics."""
        heuristics = self._heuristics
        fit: Fit = "first"
        if heuristics.locality:
            fit = "local"
        elif heuristics.all_starts:
            fit = "all-starts"
        jobs = self._jobs
        return self.placed(_largest_first(jobs) if heuristics.sort else [*range(len(jobs))], fit)

    def placed(self, order: list[int], fit: Fit) -> tuple[_core.BoardMesh, _Places]:
        """The free boards afterwards, and the place of each job."""
        mesh = mesh_of(self._boards, self._running)
        per_leaf = self._heuristics.boards_per_leaf
        return mesh, mesh.allocate(self._kinds, self._kind_of, order, fit, per_leaf)

    def improved(self, places: _Places, mesh: _core.BoardMesh, seed: int) -> _Places:
        """After ruin and recreate, which changes `mesh`."""
        return mesh.improve(self._kinds, self._kind_of, places, _ROUNDS, seed)

    def merit(self, mesh: _core.BoardMesh, places: _Places) -> tuple[int, float]:
        """The objective to maximise: boards with a job, then, with locality, bytes of all-to-alls
        within the lowest level of the trees."""
        if not self._heuristics.locality:
            return -mesh.free_boards, 0.0
        per_leaf = self._heuristics.boards_per_leaf
        every = (*self._running.values(), *filter(None, places))
        return -mesh.free_boards, -total(all_to_all_bytes(own, per_leaf) for own in every).upper

    def allocation(self, places: _Places) -> Allocation:
        """The boards of the running jobs, and of those placed."""
        placed = dict(self._running)
        waiting = []
        for job, own in zip(self._jobs, places, strict=True):
            if own is None:
                waiting.append(job)
            else:
                placed[job] = own
        return Allocation(self._boards, placed, tuple(waiting))


def _largest_first(jobs: Sequence[BoardJob]) -> list[int]:
    sizes = [job.rows * job.columns for job in jobs]
    return sorted(range(len(jobs)), key=sizes.__getitem__, reverse=True)


def _longest_first(jobs: Sequence[BoardJob]) -> list[int]:
    return sorted(
        range(len(jobs)), key=lambda i: (-max(jobs[i].rows, jobs[i].columns), -jobs[i].size)
    )
