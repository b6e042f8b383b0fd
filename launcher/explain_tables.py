"""How `topoopt plan --explain` shows why operators are split as they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.placement_text import placement_text
from torch_topoopt.launcher.units import format_seconds

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.search.explain import Alternative, Explanation


def show(terminal: Terminal, explained: tuple[Explanation, ...]) -> None:
    """A row for each operator, and one for each of its alternatives."""
    if not explained:
        terminal.line("no operator has a large share of the computing, bytes or parameters")
        return
    rows = []
    for entry in explained:
        shares = [
            f"{share:.1%}"
            for share in (entry.compute_share, entry.bytes_share, entry.parameter_share)
        ]
        mine = placement_text(entry.placement)
        rows.append((entry.placement.operator, *shares, mine, format_seconds(entry.iteration_s)))
        rows += [("", "", "", "", *_cells(entry, other)) for other in entry.alternatives]
    terminal.table(
        "Large operators, and the best other ways to split each",
        ("operator", "compute", "bytes", "parameters", "split", "iteration"),
        rows,
    )


def _cells(entry: Explanation, other: Alternative) -> tuple[str, str]:
    if not other.fits:
        return f"or {placement_text(other.placement)}", "does not fit into memory"
    change = other.iteration_s / entry.iteration_s - 1
    return (
        f"or {placement_text(other.placement)}",
        f"{format_seconds(other.iteration_s)} ({change:+.1%})",
    )


def figures(explained: tuple[Explanation, ...]) -> list[dict[str, Any]]:
    """For `--json`."""
    return [asdict(entry) for entry in explained]
