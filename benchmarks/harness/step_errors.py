"""Predicted against measured steps: errors, rankings and memory, and how well repeats agree.

Two rows repeat each other if all columns but results and notes are equal. ZeRO 0 and 1 count as
equal, because they send the same bytes. A second measurement of a row differs from the first one
by the ratio of two repeats. So the ranking that repeats allow is Spearman's coefficient between
measured steps and the same steps times such ratios, drawn from all repeats of the source in both
directions: the mean of `_DRAWS` draws.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy.stats import spearmanr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Cells = dict[str, str]

_RESULTS = frozenset(
    ("step_seconds", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "memory_gib", "notes")
)
_SAME_BYTES = re.compile(r"^zero-[01]\b")
_DISTURBED = ("SUSPECT", "REPEATED", "DISTURBED")  # notes of whoever gathered the rows
_DRAWS = 200
_LEAST_ROWS = 5  # of a ranking
_WANTED_RHO = 0.9
_ERRORS = ("median_error", "within_30_percent")


class Pair(NamedTuple):
    """A predicted row with its columns; memory in GiB, None if it was not measured."""

    cells: Cells
    predicted_s: float
    measured_s: float
    predicted_gib: float
    measured_gib: float | None

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.measured_s - 1)

    @property
    def memory_error(self) -> float | None:
        return abs(self.predicted_gib / self.measured_gib - 1) if self.measured_gib else None


class Ranking(NamedTuple):
    """Spearman's coefficients of a model on one cluster: of predictions, and of repeats. The
    configuration that is predicted to be fastest takes `chosen` of the fastest one's time."""

    predicted: float
    repeated: float
    chosen: float


def is_undisturbed(cells: Cells) -> bool:
    """Whether a row belongs to the test set that the notes on the rows suggest."""
    marked = any(word in cells.get("notes", "") for word in _DISTURBED)
    return not marked and int(cells["gpus"]) <= 256 and int(cells["tp"] or 1) <= 8


def within(errors: Iterable[float | None], limit: float) -> float | None:
    """The fraction of errors up to `limit`; None without errors."""
    known = [error for error in errors if error is not None]
    return sum(error <= limit for error in known) / len(known) if known else None


def figures(pairs: Sequence[Pair]) -> dict[str, float | int | None]:
    """The errors of rows."""
    errors = [pair.error for pair in pairs]
    memory = [pair.memory_error for pair in pairs]
    return {
        "predicted": len(pairs),
        "median_error": statistics.median(errors) if errors else None,
        "within_30_percent": within(errors, 0.3),
        "memory_rows": sum(error is not None for error in memory),
        "memory_within_15_percent": within(memory, 0.15),
    }


