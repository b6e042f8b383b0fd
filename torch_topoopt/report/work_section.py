"""The work of each rank in an iteration: collectives with their bandwidth, and slow ranks."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from markupsafe import Markup

from torch_topoopt.plan.rank_work import hidden_part, slowest_of, waited_least
from torch_topoopt.plan.units import counted, format_gbps
from torch_topoopt.report.bounds import bus_gbps, mean_bus_gbps
from torch_topoopt.report.html import (
    MISSING,
    count,
    element,
    paragraph,
    percent,
    seconds,
    section,
    significant,
    size,
    table,
)

if TYPE_CHECKING:
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.report.run_folder import Metrics, Run

_MOST_RANKS = 16  # that are listed one by one
_MOST_OPERATIONS = 12


def sections(run: Run) -> tuple[Markup, Markup]:
    """Ranks, and collectives; each empty where it was not measured."""
    return ranks_section(run), operations_section(run)


def operations_section(run: Run) -> Markup:
    """The collectives of an iteration, in nccl-tests' terms; empty if none were measured."""
    metrics = run.metrics
    if metrics is None or not metrics.operations:
        return Markup("")
    listed = metrics.operations[:_MOST_OPERATIONS]
    rows = [
        (
            one.name,
            str(one.ranks),
            size(one.size_bytes),
            significant(one.per_iteration),
            seconds(one.seconds),
            _rate(one.algorithm_gbps),
            _rate(bus_gbps(one)),
        )
        for one in listed
    ]
    columns = (
        "collective", "ranks", "size", "calls per iteration", "time of a call",
        "algorithm bandwidth", "bus bandwidth",
    )  # fmt: skip
    parts = [_under_way(metrics), table("", columns, rows)]
    if more := len(metrics.operations) - len(listed):
        parts.append(paragraph(f"{counted(more, 'kind')} that take less time are left out."))
    note = (
        "Sizes and bandwidths as nccl-tests counts them: size over time, and that times the bytes "
        "that the busiest link must carry for a byte (nccl-tests' GB/s times 8). Times are of the "
        "rank that waited least for others, from the end of the collective before it."
    )
    return section("collectives", "Collectives of an iteration", *parts, paragraph(note))


def _under_way(metrics: Metrics) -> Markup:
    if not metrics.ranks:
        return Markup("")
    least = waited_least(metrics.ranks)
    text = (
        f"Communication took {seconds(least.under_way_s)} of each iteration of "
        f"{seconds(least.seconds)} (rank {least.rank}, the one that waited least)"
    )
    rate = mean_bus_gbps(metrics.ranks, metrics.operations)
    if rate is not None:
        text += f": a bus bandwidth of {_rate(rate)} for all collectives together"
    if (hidden := hidden_part(metrics.ranks)) is not None:
        text += (
            f". {percent(hidden)} of the time of operations was hidden behind "
            "other work (median rank)"
        )
    return paragraph(Markup(f"{text}."))


def _rate(gbps: float | None) -> Markup | str:
    return MISSING if gbps is None else format_gbps(float(f"{gbps:.3g}"))


def ranks_section(run: Run) -> Markup:
    """Own work and waiting of each rank, the slowest first; of many, only the slowest."""
    metrics = run.metrics
    if metrics is None or len(metrics.ranks) < 2:
        return Markup("")
    works = sorted(metrics.ranks, key=lambda work: (-(work.own_s or 0.0), work.rank))
    slowest = slowest_of(works)
    if any(work.own_s is None for work in works):
        said = "How long a rank waits is not measured where tensors are on an accelerator."
    elif slowest is None:
        said = "No rank is a tenth slower than the median of the others."
    else:
        said = f"The slowest: {slowest}. All others wait for it."
    rows = [_row(work) for work in works[:_MOST_RANKS]]
    caption = "An iteration of each rank"
    if len(works) > _MOST_RANKS:
        own = [work.own_s for work in works if work.own_s is not None]
        middle = f"; the median of all is {seconds(statistics.median(own))}" if own else ""
        caption = f"An iteration of the {_MOST_RANKS} slowest of {len(works)} ranks{middle}"
    columns = ("rank", "server", "own work", "waiting", "operations under way", "hidden", "of")
    note = (
        "Own work: the thread that trains computes, or waits for a processor. Waiting: it sleeps "
        "while operations are under way. Hidden: the part of their time in which it does not."
    )
    body = table(Markup(caption), columns, rows)
    return section("ranks", "Ranks", element("p", element("strong", said)), body, paragraph(note))


def _row(work: RankWork) -> tuple[str, ...]:
    return (
        f"rank {work.rank}",
        str(work.server),
        seconds(work.own_s),
        seconds(work.waiting_s),
        seconds(work.under_way_s),
        percent(work.hidden_part),
        Markup(f"{count(work.iterations)} iterations"),
    )
