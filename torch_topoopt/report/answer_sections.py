"""Answers to common questions on a plan: the cards of the overview and their sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from torch_topoopt.plan.placement import PARALLELISM
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds
from torch_topoopt.report.analysis.iteration import operators_text
from torch_topoopt.report.html import (
    MISSING,
    breakable,
    element,
    folded,
    paragraph,
    percent,
    plot,
    ratio,
    seconds,
    section,
    significant,
    size,
    table,
)
from torch_topoopt.report.results import server_list

if TYPE_CHECKING:
    from torch_topoopt.plan import Placement, Plan
    from torch_topoopt.planner.explain import Alternative, Explanation
    from torch_topoopt.report.analysis import Analysis
    from torch_topoopt.report.analysis.what_if import AtDegree, WhatIf
    from torch_topoopt.report.run_folder import Run


def answers_section(run: Run, analysis: Analysis) -> Markup:
    """One card per question with an answer for this plan, each a link to the details."""
    cards = [
        _card("slowest", "Why is the slowest link slow?", _slowest_reply(run.plan, analysis)),
        _card("ports", "What would one more port bring?", _ports_reply(run.plan, analysis)),
        _card("splits", "Which operators are split, and why?", _splits_reply(run.plan, analysis)),
        _card("pull", "What happens if a cable is pulled?", _pull_reply(run.plan, analysis)),
    ]
    found = [card for card in cards if card]
    if not found:
        return Markup("")
    note = Markup("")
    if not run.plan.strategy:
        note = paragraph(
            "Questions about time and operators need a model; this plan is of a script that was "
            "traced, or whose communication is not known.",
            class_="note",
        )
    return section("answers", "In short", element("div", *found, class_="answers"), note)


def glance_section(plan: Plan, analysis: Analysis) -> Markup:
    """The network and one iteration, small."""
    if not plan.network.links:
        return Markup("")
    timeline = plot("timeline") if analysis.iteration is not None else ""
    what = "The network and one iteration" if timeline else "The network"
    body = element("div", plot("glance"), timeline, class_="columns")
    return section("glance", what, body)


def _card(target: str, question: str, reply: str) -> Markup:
    if not reply:
        return Markup("")
    return element(
        "a",
        element("span", question, class_="question"),
        element("span", reply, class_="reply"),
        element("span", "Details →", class_="more"),
        class_="answer",
        href=f"#{target}",
    )


def _percent_change(value: float, base: float) -> str:
    """As in "+12.3 %", or "26.9×" from three times on; what rounds to nothing is "unchanged"."""
    change = value / base - 1
    if change >= 2:
        return f"{significant(value / base)}×"
    if abs(change) < 0.0005:
        return "unchanged"
    return f"{'+' if change > 0 else '−'}{abs(change) * 100:.1f} %"


# ---- the slowest link ----------------------------------------------------------------------------


def slowest_link(plan: Plan) -> int:
    """The index of the first link that takes longest for its predicted bytes."""
    links, loads = plan.network.links, plan.prediction.link_bytes
    return max(range(len(links)), key=lambda i: (loads[i] / plan.cluster.gbps_of(links[i]), -i))


def _slowest_reply(plan: Plan, analysis: Analysis) -> str:
    if analysis.iteration is None or not plan.predicts_bytes:
        return ""
    i = slowest_link(plan)
    link, load = plan.network.links[i], plan.prediction.link_bytes[i]
    mean = sum(plan.prediction.link_bytes) / len(plan.network.links)
    busy_s = load * 8 / (plan.cluster.gbps_of(link) * 1e9)
    text = f"{link.source} → {link.target} carries {format_bytes(load)}, {format_seconds(busy_s)}"
    text += " per iteration"
    if min(plan.prediction.link_bytes) >= 0.9995 * max(plan.prediction.link_bytes):
        text += ", as every link does"
    elif mean:
        text += f", {load / mean:.2f}× the mean link"
    row = analysis.iteration.link_bytes[i]
    c = int(row.argmax())
    cargo = analysis.iteration.cargoes[c]
    text += f": {row[c] / row.sum() * 100:.0f} % of it {cargo.kind} of {cargo.label}"
    return f"{text}."


def slowest_section(plan: Plan, analysis: Analysis) -> Markup:
    """The load of a link that the reader chooses, at first the slowest."""
    if analysis.iteration is None or not plan.predicts_bytes:
        return Markup("")
    text = (
        "What one iteration puts on a link, by collective and operators, as the flow-level "
        "simulator routes it; relayed bytes included. The page opens with the link that needs "
        "longest."
    )
    return section("slowest", "Why is the slowest link slow?", paragraph(text), plot("link"))


def timeline_section(plan: Plan, analysis: Analysis) -> Markup:
    if analysis.iteration is None:
        return Markup("")
    simulated_s = analysis.iteration.iteration_s
    text = (
        "One iteration at flow level: the share of the servers that compute, each collective from "
        "its first byte to its last, and how busy each link is (a row of pixels each, darker is "
        "busier)."
    )
    predicted_s = plan.prediction.iteration_s
    if predicted_s and abs(simulated_s / predicted_s - 1) > 0.005:
        text += (
            " Here AllReduces take the schedules that the backend runs, and a transfer is one "
            f"flow for each of its paths. So the iteration takes {format_seconds(simulated_s)}; "
            f"the plan predicts {format_seconds(predicted_s)}."
        )
    return section("timeline", "Timeline of one iteration", paragraph(text), plot("timeline"))


# ---- ports, bandwidth, batch, architectures ------------------------------------------------------


def _priced(what_if: WhatIf, plan: Plan, entry: AtDegree) -> float:
    """Seconds at the plan's bandwidth and batch."""
    value = entry.iteration_s[what_if.gbps.index(plan.cluster.link_gbps)][
        what_if.batches.index(plan.batch_size)
    ]
    assert value is not None
    return value