def repeat_ratios(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """The logarithms of the ratios of repeats, by source."""
    repeats: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        key = [text for name, text in sorted(pair.cells.items()) if name not in _RESULTS]
        repeats[tuple(_SAME_BYTES.sub("zero", text.lower()) for text in key)].append(pair)
    found: dict[str, list[float]] = defaultdict(list)
    for same in repeats.values():
        for one, other in itertools.combinations(same, 2):
            ratio = math.log(one.measured_s / other.measured_s)
            found[one.cells["source"]] += [ratio, -ratio]
    return found


def rankings(pairs: Sequence[Pair]) -> dict[str, Ranking]:
    """Of each model on one number of accelerators with `_LEAST_ROWS` rows or more."""
    ratios = repeat_ratios(pairs)
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        cells = pair.cells
        groups[f"{cells['model']}, {cells['gpus']} x {cells['gpu']}, {cells['sequence']}"].append(
            pair
        )
    return {
        name: _ranking(group, ratios.get(group[0].cells["source"], []))
        for name, group in sorted(groups.items())
        if len(group) >= _LEAST_ROWS
        and len({pair.predicted_s for pair in group}) > 1
        and len({pair.measured_s for pair in group}) > 1
    }


def _ranking(group: Sequence[Pair], ratios: Sequence[float]) -> Ranking:
    predicted = [pair.predicted_s for pair in group]
    measured = [pair.measured_s for pair in group]
    repeated = 1.0
    if ratios:
        drawn = random.Random(0)
        repeated = statistics.mean(
            spearman(measured, [one * math.exp(drawn.choice(ratios)) for one in measured])
            for _ in range(_DRAWS)
        )
    chosen = min(group, key=lambda pair: pair.predicted_s).measured_s / min(measured)
    return Ranking(spearman(predicted, measured), repeated, chosen)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's coefficient of rank correlation."""
    return float(spearmanr(one, other).statistic)


def _boxes(cells: Cells) -> int:
    return int(cells["gpus_per_node"] or 8)


# How a row is trained, by what an error may come from.
_DIMENSIONS: dict[str, Callable[[Cells], str]] = {
    "source": lambda cells: cells["source"],
    "accelerators": lambda cells: f"{cells['gpus']:>4}",
    "tensor": lambda cells: (
        "none"
        if int(cells["tp"]) == 1
        else ("between boxes" if int(cells["tp"]) > _boxes(cells) else "inside a box")
    ),
    "pipeline": lambda cells: f"{cells['pp']:>2} stages",
    "chunks": lambda cells: "interleaved" if int(cells.get("vp") or 1) > 1 else "one a stage",
    "context": lambda cells: f"{cells.get('cp') or 1:>2}",
    "experts": lambda cells: f"{cells.get('ep') or 1:>2}",
    "state": lambda cells: cells.get("zero_or_fsdp", "").split(" (")[0],
    "recomputation": lambda cells: (cells.get("recompute", "").split() or ["none"])[0],
    "precision": lambda cells: re.split(r"[ ,(]", cells.get("precision", "") or "bf16")[0],
}


def by_dimension(pairs: Sequence[Pair]) -> dict[str, dict[str, list[Pair]]]:
    """The rows of each value of each dimension."""
    found: dict[str, dict[str, list[Pair]]] = {}
    for name, value_of in _DIMENSIONS.items():
        groups: dict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            groups[value_of(pair.cells)].append(pair)
        found[name] = dict(sorted(groups.items()))
    return found


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def table(pairs: Sequence[Pair]) -> str:
    """Errors by dimension: those of all rows, and of undisturbed ones."""
    head = ("", "rows", "median", "error", "in 30 %", "undisturbed", "error", "in 30 %", "memory")
    lines = [_line(head)]
    for name, values in by_dimension(pairs).items():
        lines.append(name)
        for value, group in values.items():
            calm = [pair for pair in group if is_undisturbed(pair.cells)]
            every, some = figures(group), figures(calm)
            ratio = statistics.median(pair.predicted_s / pair.measured_s for pair in group)
            errors = [_percent(of[key]) for of in (every, some) for key in _ERRORS]
            memory = _percent(some["memory_within_15_percent"])
            cells = [f"  {value[:26]}", str(len(group)), f"{ratio:.2f}", *errors[:2]]
            lines.append(_line([*cells, str(len(calm)), *errors[2:], memory]))
    return "\n".join(lines)


def table_of_rankings(every: dict[str, Ranking], undisturbed: dict[str, Ranking]) -> str:
    """Coefficients of predictions and of repeats."""
    lines = [_line(("rankings", "rho", "repeats", "chosen", "undisturbed", "repeats", "chosen"))]
    for name, ranking in every.items():
        cells = [f"{value:.3f}" for value in ranking]
        cells += [f"{value:.3f}" for value in undisturbed.get(name, ())]
        lines.append(f"  {name}\n" + _line(["", *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return cells[0].ljust(28) + "".join(cell.rjust(12) for cell in cells[1:])


def verdict(
    summary: dict[str, Any], every: dict[str, Ranking], undisturbed: dict[str, Ranking]
) -> str:
    """What was wanted (issue 44: median error 15 %, 90 % within 30 %, rho 0.9, memory within
    15 %), in a few lines."""
    lines = []
    for what, found, ranks in (
        ("all", summary, every),
        ("undisturbed", summary["undisturbed"], undisturbed),
    ):
        good = sum(rank.predicted >= _WANTED_RHO for rank in ranks.values())
        reached = sum(rank.predicted >= min(_WANTED_RHO, rank.repeated) for rank in ranks.values())
        chosen = [rank.chosen for rank in ranks.values()]
        lines += [
            f"{found['predicted']} rows, {what}: median error {_percent(found['median_error'])}, "
            f"{_percent(found['within_30_percent'])} within 30 %",
            f"  memory: {_percent(found['memory_within_15_percent'])} of "
            f"{found['memory_rows']} rows within 15 %",
            f"  rankings: {good} of {len(ranks)} have rho {_WANTED_RHO} or more; "
            f"{reached} have this or that of repeats",
        ]
        if chosen:
            lines.append(
                f"  configurations predicted to be fastest: {statistics.median(chosen):.2f} times "
                f"the fastest step (median), {max(chosen):.2f} times at most"
            )
    lines.append(f"ran, but predicted not to fit: {summary['ran_but_predicted_not_to_fit']} rows")
    if "failed" in summary:
        lines.append(
            f"failed, but predicted to fit: {summary['failed_but_predicted_to_fit']} of "
            f"{summary['failed']} layouts"
        )
    return "\n".join(lines)
