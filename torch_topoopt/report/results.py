"""Results from a run folder's figures: rings, traffic on one scale, accuracy and its time."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch_topoopt.report.run_folder import Run, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.plan import Network, Ring
# ---- rings and routes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberedRing:
    """A ring with its number in the report."""

    number: int
    group: int
    ring: Ring

    @property
    def stride(self) -> int | None:
        return self.ring.stride

    @property
    def hops(self) -> tuple[tuple[int, int], ...]:
        """(from, to) of every hop, including the closing one; none for a single server."""
        return self.ring.hops if len(self.ring.servers) > 1 else ()

    @property
    def stride_text(self) -> str:
        """ "+1", "+3 (= −1)" for more than half way round, "irregular" for no single stride."""
        if self.stride is None:
            return "irregular"
        size = len(self.ring.servers)
        back = f" (= −{size - self.stride})" if self.stride > size / 2 else ""
        return f"+{self.stride}{back}"


def numbered_rings(network: Network) -> list[NumberedRing]:
    """Every ring of every group, numbered from 0."""
    pairs = [(g, ring) for g, group in enumerate(network.groups) for ring in group.rings]
    return [NumberedRing(i, g, ring) for i, (g, ring) in enumerate(pairs)]


def ring_families(rings: list[NumberedRing]) -> list[int]:
    """The family number of each ring. Rings on the same pairs of servers, such as +1 and -1, are a
    family and have one colour."""
    families: dict[frozenset[frozenset[int]], int] = {}
    return [
        families.setdefault(frozenset(map(frozenset, ring.hops)), len(families)) for ring in rings
    ]


def rings_by_pair(rings: list[NumberedRing]) -> dict[tuple[int, int], list[int]]:
    """Ordered pair of servers -> numbers of the rings with a hop from the first to the second."""
    table: dict[tuple[int, int], list[int]] = {}
    for ring in rings:
        for hop in ring.hops:
            table.setdefault(hop, []).append(ring.number)
    return table


@dataclass(frozen=True)
class HopFigures:
    """Distances of servers in hops: `mean_hops` over all ordered pairs, by route weight."""

    pairs: int
    relayed_pairs: int
    mean_hops: float
    most_hops: int


@functools.lru_cache(maxsize=8)  # a page asks several times, and a large table takes seconds
def path_lengths(network: Network) -> tuple[tuple[int, float], ...]:
    """(hops, share of all ordered pairs), ascending; several routes count by weight."""
    table = network.routes_by_pair()
    found: dict[int, float] = {}
    for routes in table.values():
        for route in routes:
            hops = len(route.servers) - 1
            found[hops] = found.get(hops, 0.0) + route.weight
    return tuple((hops, weight / len(table)) for hops, weight in sorted(found.items()))


def reach(network: Network) -> HopFigures:
    """Path lengths of all ordered pairs; zeros for a single server."""
    table = network.routes_by_pair()
    linked = {(link.source, link.target) for link in network.links}
    lengths = path_lengths(network)
    return HopFigures(
        len(table),
        sum(pair not in linked for pair in table),
        sum(hops * share for hops, share in lengths),
        max((hops for hops, _ in lengths), default=0),
    )


def server_list(servers: Iterable[int]) -> str:
    """Server numbers, runs drawn together: "0–3, 6, 7", or for a stride "0, 2, 4, … 126"."""
    servers = sorted(servers)
    strides = {later - earlier for earlier, later in itertools.pairwise(servers)}
    if len(strides) == 1 and strides != {1} and len(servers) > 4:
        return f"{servers[0]}, {servers[1]}, {servers[2]}, … {servers[-1]}"
    runs: list[list[int]] = []
    for server in servers:
        if runs and runs[-1][-1] == server - 1:
            runs[-1].append(server)
        else:
            runs.append([server])
    return ", ".join(
        f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


# ---- traffic -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Predicted and measured traffic on one scale, by index of `network.links`.

    - `basis` "iteration": bytes per iteration, counted in each of `steps`, or (`averaged`) the
      bytes of the whole run divided by `steps`.
    - "share": fractions of each side's total, because the number of iterations is not known.
    - "predicted": bytes per iteration without measurement (`measured` is all None).
    - "measured": bytes per iteration, or of the whole run if `steps` is None; no prediction.

    `reason` explains any basis but "iteration".
    """

    basis: Literal["iteration", "share", "predicted", "measured"]
    steps: int | None
    reason: str
    predicted: tuple[float, ...]
    measured: tuple[float | None, ...]
    relayed_fraction: tuple[float | None, ...]
    averaged: bool = False


def count_steps(train: list[dict[str, Any]]) -> tuple[int | None, str]:
    """Optimiser steps of the whole run from the script's `steps`, or (None, the reason)."""
    seen: list[tuple[Any, int]] = []
    for event in train:
        steps = event.get("steps")
        if is_number(steps) and steps > 0 and (event.get("epoch"), int(steps)) not in seen[-1:]:
            seen.append((event.get("epoch"), int(steps)))
    if not seen:
        return None, "the script logged no “steps”"
    counts = [steps for _, steps in seen]
    if any(later <= earlier for earlier, later in itertools.pairwise(counts)):
        return (
            None,
            "the logged “steps” do not grow, so they do not count from the start of the run",
        )
    return counts[-1], ""


def _shares(values: list[float | None]) -> tuple[float | None, ...]:
    total = sum(value for value in values if value is not None)
    return tuple(None if v is None else (v / total if total else 0.0) for v in values)


