"""The ranks' byte counters, one file per rank, merged into one list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan import CostModel, IterationTimes, RankTraffic
from torch_topoopt.plan.codec import DocumentError, decode
from torch_topoopt.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Link, LinkTraffic, Plan, Prediction
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.profile.script import CommunicationTrace

MOST_SHOWN = 16  # links in the terminal; --json and metrics.jsonl have all
_NEGLIGIBLE = 1e-4  # of the bytes of the busiest link
_PATTERN = "links-rank*.json"


def gather(run_dir: Path) -> tuple[list[LinkTraffic], IterationTimes | None, list[RankWork]]:
    """Reads and removes the ranks' files, in rank order; empty if no rank wrote one.

    Iteration times are averaged over the ranks; None if no rank measured one. Raises DocumentError
    for an invalid file.
    """
    files = [RankTraffic.load(path) for path in run_dir.glob(_PATTERN)]
    remove(run_dir)
    files.sort(key=lambda file: file.rank)
    measured = [file.iterations for file in files if file.iterations is not None]
    iterations = None
    if measured:
        mean_s = sum(entry.seconds for entry in measured) / len(measured)
        first = [entry.first_ended_s for entry in measured if entry.first_ended_s is not None]
        iterations = IterationTimes(
            min(entry.count for entry in measured), mean_s, min(first, default=None)
        )
    works = [file.work for file in files if file.work is not None]
    return [link for file in files for link in file.links], iterations, works


def predicted_for_job(
    folder: Path, plan: Plan, trace: CommunicationTrace | None, algorithm: str
) -> Plan:
    """`plan` with the link bytes of the algorithms that its job chose. The same plan if that is not
    known: without a cost model, or without the source of the prediction."""
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.planner.running_bytes import predicting

    cost = plan.cost_model
    if cost is None and (measured := folder / "cost_model.json").is_file():
        cost = decode(CostModel, json.loads(measured.read_text())["cost_model"])
    graph = folder / "opgraph.json"
    of_model = trace is None and plan.layout is None and graph.is_file()
    source = OpGraph.load(graph) if of_model else trace
    if cost is None or source is None or not plan.predicts_bytes:
        return plan
    return predicting(plan, source, cost, algorithm)


def iterations_of(run_dir: Path, rank: int) -> int:
    """The number of iterations of a rank, before `gather`; 0 if unknown."""
    try:
        return RankTraffic.load(run_dir / _PATTERN.replace("*", str(rank))).ended_iterations
    except (OSError, DocumentError):
        return 0


def remove(run_dir: Path) -> None:
    """Removes the ranks' files, also those that a killed rank was still writing."""
    for pattern in (_PATTERN, f".{_PATTERN}*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def show(
    terminal: Terminal,
    plan: Plan,
    links: list[LinkTraffic],
    iterations: IterationTimes | None,
    *,
    compared: bool = True,
    why_not: str = "",
) -> None:
    """Measured bytes, with the predicted ones if they may be `compared`.

    Per iteration, if iterations were measured; else as fractions of their totals. `why_not` is why
    the time of an iteration is not compared with the prediction.
    """
    predicted = _predicted(plan) if compared and plan.predicts_bytes else None
    by_iteration = iterations is not None and all(k.iteration_bytes is not None for k in links)
    if by_iteration:
        columns, further = _of_iterations(links, predicted)
    else:
        columns, further = _shares(links, predicted)
    rows = [
        (_name(link), format_bytes(link.sent_bytes), format_bytes(link.relayed_bytes), *cells)
        for link, cells in zip(links, further, strict=True)
    ]
    busiest = sorted(range(len(links)), key=lambda i: -links[i].sent_bytes)[:MOST_SHOWN]
    shown = [rows[i] for i in sorted(busiest)]
    terminal.table("Measured bytes per link", ("link", "sent", "relayed", *columns), shown)
    if len(shown) < len(rows):
        terminal.line(
            f"these are the {len(shown)} busiest links; {len(rows) - len(shown)} more are in "
            "metrics.jsonl and in --json"
        )
    if iterations is None:
        return
    terminal.line(_iteration_line(plan, iterations, compared=compared, why_not=why_not))
    if compared and plan.predicts_time:
        terminal.line(_composition(plan.prediction))


