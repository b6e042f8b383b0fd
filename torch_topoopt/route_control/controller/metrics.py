"""What the controller counts, as Prometheus' text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX = "topoopt_controller_"
_BOUNDS_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass
class Counts:
    """Since the controller was started; `answers` by status."""

    answers: Counter[int] = field(default_factory=Counter)
    lease_ends: int = 0  # flows of hosts that were silent


def prometheus_text(counts: Counts, gauges: Mapping[str, tuple[str, float]]) -> str:
    """`gauges` are name: (what it is, value)."""
    lines: list[str] = []
    for name, (what, value) in gauges.items():
        lines += _metric(name, "gauge", what, [("", value)])
    lines += _metric(
        "answers_total",
        "counter",
        "Answers by their status.",
        [(f'{{status="{status}"}}', count) for status, count in sorted(counts.answers.items())],
    )
    lines += _metric(
        "lease_ends_total", "counter", "Flows of silent hosts.", [("", counts.lease_ends)]
    )
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {_PREFIX}{name} {what}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for label, value in samples:
        yield f"{_PREFIX}{name}{label} {value:g}"
