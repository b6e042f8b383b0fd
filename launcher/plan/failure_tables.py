"""The cost to a plan of losing any one cable, link or server, for people and for `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Plan
    from torch_topoopt.topology.failures.failure_plans import FailureFigures


@dataclass(frozen=True)
class WorstLoss:
    """The worst case over `losses`. `disconnecting` counts those that separate other servers. The
    rest is over the others, None if there is none: the remaining share of the AllReduce bandwidth,
    and the time of the busiest link for the bytes of one iteration."""

    losses: int
    disconnecting: int
    all_reduce_bandwidth: float | None
    busiest_link_s: float | None


@dataclass(frozen=True)
class FailureSummary:
    """Without failure, and the worst of all cables (simplex: links) and of all servers."""

    busiest_link_s: float
    links: WorstLoss
    servers: WorstLoss


def failure_summary(plan: Plan) -> FailureSummary:
    """The worst single failures of a plan."""
    from torch_topoopt.topology.failures.failure_plans import failure_figures

    whole, figures = failure_figures(plan)
    assert whole.busiest_s is not None
    links = [figure for figure in figures if not figure.is_server]
    servers = [figure for figure in figures if figure.is_server]
    return FailureSummary(whole.busiest_s, _worst(whole, links), _worst(whole, servers))


def _worst(whole: FailureFigures, figures: Sequence[FailureFigures]) -> WorstLoss:
    reduced = [f.all_reduce_s for f in figures if f.all_reduce_s is not None]
    busiest = [f.busiest_s for f in figures if f.busiest_s is not None]
    slowest_s = max(reduced, default=0.0)
    return WorstLoss(
        len(figures),
        len(figures) - len(busiest),
        (whole.all_reduce_s or 0.0) / slowest_s if slowest_s else None,
        max(busiest, default=None),
    )


def show_failures(terminal: Terminal, plan: Plan) -> None:
    """The table of the worst cases."""
    summary = failure_summary(plan)
    duplex = plan.cluster.ports == "duplex"
    rows = [("nothing", "", "", "100 %", format_seconds(summary.busiest_link_s))]
    link = "any cable" if duplex else "any link"
    for worst, name in ((summary.links, link), (summary.servers, "any server")):
        left, busiest_s = worst.all_reduce_bandwidth, worst.busiest_link_s
        rows.append(
            (
                name,
                str(worst.losses),
                str(worst.disconnecting or "none"),
                "" if left is None else f"{100 * left:.0f} %",
                "" if busiest_s is None else format_seconds(busiest_s),
            )
        )
    terminal.table(
        "Worst single-failure impact",
        ("lost", "possible", "disconnects the network", "AllReduce bandwidth left", "busiest link"),
        rows,
    )