def _ports_reply(plan: Plan, analysis: Analysis) -> str:
    if analysis.what_if is None:
        return ""
    entries = {entry.degree: entry for entry in analysis.what_if.degrees}
    own = _priced(analysis.what_if, plan, entries[plan.cluster.degree])
    said = []
    for degree in (plan.cluster.degree + 1, plan.cluster.degree + 2):
        if degree in entries:
            value = _priced(analysis.what_if, plan, entries[degree])
            change = _percent_change(value, own)
            said.append(f"{counted(degree, 'port')}: {format_seconds(value)} ({change})")
    if not said:
        return "No more ports can be used with this number of servers."
    return f"{plan.cluster.degree} now: {format_seconds(own)}. {'; '.join(said)}."


def what_if_section(plan: Plan, analysis: Analysis) -> Markup:
    what_if = analysis.what_if
    if what_if is None:
        return Markup("")
    text = (
        f"Move a slider: the iteration is read off {len(what_if.degrees)} networks simulated at "
        f"flow level at {len(what_if.gbps)} bandwidths and {len(what_if.batches)} batch sizes when "
        "this page was made, linear in between in the time of a byte and in the number of "
        "samples. Half way between bandwidths that is at most "
        f"{what_if.worst_error * 100:.1f} % off the simulator. The strategy stays that of the "
        "plan; with another batch, FLOPs and activations grow in proportion, parameters do not."
    )
    entries = {entry.degree: entry for entry in what_if.degrees}
    own_s, planned_s = (
        _priced(what_if, plan, entries[plan.cluster.degree]),
        plan.prediction.iteration_s,
    )
    if planned_s and abs(own_s / planned_s - 1) > 0.005:
        text += (
            f" With the plan's values the simulator says {format_seconds(own_s)}, by the OpGraph "
            "in this folder and the AllReduces that the backend runs; the plan predicts "
            f"{format_seconds(planned_s)}."
        )
    return section(
        "what-if", "Another bandwidth, batch or degree", paragraph(text), plot("what-if")
    )


def ports_section(plan: Plan, analysis: Analysis) -> Markup:
    what_if = analysis.what_if
    if what_if is None:
        return Markup("")
    entries = {entry.degree: entry for entry in what_if.degrees}
    own = _priced(what_if, plan, entries[plan.cluster.degree])
    rows = []
    for entry in what_if.degrees:
        value = _priced(what_if, plan, entry)
        name = counted(entry.degree, "port")
        rows.append(
            (
                f"{name} (this plan)" if entry.degree == plan.cluster.degree else name,
                str(entry.cables),
                f"{entry.mean_hops:.2f}",
                size(entry.busiest_bytes),
                seconds(value),
                _percent_change(value, own),
                seconds(entry.ideal_switch_s),
            )
        )
    text = (
        f"At {format_gbps(plan.cluster.link_gbps)} a port. At other degrees TopologyFinder (mode "
        "paper) wires the demand of this plan anew; the strategy stays, so a new search may find "
        "more. An odd port carries a matching, which only some demand can use. The ideal switch "
        "has the same bandwidth per server."
    )
    columns = (
        "ports per server", "cables" if plan.cluster.ports == "duplex" else "links", "mean hops",
        "bytes on the busiest link", "predicted iteration", "against this plan", "ideal switch",
    )  # fmt: skip
    refused = [
        paragraph(f"No {degree} ports: {why.removeprefix('degree: ')}.", class_="note")
        for degree, why in what_if.refused.items()
        if degree > plan.cluster.degree
    ]
    body = table("Ports of each server, and what they bring", columns, rows)
    title = "What would one more port bring?"
    return section("ports", title, paragraph(text), body, *refused)


