"""The byte counters that the ranks leave behind, one file per rank, gathered into one list."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Link, Plan, Prediction

MOST_SHOWN = 16  # links in the terminal; --json and metrics.jsonl have all
_PATTERN = "links-rank*.json"


@dataclass(frozen=True)
class LinkBytes:
    """The bytes of one directed link over the whole run, counted by the leader of its source.

    Of `sent_bytes` of payload, `relayed_bytes` were for other servers; `overhead_bytes` (headers
    and control frames) come on top. `received_bytes` came back on the same cable. For `seconds` the
    link had something to send. `iteration_bytes` is what was sent in one training iteration; None
    where none was measured.
    """

    source: int
    source_port: int
    target: int
    target_port: int
    sent_bytes: int
    relayed_bytes: int
    received_bytes: int
    overhead_bytes: int
    seconds: float
    iteration_bytes: float | None = None


@dataclass(frozen=True)
class IterationTimes:
    """`count` training iterations were measured; one takes `seconds`. The first had ended at
    `first_ended_s` since the epoch: what came before is start-up."""

    count: int
    seconds: float
    first_ended_s: float | None = None


@dataclass(frozen=True)
class RankLinkBytes(Document):
    """The file of one rank: every link whose source is its server, if it leads it; else none."""

    KIND: ClassVar[str] = "RankLinks"
    VERSION: ClassVar[int] = 1

    version: int
    rank: int
    server: int
    links: tuple[LinkBytes, ...]
    iterations: IterationTimes | None = None

    def validate(self) -> Self:
        for i, link in enumerate(self.links):
            if link.source != self.server:
                raise DocumentError(f"links[{i}].source: {link.source} is not server {self.server}")
            if not 0 <= link.relayed_bytes <= link.sent_bytes:
                raise DocumentError(
                    f"links[{i}].relayed_bytes: {link.relayed_bytes} is not in "
                    f"0..{link.sent_bytes} (sent_bytes)"
                )
        return self


def gather(run_dir: Path) -> tuple[list[LinkBytes], IterationTimes | None]:
    """Reads and removes the ranks' files, in rank order; empty if no rank wrote one.

    An iteration takes what it takes the ranks on average; None where no rank measured one. Raises
    DocumentError for a file that is not as it should be.
    """
    files = [RankLinkBytes.load(path) for path in run_dir.glob(_PATTERN)]
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
    return [link for file in files for link in file.links], iterations


def remove(run_dir: Path) -> None:
    """Removes the ranks' files, also those that a killed rank was still writing."""
    for pattern in (_PATTERN, f".{_PATTERN}*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def show(
    terminal: Terminal,
    plan: Plan,
    links: list[LinkBytes],
    iterations: IterationTimes | None,
    *,
    compared: bool = True,
) -> None:
    """Measured bytes, and, if they may be `compared`, what was predicted next to them.

    By iteration, where iterations were measured; else as fractions of their totals.
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
    took = f"an iteration took {format_seconds(iterations.seconds)}"
    planned_s = plan.prediction.iteration_s
    if compared and plan.predicts_time:
        apart = _difference(iterations.seconds, planned_s)
        took += f", predicted {format_seconds(planned_s)}: {apart}"
    terminal.line(f"{took} ({iterations.count} measured)")
    if compared and plan.predicts_time:
        terminal.line(_composition(plan.prediction))


def _composition(prediction: Prediction) -> str:
    exposed_s = max(0.0, prediction.iteration_s - prediction.compute_s)
    return (
        f"predicted are {format_seconds(prediction.compute_s)} of work on the busiest server and "
        f"{format_seconds(exposed_s)} of waiting for messages"
    )


def _of_iterations(
    links: list[LinkBytes], predicted: _ByEnds | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and the cells of every link."""
    measured = [link.iteration_bytes or 0.0 for link in links]
    if predicted is None:
        return ("per iteration",), [(format_bytes(size),) for size in measured]
    return ("per iteration", "predicted", "difference"), [
        (
            format_bytes(size),
            format_bytes(predicted[_ends(link)]),
            _difference(size, predicted[_ends(link)]),
        )
        for link, size in zip(links, measured, strict=True)
    ]


def _shares(
    links: list[LinkBytes], predicted: _ByEnds | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """As `_of_iterations`, of the whole run."""
    total = sum(link.sent_bytes for link in links)
    shares = [_share(link.sent_bytes, total) for link in links]
    if predicted is None:
        return ("share",), [(share,) for share in shares]
    planned = sum(predicted.values())
    return ("share", "planned share"), [
        (share, _share(predicted[_ends(link)], planned))
        for link, share in zip(links, shares, strict=True)
    ]


_ByEnds = dict[tuple[int, int, int, int], int]


def _ends(link: LinkBytes | Link) -> tuple[int, int, int, int]:
    return link.source, link.source_port, link.target, link.target_port


def _predicted(plan: Plan) -> _ByEnds:
    sizes = zip(plan.network.links, plan.prediction.link_bytes, strict=True)
    return {_ends(link): size for link, size in sizes}


def _name(link: LinkBytes) -> str:
    source = f"server {link.source} port {link.source_port}"
    return f"{source} -> server {link.target} port {link.target_port}"


def relative_difference(measured: float, predicted: float) -> float | None:
    """(measured - predicted) / predicted; None where nothing was predicted, but 0 if both are 0."""
    if not predicted:
        return None if measured else 0.0
    return (measured - predicted) / predicted


def _difference(measured: float, predicted: float) -> str:
    difference = relative_difference(measured, predicted)
    return "-" if difference is None else f"{difference:+.1%}"


def iteration_figures(
    plan: Plan, links: list[LinkBytes], iterations: IterationTimes | None, *, compared: bool = True
) -> dict[str, Any] | None:
    """One iteration, predicted and measured, for `--json`; None where none was measured.

    `link_bytes_difference` is the largest relative difference of any link, without its sign. What
    was not predicted, or is not `compared`, is None.
    """
    if iterations is None:
        return None
    planned_s = plan.prediction.iteration_s if compared and plan.predicts_time else None
    return {
        "count": iterations.count,
        "measured_s": iterations.seconds,
        "predicted_s": planned_s,
        "difference": None
        if planned_s is None
        else relative_difference(iterations.seconds, planned_s),
        "link_bytes_difference": _largest_difference(plan, links)
        if compared and plan.predicts_bytes
        else None,
    }


def _largest_difference(plan: Plan, links: list[LinkBytes]) -> float | None:
    predicted = _predicted(plan)
    largest = 0.0
    for link in links:
        apart = relative_difference(link.iteration_bytes or 0.0, predicted[_ends(link)])
        if apart is None:
            return None
        largest = max(largest, abs(apart))
    return largest


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def figures(links: list[LinkBytes]) -> list[dict[str, Any]]:
    """For metrics.jsonl and `--json`."""
    return [asdict(link) for link in links]
