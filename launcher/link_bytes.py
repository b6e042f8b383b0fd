"""The byte counters that the ranks leave behind, one file per rank, gathered into one list."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_topoopt.data_model import Document, DocumentError
from torch_topoopt.launcher.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Plan

_PATTERN = "links-rank*.json"


@dataclass(frozen=True)
class LinkBytes:
    """What one directed link carried over the whole run, counted by the leader of its source.

    Of `sent_bytes` of payload, `relayed_bytes` were for other servers; `overhead_bytes` (headers
    and control frames) come on top. `received_bytes` came back on the same cable. For `seconds` the
    link had something to send.
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


@dataclass(frozen=True)
class RankLinks(Document):
    """The file of one rank: every link whose source is its server, if it leads it; else none."""

    KIND: ClassVar[str] = "RankLinks"
    VERSION: ClassVar[int] = 1

    version: int
    rank: int
    server: int
    links: tuple[LinkBytes, ...]

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


def gather(run_dir: Path) -> list[LinkBytes]:
    """Reads and removes the ranks' files, in rank order; empty if no rank wrote one.

    Raises DocumentError for a file that is not as it should be.
    """
    files = [RankLinks.load(path) for path in run_dir.glob(_PATTERN)]
    remove(run_dir)
    return [link for file in sorted(files, key=lambda file: file.rank) for link in file.links]


def remove(run_dir: Path) -> None:
    """Removes the ranks' files, also those that a killed rank was still writing."""
    for pattern in (_PATTERN, f".{_PATTERN}*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def show(terminal: Terminal, plan: Plan, links: list[LinkBytes]) -> None:
    """Measured bytes next to those predicted for one iteration, as fractions of their totals."""
    predicted = dict(zip(plan.network.links, plan.prediction.link_bytes, strict=True))
    planned_total = sum(predicted.values())
    measured_total = sum(link.sent_bytes for link in links)
    by_ends = {
        (link.source, link.source_port, link.target, link.target_port): size
        for link, size in predicted.items()
    }
    rows = []
    for link in links:
        planned = by_ends[link.source, link.source_port, link.target, link.target_port]
        rows.append(
            (
                f"server {link.source} port {link.source_port} -> "
                f"server {link.target} port {link.target_port}",
                format_bytes(link.sent_bytes),
                format_bytes(link.relayed_bytes),
                _share(link.sent_bytes, measured_total),
                _share(planned, planned_total),
            )
        )
    terminal.table(
        "Measured bytes per link",
        ("link", "sent", "relayed", "share", "planned share"),
        rows,
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def figures(links: list[LinkBytes]) -> list[dict[str, Any]]:
    """For metrics.jsonl and `--json`."""
    return [asdict(link) for link in links]
