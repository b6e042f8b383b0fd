"""What `topoopt allocate` prints and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.units import counted, format_bytes, format_seconds
from torch_topoopt.shared_networks.allocation.boards import ranges_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.shared_networks.allocation.allocation import Allocation
    from torch_topoopt.shared_networks.allocation.board_job import BoardJob
    from torch_topoopt.shared_networks.allocation.boards import SubMesh
    from torch_topoopt.shared_networks.allocation.defragment import DefragmentationPlan, MoveCost

_MOST_ROWS = 60  # of a table for people


def as_json(found: Allocation) -> dict[str, Any]:
    """The allocation; entries of "placement" are jobs that FILE may have as they are, but for
    "virtual"."""
    return {
        "utilisation": found.utilisation,
        "working_boards": found.boards.working,
        "allocated_boards": found.allocated,
        "failed_boards": [list(board) for board in sorted(found.boards.failed)],
        "placement": [_placement(job, own) for job, own in found.placed.items()],
        "not_placed": [{"name": job.name, "shape": _shape_of(job)} for job in found.waiting],
        "on_failed_boards": [job.name for job in found.broken],
    }


def plan_as_json(plan: DefragmentationPlan, cost: MoveCost) -> dict[str, Any]:
    """The steps, what they cost, and the allocation after them."""
    steps = [
        [
            {
                "name": move.job.name,
                "from": None if move.before is None else _places(move.before),
                "to": _places(move.after),
                "boards_sent": move.sent(),
            }
            for move in step
        ]
        for step in plan.steps
    ]
    return {
        "steps": steps,
        "jobs_moved": sum(move.before is not None for move in plan.moves),
        "sent_bytes": plan.sent_bytes(cost),
        "transfer_seconds": cost.transfer_s,
        "seconds": plan.seconds(cost),
        "after": as_json(plan.after),
    }


def show(terminal: Terminal, found: Allocation, scheme: str) -> None:
    """The allocation for people."""
    listed = list(found.placed.items())
    rows = [
        (
            job.name,
            f"{own.shape[0]}x{own.shape[1]}",
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
        names = [f"{job.name} ({_shape_of(job)})" for job in found.waiting]
        terminal.line(f"{counted(len(names), 'job')} did not fit: {_some(names)}")
    if found.broken:
        names = [job.name for job in found.broken]
        terminal.line(f"on failed boards: {_some(names)}; --defragment moves them")
    terminal.line(
        f"utilisation {found.utilisation:.1%}: {found.allocated} of {found.boards.working} working "
        f"boards, {len(found.boards.failed)} failed ({scheme})"
    )


def show_plan(terminal: Terminal, plan: DefragmentationPlan, cost: MoveCost) -> None:
    """The defragmentation for people."""
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
    moved = sum(move.before is not None for move in plan.moves)
    terminal.line(
        f"{counted(moved, 'job')} moved in {counted(len(plan.steps), 'step')}: "
        f"{format_bytes(plan.sent_bytes(cost))} in {format_seconds(plan.seconds(cost))}; "
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


def _placement(job: BoardJob, own: SubMesh) -> dict[str, Any]:
    width = len(own.columns)
    return {
        "name": job.name,
        "shape": f"{own.shape[0]}x{own.shape[1]}",
        **_places(own),
        "virtual": [
            {"board": [row, column], "is": [number // width, number % width]}
            for number, (row, column) in enumerate(own.boards())
        ],
    }


def _places(own: SubMesh) -> dict[str, Any]:
    return {"rows": list(own.rows), "columns": list(own.columns)}


def _shape_of(job: BoardJob) -> str:
    return f"{job.rows}x{job.columns}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