def _iteration_line(plan: Plan, iterations: IterationTimes, *, compared: bool, why_not: str) -> str:
    took = f"an iteration took {format_seconds(iterations.seconds)}"
    planned_s = plan.prediction.iteration_s
    measured = f"({iterations.count} measured)"
    if not (compared and plan.predicts_time):
        return f"{took} {measured}"
    planned = f"predicted {format_seconds(planned_s)}"
    if why_not:
        return f"{took}, {planned} {measured}; not compared: {why_not}"
    return f"{took}, {planned}: {_difference(iterations.seconds, planned_s)} {measured}"


def _composition(prediction: Prediction) -> str:
    exposed_s = max(0.0, prediction.iteration_s - prediction.compute_s)
    return (
        f"predicted are {format_seconds(prediction.compute_s)} of work on the busiest server and "
        f"{format_seconds(exposed_s)} of waiting for messages"
    )


def _of_iterations(
    links: list[LinkTraffic], predicted: _ByLink | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and the cells of every link."""
    measured = [link.iteration_bytes or 0.0 for link in links]
    if predicted is None:
        return ("per iteration",), [(format_bytes(size),) for size in measured]
    return ("per iteration", "predicted", "difference"), [
        (
            format_bytes(size),
            format_bytes(predicted[link.link]),
            _difference(size, predicted[link.link]),
        )
        for link, size in zip(links, measured, strict=True)
    ]


def _shares(
    links: list[LinkTraffic], predicted: _ByLink | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """As `_of_iterations`, of the whole run."""
    total = sum(link.sent_bytes for link in links)
    shares = [_share(link.sent_bytes, total) for link in links]
    if predicted is None:
        return ("share",), [(share,) for share in shares]
    planned = sum(predicted.values())
    return ("share", "planned share"), [
        (share, _share(predicted[link.link], planned))
        for link, share in zip(links, shares, strict=True)
    ]


_ByLink = dict["Link", int]


def _predicted(plan: Plan) -> _ByLink:
    return dict(zip(plan.network.links, plan.prediction.link_bytes, strict=True))


def _name(link: LinkTraffic) -> str:
    source = f"server {link.source} port {link.source_port}"
    return f"{source} -> server {link.target} port {link.target_port}"


def relative_difference(measured: float, predicted: float) -> float | None:
    """(measured - predicted) / predicted; None without a prediction, but 0 if both are 0."""
    if not predicted:
        return None if measured else 0.0
    return (measured - predicted) / predicted


def _difference(measured: float, predicted: float) -> str:
    difference = relative_difference(measured, predicted)
    return "-" if difference is None else f"{difference:+.1%}"


@dataclass(frozen=True)
class IterationFigures:
    """One iteration, measured and predicted. Values are None without a prediction.

    `not_compared` is the reason why there is no `difference`. `link_bytes_difference` is the
    largest relative difference of any link, without its sign.
    """

    count: int
    measured_s: float
    predicted_s: float | None
    not_compared: str
    difference: float | None
    link_bytes_difference: float | None


def iteration_figures(
    plan: Plan,
    links: list[LinkTraffic],
    iterations: IterationTimes | None,
    *,
    compared: bool = True,
    why_not: str = "",
) -> IterationFigures | None:
    """None if no iteration was measured.

    Without `compared`, nothing is; `why_not` is a reason against comparing times.
    """
    if iterations is None:
        return None
    planned_s = plan.prediction.iteration_s if compared and plan.predicts_time else None
    compares_bytes = compared and plan.predicts_bytes
    return IterationFigures(
        iterations.count,
        iterations.seconds,
        planned_s,
        why_not,
        None
        if planned_s is None or why_not
        else relative_difference(iterations.seconds, planned_s),
        _largest_difference(plan, links) if compares_bytes else None,
    )


def _largest_difference(plan: Plan, links: list[LinkTraffic]) -> float | None:
    """Of links that carry more than scalars, such as a norm."""
    predicted = _predicted(plan)
    pairs = [(link.iteration_bytes or 0.0, predicted[link.link]) for link in links]
    negligible = _NEGLIGIBLE * max((max(pair) for pair in pairs), default=0.0)
    largest = 0.0
    for measured, planned in pairs:
        if max(measured, planned) < negligible:
            continue
        apart = relative_difference(measured, planned)
        if apart is None:
            return None
        largest = max(largest, abs(apart))
    return largest


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