def compare_traffic(run: Run) -> Traffic:
    """Predicted and measured traffic of `run`, made comparable; see `Traffic`."""
    predicted: list[float | None] = [float(size) for size in run.plan.prediction.link_bytes]
    metrics = run.metrics
    measured_of = metrics.links if metrics else {}
    traffic = [measured_of.get(link) for link in run.plan.network.links]
    relayed = tuple(
        None if t is None else (t.relayed_bytes / t.sent_bytes if t.sent_bytes else 0.0)
        for t in traffic
    )
    if metrics is None or not measured_of:
        nothing = tuple(None for _ in traffic)
        plain = tuple(float(size) for size in run.plan.prediction.link_bytes)
        return Traffic("predicted", None, "no traffic was measured", plain, nothing, relayed)
    counted = tuple(None if t is None else t.iteration_bytes for t in traffic)
    if not run.compares_bytes:
        zeros, reason = (0.0,) * len(traffic), "nothing was predicted of this script"
        if metrics.iterations is not None and None not in counted:
            steps_seen = metrics.iterations.count
            return Traffic("measured", steps_seen, reason, zeros, counted, relayed)
        whole = tuple(None if t is None else float(t.sent_bytes) for t in traffic)
        return Traffic("measured", None, reason, zeros, whole, relayed)
    if metrics.iterations is not None and None not in counted:
        plain = tuple(float(size) for size in run.plan.prediction.link_bytes)
        return Traffic("iteration", metrics.iterations.count, "", plain, counted, relayed)
    sent: list[float | None] = [None if t is None else float(t.sent_bytes) for t in traffic]
    steps, reason = count_steps(metrics.train)
    if steps is None:
        shares = tuple(value or 0.0 for value in _shares(predicted))
        return Traffic("share", None, reason, shares, _shares(sent), relayed)
    per_step = tuple(None if value is None else value / steps for value in sent)
    plain = tuple(float(size) for size in run.plan.prediction.link_bytes)
    return Traffic("iteration", steps, "", plain, per_step, relayed, averaged=True)


@dataclass(frozen=True)
class Series:
    """One key that the script logged: `points` are (x, value), x along `Curves.axis`."""

    key: str
    points: tuple[tuple[float, float], ...]
    not_finite: int


@dataclass(frozen=True)
class Curves:
    """`axis` is the key that the curves run along, "" for the number of the log line."""

    axis: str
    accuracies: tuple[Series, ...]
    losses: tuple[Series, ...]


def key_words(key: str) -> set[str]:
    """The words of a logged key, in lower case: "valAcc_top1" has val, acc and top."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", key)}


def _is_accuracy(key: str) -> bool:
    words = key_words(key)
    return bool(words & {"accuracy", "acc"}) and not words & {"target", "time"}


def _is_loss(key: str) -> bool:
    return "loss" in key_words(key) and "time" not in key_words(key)


def _axis_of(events: list[dict[str, Any]]) -> str:
    for key in ("elapsed_s", "time_s", "epoch", "steps"):
        if events and all(is_number(event.get(key)) for event in events):
            return key
    return ""


def _series(train: list[dict[str, Any]], key: str, axis: str) -> Series:
    points, not_finite = [], 0
    for number, event in enumerate(train, 1):
        value = event.get(key)
        if is_number(value):
            points.append((float(event[axis]) if axis else float(number), float(value)))
        elif isinstance(value, float):
            not_finite += 1
    return Series(key, tuple(points), not_finite)


def training_curves(train: list[dict[str, Any]]) -> Curves:
    """The accuracy-like and loss-like keys of the `train` events, in order of first appearance."""
    keys = list(dict.fromkeys(key for event in train for key in event))
    keys = [key for key in keys if _is_accuracy(key) or _is_loss(key)]
    events = [event for event in train if any(key in event for key in keys)]
    axis = _axis_of(events)
    chosen = [_series(events, key, axis) for key in keys]
    filled = [series for series in chosen if series.points or series.not_finite]
    return Curves(
        axis,
        tuple(series for series in filled if _is_accuracy(series.key)),
        tuple(series for series in filled if not _is_accuracy(series.key)),
    )


@dataclass(frozen=True)
class Accuracy:
    """Accuracies are fractions. `time_to_s` is the time to `goal`; None if it was not reached or no
    time was logged. `goal` is the script's `target_accuracy`, else the best accuracy."""

    key: str
    final: float
    best: float
    goal: float
    goal_is_target: bool
    time_to_s: float | None


def as_fraction(values: Iterable[float]) -> float:
    """The factor that turns logged accuracies into fractions: 1 if all are at most 1, else 0.01."""
    return 1.0 if all(value <= 1 for value in values) else 0.01


def _preference(key: str) -> int:
    words = key_words(key)
    if "test" in words:
        return 0
    if words & {"val", "valid", "validation", "eval"}:
        return 1
    return 3 if words & {"train", "training"} else 2


def find_accuracy(train: list[dict[str, Any]]) -> Accuracy | None:
    """The run's main accuracy: test before validation before any other; None if none.

    A key whose values all lie in 0..1 is read as a fraction, any other as a percentage.
    """
    curves = training_curves(train)
    candidates = [series for series in curves.accuracies if series.points]
    if not candidates:
        return None
    series = min(candidates, key=lambda s: _preference(s.key))
    values = [value for _, value in series.points]
    scale = as_fraction(values)
    targets = [e["target_accuracy"] for e in train if is_number(e.get("target_accuracy"))]
    goal = targets[-1] * as_fraction(targets[-1:]) if targets else max(values) * scale
    time_to_s = None
    if curves.axis in ("elapsed_s", "time_s"):
        reached = [x for x, value in series.points if value * scale >= goal - 1e-12]
        time_to_s = reached[0] if reached else None
    return Accuracy(
        series.key, values[-1] * scale, max(values) * scale, goal, bool(targets), time_to_s
    )
