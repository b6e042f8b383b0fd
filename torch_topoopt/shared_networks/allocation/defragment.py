"""Moves that free boards for waiting jobs: checkpoint, move, restart (section IV-A b)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING, ClassVar

import networkx as nx

from torch_topoopt.shared_networks.allocation.allocation import Allocation
from torch_topoopt.shared_networks.allocation.boards import SubMesh
from torch_topoopt.shared_networks.allocation.schemes import (
    PLAIN,
    Heuristics,
    mesh_of,
    ruin_and_recreate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt import _core
    from torch_topoopt.shared_networks.allocation.board_job import BoardJob
    from torch_topoopt.shared_networks.allocation.boards import Board, Boards

_MOST_TRIES = 4000  # sets of jobs to move away for one waiting job
_MOST_MOVED = 3  # jobs at a time


@dataclass(frozen=True)
class MoveCost:
    """The cost of a move: `checkpoint_bytes` of each accelerator, at `global_share` of its rate.

    `accelerator_gbps` is the rate of all its ports; `restart_s` the seconds of stopping and
    starting, without the transfer. `accelerators_per_board`: a x b. Raises ValueError.
    """

    checkpoint_bytes: float = 64 * 2.0**30
    accelerator_gbps: float = 6400.0
    global_share: float = 0.1
    restart_s: float = 0.0
    accelerators_per_board: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.global_share <= 1:
            raise ValueError(f"global_share: {self.global_share:g} is not above 0 and at most 1")
        if not 0 <= self.checkpoint_bytes < math.inf:
            raise ValueError(f"checkpoint_bytes: {self.checkpoint_bytes:g} is not 0 or more")
        if not 0 < self.accelerator_gbps < math.inf:
            raise ValueError(f"accelerator_gbps: {self.accelerator_gbps:g} is not above 0")
        if not 0 <= self.restart_s < math.inf:
            raise ValueError(f"restart_s: {self.restart_s:g} is not 0 or more")
        if self.accelerators_per_board < 1:
            raise ValueError(
                f"accelerators_per_board: {self.accelerators_per_board} is not 1 or more"
            )

    @property
    def transfer_s(self) -> float:
        """Seconds of the transfer: all accelerators send at once, each its own checkpoint."""
        return self.checkpoint_bytes * 8 / (self.accelerator_gbps * 1e9 * self.global_share)


@dataclass(frozen=True)
class JobMove:
    """A job moves from `before` to `after`; without `before` it starts there."""

    JSON_FIELDS: ClassVar = ("job.name", "from=before", "to=after", "boards_sent=sent")

    job: BoardJob
    before: SubMesh | None
    after: SubMesh

    def sent(self) -> int:
        """Boards whose checkpoint moves to another board: virtual board n was elsewhere."""
        if self.before is None:
            return 0
        pairs = zip(self.before.boards(), self.after.boards(), strict=True)
        return sum(old != new for old, new in pairs)


@dataclass(frozen=True)
class DefragmentationPlan:
    """Steps in sequence. All jobs of a step stop before any of them starts again, so that they may
    exchange boards; `after` is the final allocation."""

    steps: tuple[tuple[JobMove, ...], ...]
    after: Allocation

    @property
    def moves(self) -> list[JobMove]:
        """All moves, in order, including those of jobs that start."""
        return [move for step in self.steps for move in step]

    def seconds(self, cost: MoveCost) -> float:
        """Seconds of all steps. A step takes one transfer and one restart if it moves a job."""
        moving = [step for step in self.steps if any(m.before is not None for m in step)]
        sending = sum(any(move.sent() for move in step) for step in moving)
        return sending * cost.transfer_s + len(moving) * cost.restart_s

    def sent_bytes(self, cost: MoveCost) -> float:
        """Bytes of the checkpoints that move to another board."""
        boards = sum(move.sent() for move in self.moves)
        return boards * cost.accelerators_per_board * cost.checkpoint_bytes


def execute(allocation: Allocation, plan: DefragmentationPlan) -> Iterator[Allocation]:
    """The allocation after each stop and each start of `plan`.

    Raises ValueError where a board would get two jobs, or a job a failed board.
    """
    placed = dict(allocation.placed)
    waiting = list(allocation.waiting)
    for step in plan.steps:
        for move in step:
            if move.before is not None:
                if placed.pop(move.job, None) != move.before:
                    raise ValueError(f"job {move.job.name}: is not where the plan says")
                waiting.append(move.job)
                yield Allocation(allocation.boards, dict(placed), tuple(waiting)).validate()
        for move in step:
            if any(board in allocation.boards.failed for board in move.after.boards()):
                raise ValueError(f"job {move.job.name}: would start on a failed board")
            placed[move.job] = move.after
            waiting.remove(move.job)
            yield Allocation(allocation.boards, dict(placed), tuple(waiting)).validate()


def defragment(
    allocation: Allocation, heuristics: Heuristics = PLAIN, seed: int = 0
) -> DefragmentationPlan:
    """Moves and starts after which more jobs run, or none.

    Jobs on failed boards move first, with the fewest boards moved. Then each waiting job, the
    largest first, gets free boards, or those of up to three other jobs that find new ones: the
    smallest set that works. `ruin-recreate` then places the remaining jobs among all others, if
    every running job keeps a place. A job stays where it can.
    """
    placed = dict(allocation.placed)
    for job in allocation.broken:
        moved = _repaired(allocation.boards, placed, job, heuristics)
        if moved is None:
            moved = _made_room(allocation.boards, placed, job, heuristics)
        if moved is not None:
            placed.update(moved)
    still_broken = set(Allocation(allocation.boards, placed).broken)
    for job in sorted(allocation.waiting, key=lambda job: -job.size):
        found = _made_room(allocation.boards, placed, job, heuristics)
        if found is not None:
            placed.update(found)
    if any(job not in placed for job in allocation.waiting) and not still_broken:
        placed = _all_afresh(allocation, placed, heuristics, seed)
    placed = _fewest_moves(allocation, placed)
    waiting = tuple(job for job in allocation.waiting if job not in placed)
    after = Allocation(allocation.boards, placed, waiting).validate()
    return DefragmentationPlan(_steps(allocation, after), after)


def _repaired(
    boards: Boards, placed: Mapping[BoardJob, SubMesh], job: BoardJob, heuristics: Heuristics
) -> dict[BoardJob, SubMesh] | None:
    """Replaces each row with a failed board, or each column; else uses any place."""
    own = placed[job]
    mesh = mesh_of(boards, {j: o for j, o in placed.items() if j != job})
    hit = [b for b in own.boards() if b in boards.failed]
    choices = []
    rows = _exchanged(own.rows, {r for r, _ in hit}, boards.rows, own.columns, mesh, by_row=True)
    if rows is not None:
        choices.append(SubMesh(rows, own.columns))
    columns = _exchanged(
        own.columns, {c for _, c in hit}, boards.columns, own.rows, mesh, by_row=False
    )
    if columns is not None:
        choices.append(SubMesh(own.rows, columns))
    if not choices:
        found = _find(mesh, job, boards, heuristics)
        return None if found is None else {job: found}
    return {job: min(choices, key=lambda after: JobMove(job, own, after).sent())}


# parameters: one side of a sub-mesh, and the mesh that it is in
def _exchanged(
    lines: tuple[int, ...],
    bad: set[int],
    count: int,
    across: tuple[int, ...],
    mesh: _core.BoardMesh,
    *,
    by_row: bool,
) -> tuple[int, ...] | None:
    """`lines` with free ones instead of the `bad`; None if there are too few."""
    kept = [line for line in lines if line not in bad]
    free = [
        line
        for line in range(count)
        if line not in lines
        and mesh.is_free(SubMesh((line,), across) if by_row else SubMesh(across, (line,)))
    ]
    if len(free) < len(bad):
        return None
    return tuple(sorted([*kept, *free[: len(bad)]]))


def _made_room(
    boards: Boards, placed: Mapping[BoardJob, SubMesh], job: BoardJob, heuristics: Heuristics
) -> dict[BoardJob, SubMesh] | None:
    """New places of `job` and of the jobs that make room for it; None if none were found."""
    others = {j: own for j, own in placed.items() if j != job}
    mesh = mesh_of(boards, others)
    found = _find(mesh, job, boards, heuristics)
    if found is not None:
        return {job: found}
    if job.size > mesh.free_boards:
        return None  # moves do not add boards
    healthy = set(others) - set(Allocation(boards, others).broken)
    by_size = sorted(healthy, key=lambda other: (other.size, other.name))
    for away in islice(_sets_by_size(by_size), _MOST_TRIES):
        moved = _exchange(boards, mesh, job, {j: others[j] for j in away}, heuristics)
        if moved is not None:
            return moved
    return None


def _sets_by_size(jobs: Sequence[BoardJob]) -> Iterator[tuple[BoardJob, ...]]:
    """Sets of one job, of two and of three, those with the fewest boards first."""
    few = jobs[:40]  # limits the sets of two and three
    sets = [(job,) for job in jobs]
    more = [s for count in range(2, _MOST_MOVED + 1) for s in combinations(few, count)]
    yield from sorted([*sets, *more], key=lambda s: (sum(job.size for job in s), len(s)))


def _exchange(
    boards: Boards,
    mesh: _core.BoardMesh,
    job: BoardJob,
    away: Mapping[BoardJob, SubMesh],
    heuristics: Heuristics,
) -> dict[BoardJob, SubMesh] | None:
    """Places for `job` and for the jobs `away`, once these are gone; restores `mesh`."""
    for own in away.values():
        mesh.release(own)
    moved: dict[BoardJob, SubMesh] = {}
    for each in (job, *sorted(away, key=lambda other: -other.size)):
        found = away.get(each)
        if found is None or not mesh.is_free(found):
            found = _find(mesh, each, boards, heuristics)
        if found is None:
            break
        mesh.take(found)
        moved[each] = found
    for own in moved.values():
        mesh.release(own)
    for own in away.values():
        mesh.take(own)
    return moved if len(moved) == len(away) + 1 else None


def _find(
    mesh: _core.BoardMesh, job: BoardJob, boards: Boards, heuristics: Heuristics
) -> SubMesh | None:
    fit = "local" if heuristics.locality else "tight"
    for rows, columns in heuristics.shapes.shapes(job, boards.rows, boards.columns):
        found = mesh.find(rows, columns, fit, heuristics.boards_per_leaf)
        if found is not None:
            return found
    return None


def _all_afresh(
    allocation: Allocation,
    placed: dict[BoardJob, SubMesh],
    heuristics: Heuristics,
    seed: int,
) -> dict[BoardJob, SubMesh]:
    """All jobs placed again, if more of them then have boards and no running one loses its."""
    jobs = [*allocation.placed, *allocation.waiting]
    found = ruin_and_recreate(allocation.boards, jobs, heuristics, seed=seed)
    complete = all(job in found.placed for job in allocation.placed)
    better = found.allocated > sum(own.size for own in placed.values())
    return dict(found.placed) if complete and better else placed


def _fewest_moves(
    allocation: Allocation, placed: dict[BoardJob, SubMesh]
) -> dict[BoardJob, SubMesh]:
    """Keeps jobs on their old boards if these work and no other job has got them."""
    kept = dict(placed)
    if not any(job not in allocation.placed for job in placed) and not allocation.broken:
        return dict(allocation.placed)  # no gain
    owners: dict[Board, BoardJob] = {b: j for j, own in kept.items() for b in own.boards()}
    for job, old in allocation.placed.items():
        if kept[job] == old or any(
            b in allocation.boards.failed or owners.get(b, job) is not job for b in old.boards()
        ):
            continue
        for board in kept[job].boards():
            del owners[board]
        owners.update(dict.fromkeys(old.boards(), job))
        kept[job] = old
    return kept


def _steps(before: Allocation, after: Allocation) -> tuple[tuple[JobMove, ...], ...]:
    """Jobs that block others move first; jobs that block each other move together."""
    moves = {
        job: JobMove(job, before.placed.get(job), own)
        for job, own in after.placed.items()
        if before.placed.get(job) != own
    }
    order: nx.DiGraph[BoardJob] = nx.DiGraph()
    order.add_nodes_from(moves)
    for job, move in moves.items():
        for board in move.after.boards():
            holder = before.holder(board)
            if holder is not None and holder != job:
                order.add_edge(holder, job)
    groups = nx.condensation(order)
    number = {job: i for i, job in enumerate(moves)}
    first = {group: min(number[j] for j in groups.nodes[group]["members"]) for group in groups}
    # A level has no dependencies inside, so it is one step.
    levels = nx.topological_generations(groups)
    return tuple(
        tuple(
            moves[job]
            for group in sorted(level, key=first.__getitem__)
            for job in sorted(groups.nodes[group]["members"], key=number.__getitem__)
        )
        for level in levels
    )
