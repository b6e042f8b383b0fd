"""The section of the page on failures: repair and slowdown after the loss of any one link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from torch_topoopt.report.html import (
    MISSING,
    filtered,
    paragraph,
    percent,
    seconds,
    section,
    table,
)
from torch_topoopt.report.summary import divide
from torch_topoopt.topology.failures.failure_plans import FailureFigures, failure_figures

if TYPE_CHECKING:
    from torch_topoopt.plan import Failure, Plan
    from torch_topoopt.report.analysis.losses import Losses

_OPEN_ROWS = 24  # a longer table starts folded
_TITLE = "After a failure"


def failure_section(plan: Plan, known: Losses | None = None) -> Markup:
    """One row for the loss of every cable (simplex: link) and every server; `known` figures are
    used if given."""
    if plan.failures is None:
        text = "The plan does not say how to go on without a link or a server."
        return section("failures", _TITLE, paragraph(text))
    if known is None:
        whole, figures = failure_figures(plan)
    else:
        whole = FailureFigures(None, False, known.all_reduce_s, known.busiest_s)
        figures = list(known.figures)
    rows = [_row(plan, whole, figure) for figure in figures]
    if not rows:
        text = "One server: there is no link to lose."
        return section("failures", _TITLE, paragraph(text))
    columns = (
        "lost", "rings given up", "hops of rings that are relayed", "AllReduce bandwidth left",
        "busiest link, per iteration",
    )  # fmt: skip
    caption = "The network that is left after any single loss, as the plan has it"
    total = ("nothing", "none", "none", percent(1.0), seconds(whole.busiest_s))
    body = table(caption, columns, rows, total=total)
    if len(rows) > _OPEN_ROWS:
        body = filtered("all-losses", "losses", f"All {len(rows)} losses", body)
    return section("failures", _TITLE, _worst_text(plan, whole, figures), body)


def _worst_text(plan: Plan, whole: FailureFigures, figures: list[FailureFigures]) -> Markup:
    kind = "cable" if plan.cluster.ports == "duplex" else "link"
    sentences = []
    for name, of_kind in (
        (kind, [figure for figure in figures if not figure.is_server]),
        ("server", [figure for figure in figures if figure.is_server]),
    ):
        left = [_left(whole, figure) for figure in of_kind]
        known = [share for share in left if share is not None]
        if known:
            sentences.append(f"Without any one {name}, {percent(min(known))} or more of the")
            sentences.append("bandwidth of AllReduce is left.")
        if apart := sum(not figure.failure.connected for figure in of_kind if figure.failure):
            sentences.append(f"{apart} of {len(of_kind)} {name}s disconnect the network.")
    sentences.append(
        "The plan holds rings and routes for every such loss. A run that loses a link goes on over "
        "those that are left, with rings that it packs into them itself."
    )
    return paragraph(Markup(" ".join(sentences)))


def _left(whole: FailureFigures, figure: FailureFigures) -> float | None:
    return divide(whole.all_reduce_s, figure.all_reduce_s)


def _row(plan: Plan, whole: FailureFigures, figure: FailureFigures) -> tuple[str, ...]:
    failure = figure.failure
    assert failure is not None  # only the whole network's figures have none
    name = f"server {failure.lost}" if figure.is_server else _link(plan, failure)
    if not failure.connected:
        return (name, "disconnects the network", MISSING, MISSING, MISSING)
    given_up = sum(len(dropped.rings) for dropped in failure.dropped)
    of = sum(len(plan.network.groups[dropped.group].rings) for dropped in failure.dropped)
    relayed = len({(way.servers[0], way.servers[-1]) for way in failure.detours})
    return (
        name,
        f"{given_up} of {of}" if given_up else "none",
        str(relayed or "none"),
        percent(_left(whole, figure)),
        seconds(figure.busiest_s),
    )


def _link(plan: Plan, failure: Failure) -> str:
    link = plan.network.links[failure.lost]
    arrow = "–" if plan.cluster.ports == "duplex" else "→"
    return f"{link.source}:{link.source_port} {arrow} {link.target}:{link.target_port}"
