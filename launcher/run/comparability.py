"""Whether a measured iteration is comparable with the predicted one, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan.link_traffic import FEWEST_COMPARED
from torch_topoopt.plan.units import counted, format_gbps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.discovery.cable_rates import CableRate
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, IterationTimes

_SAME = 0.6  # of a rate: the tolerance of a measurement


def why_not_compared(
    iterations: IterationTimes, cluster: Cluster, rates: Sequence[CableRate] | None, *, paced: bool
) -> str:
    """The reason, or "" if it is comparable.

    `cluster` is the plan's. `rates` are those of its cables; None for emulated links, and then
    `paced` says whether they have a rate.
    """
    if iterations.count < FEWEST_COMPARED:
        return f"fewer than {FEWEST_COMPARED} iterations were measured"
    planned = format_gbps(cluster.link_gbps)
    if rates is None:
        return "" if paced else f"the links have no limit, and {planned} was assumed"
    unknown = [rate for rate in rates if rate.gbps is None]
    if unknown or not rates:
        return f"no measurement confirms the rate of the links, {planned}"
    slowest = min(rate.gbps or 0.0 for rate in rates)
    if slowest < _SAME * cluster.link_gbps:
        return f"the plan is for links of {planned}, and a cable carries {format_gbps(slowest)}"
    return ""


def show_rates(
    terminal: Terminal, rates: Sequence[CableRate], stated: dict[tuple[str, str], float | None]
) -> None:
    """One line for cables below their rate in the cluster file."""
    slower = [rate for rate in rates if rate.gbps and rate.gbps != stated[rate.ends]]
    if not slower:
        return
    carried = " or ".join(format_gbps(gbps) for gbps in sorted({r.gbps or 0.0 for r in slower}))
    said = sorted({gbps for rate in slower if (gbps := stated[rate.ends])})
    instead = f", not {' or '.join(map(format_gbps, said))} as the cluster file says"
    terminal.line(
        f"measured {carried} on {counted(len(slower), 'cable')} of {len(rates)}"
        f"{instead if said else ''}"
    )
