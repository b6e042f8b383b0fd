"""The result of `topoopt allocate`, printed and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import counted, format_bytes, format_seconds
from torch_topoopt.shared_networks.allocation.allocation import Allocation
from torch_topoopt.shared_networks.allocation.boards import ranges_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.shared_networks.allocation.defragment import DefragmentationPlan, MoveCost

_MOST_ROWS = 60  # of a table for people


@dataclass(frozen=True)
class Defragmentation:
    """The steps, their cost, and the allocation after them."""

    JSON_FIELDS: ClassVar = (
        "plan.steps", "jobs_moved", "sent_bytes", "transfer_seconds=cost.transfer_s", "seconds",
        "plan.after",
    )  # fmt: skip

    plan: DefragmentationPlan
    cost: MoveCost

    def jobs_moved(self) -> int:
        return sum(move.before is not None for move in self.plan.moves)

    def sent_bytes(self) -> float:
        return self.plan.sent_bytes(self.cost)

    def seconds(self) -> float:
        return self.plan.seconds(self.cost)


@dataclass(frozen=True)
class BoardsOfJobs:
    """The result of `topoopt allocate`; entries of "placement" are valid jobs for FILE, except for
    "virtual"."""

    JSON_FIELDS: ClassVar = (
        "scheme", "seconds", *within("found", *Allocation.JSON_FIELDS), "defragmentation",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("defragmentation",)

    found: Allocation
    scheme: str
    seconds: float
    defragmentation: Defragmentation | None


def show(terminal: Terminal, found: Allocation, scheme: str) -> None:
    """The allocation for people."""
    listed = list(found.placed.items())
    rows = [
        (
            job.name,
            own.shape_text,
            ranges_text(own.rows),
            ranges_text(own.columns),
        )
        for job, own in listed[:_MOST_ROWS]
    ]
    if rows:
        terminal.table("boards of jobs", ("job", "shape", "rows", "columns"), rows)
    if len(listed) > _MOST_ROWS:
        terminal.line(f"and {len(listed) - _MOST_ROWS} more jobs (--json has them all)")
    if found.waiting:
        names = [f"{job.name} ({job.shape_text})" for job in found.waiting]
        terminal.line(f"{counted(len(names), 'job')} did not fit: {_some(names)}")
    if found.broken:
        names = [job.name for job in found.broken]
        terminal.line(f"on failed boards: {_some(names)}; --defragment moves them")
    terminal.line(
        f"utilisation {found.utilisation:.1%}: {found.allocated} of {found.boards.working} working "
        f"boards, {len(found.boards.failed)} failed ({scheme})"
    )


def show_moves(terminal: Terminal, moves: Defragmentation) -> None:
    """The defragmentation for people."""
    plan = moves.plan
    rows = [
        (
            str(number),
            move.job.name,
            "starts" if move.before is None else move.before.text(),
            move.after.text(),
            str(move.sent()),
        )
        for number, step in enumerate(plan.steps, 1)
        for move in step
    ]
    if not rows:
        terminal.line("defragmentation: no moves would help")
        return
    heads = ("step", "job", "from", "to", "boards sent")
    terminal.table("defragmentation", heads, rows[:_MOST_ROWS])
    terminal.line(
        f"{counted(moves.jobs_moved(), 'job')} moved in {counted(len(plan.steps), 'step')}: "
        f"{format_bytes(moves.sent_bytes())} in {format_seconds(moves.seconds())}; "
        f"utilisation {plan.after.utilisation:.1%} afterwards"
    )


def draw(path: str, found: Allocation) -> None:
    """Writes the picture; raises InputError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from torch_topoopt.shared_networks.allocation.drawing import draw_boards

    figure = Figure(figsize=(8, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_boards(axes, found)
    axes.set_title(
        f"{counted(len(found.placed), 'job')} on {found.boards.columns}x{found.boards.rows} "
        f"boards, {len(found.boards.failed)} failed: utilisation {found.utilisation:.1%}"
    )
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"plot: {path}: cannot be written: {error.strerror}") from None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