def costs_section(plan: Plan, analysis: Analysis) -> Markup:
    costs = analysis.costs
    if not costs:
        return Markup("")
    own = costs[0]
    rows = [
        (
            row.name,
            format_gbps(float(f"{row.server_gbps:.3g}")),
            seconds(row.iteration_s),
            _percent_change(row.iteration_s, own.iteration_s) if row is not own else MISSING,
            ratio(row.bandwidth_tax),
            MISSING if row.cost is None else f"$ {row.cost:,.0f}",
            MISSING if not row.cost else f"{significant(1e6 / (row.iteration_s * row.cost))}",
        )
        for row in costs
    ]
    text = (
        "This plan's strategy on other networks for the same servers and ports, at flow level, and "
        "the capital cost of each by the TopoOpt paper's prices (Table 2; its Figure 10). The "
        "fat-tree has the rate at which it costs what this network costs with patch panels. "
        "`topoopt compare` searches a strategy for each."
    ).replace("`", "")
    columns = (
        "architecture", "rate of a server", "predicted iteration", "against this plan",
        "bandwidth tax", "cost", "iterations/s per $ million",
    )  # fmt: skip
    title = "Other architectures, and what they cost"
    return section("costs", title, paragraph(text), plot("costs"), table("", columns, rows))


# ---- splits --------------------------------------------------------------------------------------


def _splits_reply(plan: Plan, analysis: Analysis) -> str:
    if not analysis.explained:
        return ""
    whole = sum(len(p.servers) == 1 for p in plan.strategy)
    if plan.is_data_parallel:
        text = f"None but by samples: all {len(plan.strategy)} operators are data parallel"
    else:
        names = [
            f"{count} {name}"
            for dimension, name in PARALLELISM.items()
            if (count := sum(getattr(p, dimension) > 1 for p in plan.strategy))
        ]
        names += [f"{whole} whole on one server"] if whole else []
        of = counted(len(plan.strategy), "operator")
        text = f"{', '.join(names) or 'By samples, on some servers'}, of {of}"
    if reason := _reason(analysis.explained):
        text += f"; {reason}"
    return f"{text}."


def _reason(explained: tuple[Explanation, ...]) -> str:
    """The reason for the operator whose best alternative costs most."""
    best: tuple[float, str] | None = None
    for entry in explained:
        others = [other.iteration_s for other in entry.alternatives if other.fits]
        if others:
            lost = min(others) / entry.iteration_s - 1
            change = _percent_change(min(others), entry.iteration_s)
            takes = f"takes {change} as long" if change.endswith("×") else f"costs {change}"
            text = f"another split of {_operators(entry)} {takes} or more"
            best = max(best, (lost, text)) if best else (lost, text)
    if best is None or best[0] < 0.0005:
        return ""
    return best[1]


def _operators(entry: Explanation) -> str:
    names = (entry.placement.operator, *entry.alike)
    return f"{operators_text(names)} ({len(names)})" if len(names) > 1 else names[0]


def _placement(placement: Placement) -> str:
    if len(placement.servers) == 1:
        return f"whole on server {placement.servers[0]}"
    text = str(placement.degrees)
    return f"{text}, on servers {server_list(placement.servers)}"


def splits_section(plan: Plan, analysis: Analysis) -> Markup:
    """The large operators, grouped as `topoopt plan --explain` groups them, each with the best
    other ways and what they would cost."""
    if not plan.strategy or not analysis.explained:
        return Markup("")
    rows = []
    for entry in analysis.explained:
        shares = (entry.compute_share, entry.bytes_share, entry.parameter_share)
        first = entry.alternatives[:1]
        rows.append(
            (
                breakable(_operators(entry)),
                _own(entry),
                _others(entry),
                *map(percent, shares),
                *(_cost(entry, first[0]) if first else (MISSING, MISSING)),
            )
        )
    text = (
        "Large operators, those alike together: how each is split, and the predicted iteration if "
        "one of them were split the best other way while all else stays, against "
        f"{format_seconds(analysis.explained[0].iteration_s)} as planned. Shares are those of all "
        "alike."
    )
    columns = (
        "operators", "split", "best other way", "of computing", "of bytes", "of parameters",
        "iteration then", "change",
    )  # fmt: skip
    body = table("", columns, rows, numeric_from=3)
    return section("splits", "Which operators are split, and why?", paragraph(text), body)


