"""The page of two plans or runs, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import __version__
from torch_topoopt.architectures import topoopt
from torch_topoopt.comparison.cost import capital_cost
from torch_topoopt.plan.units import format_gbps
from torch_topoopt.planner.difference import difference
from torch_topoopt.report.analysis.iteration import operators_text
from torch_topoopt.report.html import (
    MISSING,
    Panel,
    element,
    page,
    paragraph,
    plot,
    seconds,
    section,
    size,
    table,
)
from torch_topoopt.report.page_data import page_data
from torch_topoopt.report.results import numbered_rings, reach, server_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from torch_topoopt.plan import Plan
    from torch_topoopt.report.analysis import Analysis
    from torch_topoopt.report.run_folder import Run

_MOST_RINGS = 6
_MOST_OPERATORS = 12


def render_comparison(
    names: Sequence[str], runs: Sequence[Run], analyses: Sequence[Analysis]
) -> str:
    """The whole page, as HTML5; `names` are the labels of the two."""
    titles = [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)]
    header = element(
        "header",
        element("h1", "A against B"),
        element("p", " · ".join(titles), class_="sub"),
        id="headline",
    )
    networks = [
        element("div", element("h3", title), plot("topology", run=i))
        for i, title in enumerate(titles)
    ]
    heatmaps = [
        element("div", element("h3", title), plot("heatmap", run=i))
        for i, title in enumerate(titles)
    ]
    panels = [
        Panel("figures", "Figures", (_figures_section(runs, analyses), _changes_section(runs))),
        Panel("network", "Network", (
            section("networks", "Networks", element("div", *networks, class_="columns")),
            section("paths", "Cumulative distribution of path length", plot("hops")),
        )),
        Panel("bytes", "Traffic", (
            section("load", "Cumulative distribution of the load of links", plot("loads")),
            section("traffic", "Traffic", element("div", *heatmaps, class_="columns")),
        )),
    ]  # fmt: skip
    if any(run.plan.search for run in runs):
        panels.append(Panel("search", "Search", (section("curve", "Search", plot("search")),)))
    digests = " · ".join(run.plan.digest() for run in runs)
    footer = element("footer", f"torch_topoopt {__version__} · plans {digests}")
    data = {"runs": [page_data(run, found) for run, found in zip(runs, analyses, strict=True)]}
    return page("A against B", header, panels, footer, data)


def _figures_section(runs: Sequence[Run], analyses: Sequence[Analysis]) -> Markup:
    columns = [_column(run, found) for run, found in zip(runs, analyses, strict=True)]
    rows = []
    for (name, a, base), (_, b, value) in zip(*columns, strict=True):
        change: str = MISSING
        if base and value is not None:
            relative = value / base - 1
            change = "same" if abs(relative) < 0.0005 else f"{relative * 100:+.1f} %"
            change = change.replace("-", "−")
        rows.append((name, a, b, change))
    return section("values", "Figures", table("", ("", "A", "B", "B against A"), rows))


def _column(run: Run, found: Analysis) -> list[tuple[str, str, float | None]]:
    """(label, text, number if a ratio is useful)."""
    plan, cluster = run.plan, run.plan.cluster
    prediction, hops = plan.prediction, reach(plan.network)
    predicted = prediction if plan.predicts_time else None
    measured = run.metrics.iterations.seconds if run.metrics and run.metrics.iterations else None
    busiest = max(prediction.link_bytes, default=0) if plan.predicts_bytes else None
    total = sum(prediction.link_bytes) if plan.predicts_bytes else None
    cost = capital_cost(topoopt.build(cluster, network=plan.network), cluster)
    dollars = cost.total if cost and plan.network.links else None
    worst = None
    if found.losses is not None:
        worst = max((kind.iteration_s or 0.0 for kind in found.losses.classes), default=0.0) or None
    batch = float(plan.batch_size) if plan.strategy else None

    def time(value: float | None) -> tuple[str, float | None]:
        return seconds(value), value

    return [
        ("model", plan.model or MISSING, None),
        ("samples per iteration", MISSING if batch is None else f"{batch:.0f}", batch),
        ("servers × ports", f"{cluster.servers} × {cluster.degree}", None),
        ("rate of a port", format_gbps(cluster.link_gbps), cluster.link_gbps),
        ("predicted iteration", *time(predicted.iteration_s if predicted else None)),
        ("of it compute", *time(predicted.compute_s if predicted else None)),
        ("on a single ring", *time(predicted.single_ring_s if predicted else None)),
        ("on an ideal switch", *time(predicted.ideal_switch_s if predicted else None)),
        ("measured iteration", *time(measured)),
        ("without the worst cable", *time(worst)),
        ("bytes on the busiest link", size(busiest), busiest),
        ("bytes on all links", size(total), total),
        ("mean path length", f"{hops.mean_hops:.2f} hops", hops.mean_hops),
        ("longest route", f"{hops.most_hops} hops", float(hops.most_hops)),
        ("rings", _rings(plan), None),
        ("cost through patch panels", MISSING if dollars is None else f"$ {dollars:,.0f}", dollars),
    ]


def _rings(plan: Plan) -> str:
    rings = numbered_rings(plan.network)
    texts = [ring.stride_text.partition(" ")[0] for ring in rings[:_MOST_RINGS]]
    return ", ".join([*texts, *(["…"] if len(rings) > _MOST_RINGS else [])]) or "none"


def _changes_section(runs: Sequence[Run]) -> Markup:
    """The differences of `topoopt diff`, in a few lines."""
    found = difference(runs[0].plan, runs[1].plan)
    if found.is_empty:
        return section("changes", "Differences", paragraph("None: the plans do the same."))
    links = f"{found.links_in_both} in both, {len(found.links_only_in_a)} only in A, "
    links += f"{len(found.links_only_in_b)} only in B"
    lines = [
        ("links", links),
        ("routes", f"{found.routes_changed} of {found.routes_in_all} pairs go another way"),
        ("groups with other rings", str(len(found.groups))),
        ("operators placed otherwise", str(len(found.operators))),
    ]
    body = [table("", ("", ""), lines)]
    if found.operators:
        alike: dict[tuple[str, str], list[str]] = {}
        for name, a, b in found.operators:
            alike.setdefault((_place(a), _place(b)), []).append(name)
        listed = list(alike.items())[:_MOST_OPERATORS]
        rows = [(_names(names), *places) for places, names in listed]
        more = len(found.operators) - sum(len(names) for _, names in listed)
        caption = f"Operators placed otherwise{f', and {more} more' if more else ''}"
        body.append(table(caption, ("operator", "A", "B"), rows, numeric_from=3))
    return section("changes", "Differences", *body)


def _names(names: list[str]) -> str:
    if len(names) <= 2:
        return ", ".join(names)
    return f"{operators_text(tuple(names))} ({len(names)})"


def _place(placement: object) -> str:
    from torch_topoopt.plan import Placement

    if not isinstance(placement, Placement):
        return MISSING
    return f"{placement.degrees}, on servers {server_list(placement.servers)}"
