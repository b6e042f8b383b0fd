"""The layout of a plan for people: one line, its time and memory, and layouts of other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.planner.layout_figures import LayoutFigures, OtherLayout

_TIMES = {
    "compute_s": "compute",
    "exchange_s": "exchange",
    "bubble_s": "bubble",
    "state_s": "state",
    "optimizer_s": "optimizer",
}


def show_figures(terminal: Terminal, figures: LayoutFigures) -> None:
    """The parts of an iteration, and of the memory of an accelerator."""
    times, memory = figures.times, figures.memory
    terminal.table(
        "Time of the slowest stage",
        ("", *_TIMES.values(), "iteration"),
        [
            (
                "seconds",
                *(format_seconds(getattr(times, name)) for name in _TIMES),
                format_seconds(times.step_s),
            )
        ],
    )
    sizes = {**memory._asdict(), "total": memory.total}
    host = sizes.pop("host")
    if host:
        sizes["on its host"] = host
    terminal.table(
        "Memory of the fullest accelerator",
        ("", *sizes),
        [("bytes", *map(format_bytes, sizes.values()))],
    )


def show_others(terminal: Terminal, others: tuple[OtherLayout, ...]) -> None:
    """A row for each kind."""
    terminal.table(
        "The best layouts of other kinds, each on a network of its own",
        ("kind", "layout", "iteration", "memory", "busiest link", "why not"),
        [
            (
                other.kind,
                str(other.layout),
                format_seconds(other.iteration_s),
                format_bytes(other.memory_bytes),
                format_bytes(other.link_bytes),
                other.why_not,
            )
            for other in others
        ],
    )
