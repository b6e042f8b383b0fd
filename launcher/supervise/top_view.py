"""A running job drawn on a terminal: step time, loss, and links with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from torch_topoopt.launcher.fitted_table import FittedTable
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds
from torch_topoopt.supervision.link_groups import LinkNow, group_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from torch_topoopt.supervision.link_groups import LinkGroup
    from torch_topoopt.supervision.running_job import RunningJob
    from torch_topoopt.supervision.statuses import Status
    from torch_topoopt.supervision.training_log import Point

_BAR, _CURVE, _LEAST_CURVE = 20, 40, 8  # characters
_LEVELS = "▁▂▃▄▅▆▇█"
_STYLES = {"up": "green", "degraded": "yellow", "down": "red"}
_LINK_COLUMNS = (
    "links: server.port",
    "state",
    "rate",
    "planned",
    "of planned rate",
    "time busy",
    "relayed",
)
_FEW_RANKS = 8
_OFF = 0.2  # relative deviation of a step from its prediction that is coloured


def job_view(job: RunningJob, server: int | None = None) -> RenderableType:
    """All of a job; with `server` only that server's links, each on a line of its own."""
    if not job.ranks:
        return Text(f"{job.folder.path}: no rank runs yet {_stage(job)}".rstrip())
    parts: list[RenderableType] = [Text(_heading(job), style="bold"), _figures(job)]
    links = job.links
    if server is not None:
        links = [link for link in links if server in (link.rate.link.source, link.rate.link.target)]
    if links:
        parts += [Text(links_line(links)), _links_table(job, links, alone=server is not None)]
    parts += [Text(line) for line in _operations(list(job.ranks.values()))]
    parts += [
        Text(f"rank {s.rank} has failed: {s.failure}", style="red")
        for s in job.ranks.values()
        if s.failure
    ]
    return Group(*parts)


def one_line(job: RunningJob) -> str:
    """The same for output that cannot move, such as that of a batch system."""
    if not job.ranks:
        return f"no rank runs yet {_stage(job)}".rstrip()
    words = [f"iteration {job.iteration}"]
    if job.step_s is not None:
        words.append(f"{format_seconds(job.step_s)} a step{_beside(job)}")
    if job.training.losses:
        words.append(f"loss {job.training.losses[-1].value:.4g}")
    if job.slowest is not None:
        words.append(f"slowest {job.slowest}")
    if links := job.links:
        words.append(links_line(links))
    return ", ".join(words)


def links_line(links: Sequence[LinkNow]) -> str:
    """As "8 links: 1 down, 1 degraded; 3.2 Gb/s in all"."""
    bad = [
        f"{count} {state}"
        for state in ("down", "degraded")
        if (count := sum(link.state == state for link in links))
    ]
    total = format_gbps(round(sum(link.rate.gbps for link in links), 3))
    return f"{counted(len(links), 'link')}: {', '.join(bad) or 'all up'}; {total} in all"


def curve(points: Sequence[Point], width: int = _CURVE) -> str:
    """The last points as blocks, the lowest value as the lowest block."""
    values = [point.value for point in points][-width:]
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(_LEVELS[int((v - low) / span * 7.999)] if span else _LEVELS[0] for v in values)


def bar(part: float | None, width: int = _BAR) -> str:
    """A bar that is full at 1 or more; empty if the part is unknown."""
    if part is None:
        return ""
    filled = round(min(max(part, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def _heading(job: RunningJob) -> str:
    model = f" {job.plan.model}," if job.plan is not None else ""
    return (
        f"{job.folder.path}:{model} {len(job.ranks)} of {counted(job.world_size, 'rank')} on "
        f"{counted(job.servers, 'server')}, iteration {job.iteration}"
    )


def _stage(job: RunningJob) -> str:
    return f"(after stage {job.training.stage})" if job.training.stage else ""


def _beside(job: RunningJob) -> str:
    if job.predicted_s is None or job.step_s is None:
        return ""
    return (
        f" (predicted {format_seconds(job.predicted_s)}, {job.step_s / job.predicted_s - 1:+.0%})"
    )


def _figures(job: RunningJob) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="cyan")
    if job.step_s is not None:
        text = Text(f"{format_seconds(job.step_s)}{_beside(job)}")
        if job.predicted_s is not None and abs(job.step_s / job.predicted_s - 1) > _OFF:
            text.stylize("yellow")
        table.add_row("step time", text, _LastPoints(job.training.step_s))
    if job.training.losses:
        last = job.training.losses[-1].value
        table.add_row("loss", f"{last:.4g}", _LastPoints(job.training.losses))
    if job.slowest is not None:
        table.add_row("slowest", str(job.slowest), "")
    return table


class _LastPoints:
    """The last points, as many as fit."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_LEAST_CURVE, min(_CURVE, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(curve(self._points, options.max_width))


def _links_table(job: RunningJob, links: Sequence[LinkNow], *, alone: bool) -> FittedTable:
    if alone:
        groups = [group for link in links for group in group_links([link], job.servers)]
    else:
        groups = group_links(links, job.servers)
    rows: list[list[str | Text]] = []
    for group in groups:
        style = _STYLES[group.state]
        used = "" if group.used is None else f" {group.used:.0%}"
        rows.append(
            [
                group.name,
                Text(group.state, style=style),
                _rates(group),
                "-" if group.planned_gbps is None else format_gbps(group.planned_gbps),
                Text(f"{bar(group.used)}{used}", style=style),
                f"{group.busy:.0%}",
                format_bytes(group.relayed_bytes),
            ]
        )
    return FittedTable("", _LINK_COLUMNS, rows, left=("state", "of planned rate"))


def _rates(group: LinkGroup) -> str:
    median = format_gbps(round(group.median_gbps, 3))
    if len(group.links) == 1:
        return median
    return f"{median} ({group.least_gbps:.3g} to {group.most_gbps:.3g})"


def _operations(ranks: Sequence[Status]) -> list[str]:
    """The current operations of ranks, grouped by operation."""
    doing: dict[str, list[int]] = {}
    for status in ranks:
        call = next((c for c in status.calls if c.state == "started"), None)
        what = "no operation"
        if call is not None:
            number = f" {call.number}" if call.number else ""
            what = f"{call.name}{number} of group {call.group}"
        doing.setdefault(what, []).append(status.rank)
    lines = []
    for what, members in sorted(doing.items(), key=lambda item: -len(item[1]))[:_FEW_RANKS]:
        if len(members) == 1:
            lines.append(f"rank {members[0]}: {what}")
        elif len(members) <= _FEW_RANKS:
            lines.append(f"ranks {', '.join(map(str, members))}: {what}")
        else:
            lines.append(f"{len(members)} ranks: {what}")
    return lines
