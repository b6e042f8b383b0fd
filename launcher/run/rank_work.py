"""The iteration of each rank: slow ranks, and communication hidden behind other work."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.rank_work import hidden_part, slowest_of, together, waited_least
from torch_topoopt.plan.units import format_gbps, format_seconds
from torch_topoopt.report.bounds import mean_bus_gbps
from torch_topoopt.report.summary import WorkFigures

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.runtime.metrics import MetricsWriter


def write(metrics: MetricsWriter, works: list[RankWork]) -> None:
    """Writes to metrics.jsonl: an event for each rank, and one for each kind of operation."""
    for work in works:
        fields = asdict(work)
        del fields["operations"]
        metrics.write("rank", **fields)
    for one in together(works):
        metrics.write("operation", **asdict(one))


def as_json(works: list[RankWork]) -> list[dict[str, Any]]:
    """The input of `decode`, to exchange between the hosts of a job."""
    return [
        asdict(work) | {"operations": [asdict(one) for one in work.operations]} for work in works
    ]


def figures(works: list[RankWork]) -> WorkFigures:
    """For `--json`, as `torch_topoopt.report.summary` has it."""
    return WorkFigures(works, together(works))


def show(terminal: Terminal, works: list[RankWork]) -> None:
    """Up to two lines at the end of a run."""
    if not works:
        return
    least = waited_least(works)
    text = (
        f"communication took {format_seconds(least.under_way_s)} of each iteration "
        f"(rank {least.rank}, the one that waited least)"
    )
    rate, hidden = mean_bus_gbps(works, together(works)), hidden_part(works)
    if rate is not None:
        text += f", at a bus bandwidth of {format_gbps(float(f'{rate:.3g}'))}"
    if hidden is not None:
        text += f"; {hidden:.0%} of that time was hidden behind other work (median rank)"
    terminal.line(text)
    slowest = slowest_of(works)
    if slowest is not None:
        terminal.line(f"slowest {slowest}")
