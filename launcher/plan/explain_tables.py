"""The tables of `topoopt plan --explain`: reasons for the split of each operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher.plan.placement_text import placement_text
from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.planner.explain import Alternative, Explanation


def show(terminal: Terminal, explained: tuple[Explanation, ...]) -> None:
    """A row for each operator, one for its split, and one for each alternative."""
    if not explained:
        terminal.line("no operator has a large share of the computing, bytes or parameters")
        return
    rows: list[tuple[str, ...]] = []
    for entry in explained:
        shares = (entry.compute_share, entry.bytes_share, entry.parameter_share)
        rows.append((_names(entry), *(f"{share:.1%}" for share in shares), "", ""))
        rows.append((f"  {_split(entry)}", "", "", "", format_seconds(entry.iteration_s), ""))
        rows += [
            (f"  or {placement_text(other.placement)}", "", "", "", *_cost(entry, other))
            for other in entry.alternatives
        ]
    terminal.table(
        "Large operators, how each is split, and the best other ways",
        ("operator", "compute", "bytes", "parameters", "iteration", ""),
        rows,
    )
    if any(entry.alike for entry in explained):
        terminal.line("shares are those of all alike; the other ways are the first one's alone")


def _names(entry: Explanation) -> str:
    name = entry.placement.operator
    return f"{name} and {len(entry.alike)} alike" if entry.alike else name


def _split(entry: Explanation) -> str:
    if entry.alike and len(entry.placement.servers) == 1:
        (server,) = entry.placement.servers
        return f"whole on one server each, {entry.placement.operator} on server {server}"
    return placement_text(entry.placement)


def _cost(entry: Explanation, other: Alternative) -> tuple[str, str]:
    if not other.fits:
        return "no memory", ""
    change = other.iteration_s / entry.iteration_s - 1
    return format_seconds(other.iteration_s), f"{change:+.1%}"