def _others(entry: Explanation) -> str:
    """The best alternative, and the others folded."""
    if not entry.alternatives:
        return MISSING
    best, *others = entry.alternatives
    if not others:
        return _placement(best.placement)
    items = [
        element("li", f"{_placement(other.placement)}: ", " ".join(_cost(entry, other)))
        for other in others
    ]
    more = folded(f"{len(others)} more", element("ul", *items, class_="plain"), is_open=False)
    return Markup("{} {}").format(_placement(best.placement), more)


def _own(entry: Explanation) -> str:
    if entry.alike and len(entry.placement.servers) == 1:
        return "whole on one server each"
    return _placement(entry.placement)


def _cost(entry: Explanation, other: Alternative) -> tuple[str, str]:
    if not other.fits:
        return "does not fit into memory", ""
    return seconds(other.iteration_s), _percent_change(other.iteration_s, entry.iteration_s)


# ---- a cable is pulled ---------------------------------------------------------------------------


def _pull_reply(plan: Plan, analysis: Analysis) -> str:
    lost = analysis.losses
    if lost is None or not lost.losses:
        return ""
    apart = sum(loss.busiest_s is None for loss in lost.losses)
    kind = "cable" if plan.cluster.ports == "duplex" else "link"
    said = [f"{apart} of {counted(len(lost.losses), kind)} disconnect the network"] if apart else []
    simulated = [entry.iteration_s for entry in lost.classes if entry.iteration_s is not None]
    if simulated and lost.iteration_s:
        worst = max(simulated)
        change = _percent_change(worst, lost.iteration_s)
        said.append(f"at worst the iteration takes {format_seconds(worst)} ({change})")
    elif not apart:
        left = min(
            lost.all_reduce_s / loss.all_reduce_s for loss in lost.losses if loss.all_reduce_s
        )
        said.append(f"{left * 100:.0f} % or more of the AllReduce bandwidth is left")
    kinds = len(lost.classes)
    return f"Any one of {len(lost.losses)} ({counted(kinds, 'kind')}): {'; '.join(said)}."


def pull_section(plan: Plan, analysis: Analysis) -> Markup:
    lost = analysis.losses
    if lost is None or not lost.losses:
        return Markup("")
    kind = "cable" if plan.cluster.ports == "duplex" else "link"
    rows = []
    for number, entry in enumerate(lost.classes, 1):
        worst = lost.losses[entry.worst_cable]
        ends = _cable_ends(plan, entry.worst_cable)
        change = MISSING
        if entry.iteration_s is not None and lost.iteration_s:
            change = Markup(_percent_change(entry.iteration_s, lost.iteration_s))
        rows.append(
            (
                f"kind {number}: {counted(entry.cables, kind)}, the worst {ends}",
                f"{worst.rings_given_up} of {worst.rings}" if worst.rings else "none",
                str(worst.pairs),
                seconds(worst.busiest_s),
                seconds(entry.iteration_s),
                change,
            )
        )
    columns = (
        "pulled", "rings given up", "pairs rerouted", "busiest link, per iteration",
        "predicted iteration", "change",
    )  # fmt: skip
    text = (
        f"Choose a {kind} here, or click one in the drawing of the network. Routes and rings are "
        "those of the plan's failure tables; the iteration is simulated at flow level for the "
        f"worst {kind} of each kind, as of a kind all cost alike to two digits."
    )
    caption = f"{counted(len(lost.losses), kind)}, those alike together"
    return section(
        "pull", f"What happens if a {kind} is pulled?", paragraph(text), plot("pull"),
        table(caption, columns, rows),
    )  # fmt: skip


def _cable_ends(plan: Plan, cable: int) -> str:
    from torch_topoopt.plan import cables

    link = plan.network.links[cables(plan.cluster, plan.network)[cable][0]]
    arrow = "–" if plan.cluster.ports == "duplex" else "→"
    return f"{link.source}:{link.source_port} {arrow} {link.target}:{link.target_port}"
