"""The assignment of boards to jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.plan.result_json import within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.shared_networks.allocation.board_job import BoardJob
    from torch_topoopt.shared_networks.allocation.boards import Board, Boards, SubMesh


@dataclass(frozen=True)
class JobOnBoards:
    """A job and its boards."""

    JSON_FIELDS: ClassVar = (
        "job.name",
        *within("own", "shape=shape_text", "rows", "columns", "virtual"),
    )

    job: BoardJob
    own: SubMesh


@dataclass(frozen=True)
class Allocation:
    """Sub-meshes by job, and the jobs without one, in order.

    A job whose board has failed keeps its sub-mesh until it is moved or released: it is `broken`,
    and `utilisation` does not count it.
    """

    JSON_FIELDS: ClassVar = (
        "utilisation", "working_boards=boards.working", "allocated_boards=allocated",
        "failed_boards=boards.listed_failed", "placement", "not_placed=waiting", "on_failed_boards",
    )  # fmt: skip

    boards: Boards
    placed: Mapping[BoardJob, SubMesh]
    waiting: tuple[BoardJob, ...] = ()

    @cached_property
    def _holders(self) -> dict[Board, BoardJob]:
        return {board: job for job, own in self.placed.items() for board in own.boards()}

    def validate(self) -> Self:
        """Raises ValueError unless each job has its number of boards, on existing boards, and no
        board has two jobs."""
        both = [job.name for job in self.waiting if job in self.placed]
        if both:
            raise ValueError(f"job {both[0]}: has boards and waits for them")
        for job, own in self.placed.items():
            if own.rows[-1] >= self.boards.rows or own.columns[-1] >= self.boards.columns:
                raise ValueError(
                    f"job {job.name}: rows {list(own.rows)} and columns {list(own.columns)} are "
                    f"not of {self.boards.rows} rows and {self.boards.columns} columns"
                )
            if own.size != job.size:
                raise ValueError(f"job {job.name}: has {own.size} boards, not {job.size}")
        if len(self._holders) < sum(own.size for own in self.placed.values()):
            raise ValueError(self._taken_twice())
        return self

    def _taken_twice(self) -> str:
        """The first board with two jobs, in words."""
        taken: dict[Board, BoardJob] = {}
        return next(
            f"job {job.name}: board [{board[0]}, {board[1]}] has job {other.name}"
            for job, own in self.placed.items()
            for board in own.boards()
            if (other := taken.setdefault(board, job)) is not job
        )

    @property
    def broken(self) -> list[BoardJob]:
        """Jobs on a failed board."""
        hit = {self._holders[b] for b in self.boards.failed if b in self._holders}
        return [job for job in self.placed if job in hit]

    def on_failed_boards(self) -> list[str]:
        return [job.name for job in self.broken]

    def placement(self) -> list[JobOnBoards]:
        return [JobOnBoards(*item) for item in self.placed.items()]

    @property
    def allocated(self) -> int:
        """Boards of jobs that can run."""
        return sum(own.size for own in self.placed.values()) - sum(j.size for j in self.broken)

    @property
    def utilisation(self) -> float:
        """The share of working boards with a job (section IV-B); 0 where none works."""
        return self.allocated / self.boards.working if self.boards.working else 0.0

    def holder(self, board: Board) -> BoardJob | None:
        """The job of a board."""
        return self._holders.get(board)

    def release(self, job: BoardJob) -> Allocation:
        """Without that job, which has ended. Raises KeyError if it has no boards."""
        left = dict(self.placed)
        del left[job]
        return Allocation(self.boards, left, self.waiting)

    def fail(self, board: Board) -> Allocation:
        """The same jobs after a board has failed. Raises ValueError if there is no such board."""
        failed = self.boards.with_failed(frozenset({board}))
        return Allocation(failed, self.placed, self.waiting)
