"""The cost to a plan of losing any one cable, link or server, for people and for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Plan
    from torch_topoopt.topology.failures.failure_plans import FailureFigures


def failure_summary(plan: Plan) -> dict[str, Any]:
    """Worst cases over all cables (simplex: links) and over all servers.

    `all_reduce_bandwidth` is what is left of that of the whole network, `busiest_link_s` the time
    of the busiest link for the bytes of one iteration; both over the losses that leave all other
    servers connected, None if there is none. `disconnecting` counts the others.
    """
    from torch_topoopt.topology.failures.failure_plans import failure_figures

    whole, figures = failure_figures(plan)
    kinds = {
        "links": [figure for figure in figures if not figure.is_server],
        "servers": [figure for figure in figures if figure.is_server],
    }
    return {
        "busiest_link_s": whole.busiest_s,
        **{kind: _worst(whole, of_kind) for kind, of_kind in kinds.items()},
    }


def _worst(whole: FailureFigures, figures: Sequence[FailureFigures]) -> dict[str, Any]:
    reduced = [f.all_reduce_s for f in figures if f.all_reduce_s is not None]
    busiest = [f.busiest_s for f in figures if f.busiest_s is not None]
    slowest_s = max(reduced, default=0.0)
    return {
        "losses": len(figures),
        "disconnecting": len(figures) - len(busiest),
        "all_reduce_bandwidth": (whole.all_reduce_s or 0.0) / slowest_s if slowest_s else None,
        "busiest_link_s": max(busiest, default=None),
    }


def show_failures(terminal: Terminal, plan: Plan) -> None:
    """The table of the worst cases."""
    summary = failure_summary(plan)
    duplex = plan.cluster.ports == "duplex"
    rows = [("nothing", "", "", "100 %", format_seconds(summary["busiest_link_s"]))]
    for kind, name in (("links", "any cable" if duplex else "any link"), ("servers", "any server")):
        worst = summary[kind]
        left, busiest_s = worst["all_reduce_bandwidth"], worst["busiest_link_s"]
        rows.append(
            (
                name,
                str(worst["losses"]),
                str(worst["disconnecting"] or "none"),
                "" if left is None else f"{100 * left:.0f} %",
                "" if busiest_s is None else format_seconds(busiest_s),
            )
        )
    terminal.table(
        "Worst single-failure impact",
        ("lost", "possible", "disconnects the network", "AllReduce bandwidth left", "busiest link"),
        rows,
    )
