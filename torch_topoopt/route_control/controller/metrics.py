"""The controller's counters, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX = "topoopt_controller_"
_BOUNDS_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass
class Durations:
    """Counts of values up to each bound, their total number, and their sum."""

    at_most: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS_S))
    count: int = 0
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_s += seconds
        for i in range(bisect_left(_BOUNDS_S, seconds), len(_BOUNDS_S)):
            self.at_most[i] += 1

    def samples(self, label: str) -> Iterable[tuple[str, float]]:
        for bound, count in zip((*_BOUNDS_S, "+Inf"), (*self.at_most, self.count), strict=True):
            yield f'_bucket{{{label},le="{bound}"}}', count
        yield f"_sum{{{label}}}", self.sum_s
        yield f"_count{{{label}}}", self.count


@dataclass
class Counts:
    """Since the start of the controller: answers by status, flows of silent hosts, hits and misses
    of precomputed assignments, and the duration of changes."""

    answers: Counter[int] = field(default_factory=Counter)
    lease_ends: int = 0
    hits: int = 0
    misses: int = 0
    precomputed: Durations = field(default_factory=Durations)
    computed: Durations = field(default_factory=Durations)


def prometheus_text(counts: Counts, gauges: Mapping[str, tuple[str, float]]) -> str:
    """`gauges` are name: (help text, value)."""
    lines: list[str] = []
    for name, (what, value) in gauges.items():
        lines += _metric(name, "gauge", what, [("", value)])
    lines += _metric(
        "answers_total",
        "counter",
        "Answers by their status.",
        [(f'{{status="{status}"}}', count) for status, count in sorted(counts.answers.items())],
    )
    for name, what, value in (
        ("lease_ends_total", "Flows of silent hosts that were ended.", counts.lease_ends),
        ("precomputed_hits_total", "Assignments that were there when they came.", counts.hits),
        ("precomputed_misses_total", "Assignments computed on the spot.", counts.misses),
    ):
        lines += _metric(name, "counter", what, [("", value)])
    durations = [
        *counts.precomputed.samples('assignment="precomputed"'),
        *counts.computed.samples('assignment="computed"'),
    ]
    what = "Seconds from a request that was read to its answer, of those that change something."
    lines += _metric("answer_seconds", "histogram", what, durations)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {_PREFIX}{name} {what}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for label, value in samples:
        yield f"{_PREFIX}{name}{label} {value:g}"
