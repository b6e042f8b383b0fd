"""The sections of the page on the network: topology, traffic and wiring."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_gbps
from torch_topoopt.report.html import (
    MISSING,
    element,
    filtered,
    named_line,
    paragraph,
    percent,
    plot,
    ratio,
    section,
    size,
    table,
)
from torch_topoopt.report.results import (
    NumberedRing,
    Traffic,
    compare_traffic,
    numbered_rings,
    reach,
    ring_families,
    rings_by_pair,
    server_list,
)
from torch_topoopt.report.summary import divide

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from torch_topoopt.plan import Plan
    from torch_topoopt.report.run_folder import Run

_OPEN_ROWS = 24  # longer tables start folded
_ORDER_SERVERS = 8  # rings print at most this many servers of their order


# ---- topology ------------------------------------------------------------------------------------


def _order(ring: NumberedRing) -> str:
    servers = ring.ring.servers
    if len(servers) > _ORDER_SERVERS:
        return " → ".join(map(str, servers[: _ORDER_SERVERS - 2])) + " → …"
    return " → ".join(map(str, (*servers, *servers[:1]) if len(servers) > 1 else servers))


def _ring_table(plan: Plan, rings: list[NumberedRing]) -> Markup:
    """The legend of the drawing; a ring with a stride prints no order where orders are long."""
    several = len(plan.network.groups) > 1
    families = ring_families(rings)
    orders = any(ring.stride is None or len(ring.hops) <= _ORDER_SERVERS for ring in rings)
    rows = []
    for ring in rings:
        row: list[str] = [named_line(families[ring.number], str(ring.number))]
        row += [server_list(plan.network.groups[ring.group].servers)] if several else []
        row += [_order(ring)] if orders else []
        rows.append((*row, ring.stride_text, percent(ring.ring.share)))
    columns = ["ring", *(["group"] if several else []), *(["order"] if orders else [])]
    body = table(
        "AllReduce rings, and their shares of the bytes of their group",
        (*columns, "stride", "share"), rows, numeric_from=len(columns),
    )  # fmt: skip
    return _long("rings", body, rows)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _reach_text(plan: Plan) -> Markup:
    distances, links = reach(plan.network), len(plan.network.links)
    if not distances.pairs:
        return paragraph("One server: nothing to wire and nothing to relay.")
    wires = f"{_plural(links // 2, 'cable')} ({links} directed links)"
    if plan.cluster.ports == "simplex":
        wires = _plural(links, "directed link")
    return paragraph(
        f"{wires}. {distances.pairs - distances.relayed_pairs} of {distances.pairs} ordered pairs "
        f"of servers have a link; {distances.relayed_pairs} are relayed. Mean distance "
        f"{distances.mean_hops:.2f} hops, longest route {_plural(distances.most_hops, 'hop')}."
    )


def topology_section(plan: Plan) -> Markup:
    """The drawing of the network beside the legend of its rings."""
    if plan.cluster.servers == 1:
        return section("topology", "Topology", _reach_text(plan))
    rings = numbered_rings(plan.network)
    kind = "cable" if plan.cluster.ports == "duplex" else "link"
    hops = Counter(hop for ring in rings for hop in ring.hops)
    linked = Counter((link.source, link.target) for link in plan.network.links)
    caption = f"One curve per {kind}, in the colour of the rings on it; point at one, or click it."
    caption += " Grey: a link that no ring uses." if linked - hops else ""
    relayed = len(hops.keys() - linked)
    caption += f" {relayed} hops of rings have no link and are relayed." if relayed else ""
    drawing = plot("topology", caption)
    legend = _ring_table(plan, rings) if rings else paragraph("The plan has no AllReduce rings.")
    title = element("h3", "Cumulative distribution of path length")
    side = element("div", _reach_text(plan), legend, title, plot("hops"))
    return section("topology", "Topology", element("div", drawing, side, class_="columns"))


def _long(what: str, body: Markup, rows: Sequence[object]) -> Markup:
    """A table; a long one is folded and has a filter box."""
    if len(rows) <= _OPEN_ROWS:
        return body
    return filtered(f"all-{what.replace(' ', '-')}", what, f"All {len(rows)} {what}", body)


# ---- traffic -------------------------------------------------------------------------------------


def _scale_of_measured(traffic: Traffic) -> str:
    return "whole run" if traffic.steps is None else "per iteration"


def _basis_text(traffic: Traffic, *, ran: bool) -> Markup:
    if traffic.basis == "measured":
        return paragraph(f"Measured bytes, {_scale_of_measured(traffic)}; {traffic.reason}.")
    if traffic.basis == "predicted" and not ran:
        return paragraph("Predicted bytes per iteration.")
    if traffic.basis == "predicted":
        return paragraph(
            "Predicted bytes per iteration only: no traffic was measured (metrics.jsonl holds no "
            "link counters)."
        )
    if traffic.basis == "share":
        return paragraph(
            f"Both sides as shares of their own total, because {traffic.reason}: predicted bytes "
            "of one iteration, measured bytes of the whole run."
        )
    if not traffic.averaged:
        return paragraph(
            f"Both sides in bytes per iteration, measured in {traffic.steps:,} iterations from one "
            "step of the optimizer to the next."
        )
    return paragraph(
        "Both sides in bytes per iteration; measured bytes of the whole run are divided by its "
        f"{traffic.steps:,} iterations, so they include what is sent only once or outside the "
        "iterations, such as the first broadcast of the parameters."
    )


def _link_rows(plan: Plan, traffic: Traffic, iteration_s: float | None) -> list[tuple[str, ...]]:
    """`iteration_s` is the mean measured iteration, if `traffic` has bytes per iteration."""

    def show(value: float | None) -> Markup:
        return percent(value, 2) if traffic.basis == "share" else size(value)

    rows: list[tuple[str, ...]] = []
    known_of = (None,) * len(traffic.measured) if traffic.basis == "measured" else traffic.predicted
    for i, link in enumerate(plan.network.links):
        predicted, measured = known_of[i], traffic.measured[i]
        rows.append(
            (
                f"{link.source}:{link.source_port} → {link.target}:{link.target_port}",
                show(predicted),
                show(measured),
                ratio(divide(measured, predicted), 4),
                *_rate_cells(measured, iteration_s, plan.cluster.gbps_of(link)),
                percent(traffic.relayed_fraction[i]),
            )
        )
    known = [value for value in traffic.measured if value is not None]
    total = sum(known) if len(known) == len(traffic.measured) else None
    predicted_total = None if traffic.basis == "measured" else sum(traffic.predicted)
    all_links = divide(total, predicted_total)
    rates = _rate_cells(total, iteration_s, sum(map(plan.cluster.gbps_of, plan.network.links)))
    rows.append(
        ("all links", show(predicted_total), show(total), ratio(all_links, 4), *rates, MISSING)
    )
    return rows


def _rate_cells(
    sent_bytes: float | None, iteration_s: float | None, gbps: float
) -> tuple[str, str]:
    """The mean rate over an iteration with computing, and its fraction of the planned rate."""
    rate = divide(sent_bytes, iteration_s)
    if rate is None:
        return MISSING, MISSING
    return format_gbps(float(f"{rate * 8e-9:.3g}")), percent(rate * 8e-9 / gbps)


def traffic_section(run: Run) -> Markup:
    """Predicted and measured traffic: heatmaps on one scale, and a table per link."""
    plan = run.plan
    title = "Traffic, predicted and measured" if run.metrics else "Traffic, predicted"
    if not plan.network.links:
        return section("traffic", title, paragraph("The plan has no links, so nothing is sent."))
    traffic = compare_traffic(run)
    if traffic.basis == "predicted" and not plan.predicts_bytes:
        text = "Nothing was predicted, for the demand is not known, and nothing was measured."
        return section("traffic", title, paragraph(text))
    caption = (
        "Bytes on the links from one server (row) to another (column), relayed bytes included; an "
        "empty cell is a pair without a link."
    )
    if plan.predicts_bytes:
        caption += " Demand is what servers have to send each other, whichever way it goes."
    unit = "share" if traffic.basis == "share" else "per iteration"
    if traffic.basis == "measured":
        title, unit = "Traffic, measured", _scale_of_measured(traffic)
    columns = (
        "link (server:port)", f"predicted, {unit}", f"measured, {unit}", "measured ÷ predicted",
        "mean rate", "of planned rate", "relayed part of measured",
    )  # fmt: skip
    iterations = run.metrics.iterations if run.metrics else None
    counted_each = traffic.basis in ("iteration", "measured") and not traffic.averaged
    each_s = iterations.seconds if iterations and counted_each and traffic.steps else None
    *rows, total = _link_rows(plan, traffic, each_s)
    shown = [i for i in range(len(columns)) if any(row[i] != MISSING for row in (*rows, total))]
    heads, total, *rows = (tuple(row[i] for i in shown) for row in (columns, total, *rows))
    body = table("Traffic of each directed link", heads, rows, total=total)
    load = element("h3", "Cumulative distribution of the load of links")
    return section(
        "traffic", title, _basis_text(traffic, ran=run.metrics is not None),
        plot("heatmap", caption), load, plot("loads"), _long("links", body, rows),
    )  # fmt: skip


# ---- wiring --------------------------------------------------------------------------------------


def _ring_names(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def wiring_section(plan: Plan) -> Markup:
    """The cable plan: one row per cable (duplex) or per fibre (simplex)."""
    rings = rings_by_pair(numbered_rings(plan.network))
    duplex = plan.cluster.ports == "duplex"
    rows: list[tuple[str, ...]] = []
    for link in sorted(plan.network.links, key=lambda e: (e.source, e.source_port)):
        if duplex and (link.source, link.source_port) > (link.target, link.target_port):
            continue
        there = _ring_names(rings.get((link.source, link.target), ()))
        back = _ring_names(rings.get((link.target, link.source), ()))
        ends = map(str, (link.source, link.source_port, link.target, link.target_port))
        rows.append((str(len(rows)), *ends, there, *((back,) if duplex else ())))
    if not rows:
        return section("wiring", "Links and wiring", paragraph("No cables: the plan has no links."))
    kind = "cable" if duplex else "link"
    columns = [kind, "server A", "port of A", "server B", "port of B", "rings A → B"]
    columns += ["rings B → A"] if duplex else []
    caption = f"Every {kind} of the plan, {format_gbps(plan.cluster.link_gbps)} in each direction"
    body = table(caption, columns, rows)
    return section("wiring", "Links and wiring", _long(f"{kind}s", body, rows))
