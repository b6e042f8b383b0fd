"""What limits a cable, from facts of its ends and from floods. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.shaper import goodput_share
from torch_topoopt.plan.units import format_gbps, rate_text
from torch_topoopt.tools.doctor.link_rates import cable_ends, cable_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.tools.doctor.findings import Site
    from torch_topoopt.tools.doctor.link_rates import Limit

_REACHED = 0.85  # fraction of a limit from which it is the cause; PCIe has headers of its own
_BUSY = 0.85  # of one core
_MORE = 1.25  # times: several connections use several cores
_LOSSY = 0.01  # fraction of bytes that are sent again
_SMALL_MTU = 1500


@dataclass(frozen=True)
class FlowRate:
    """The goodput of some connections in one direction, and with the other direction busy, too.

    `resent`: fraction of bytes; `core`: of the busiest core of either end, alone.
    """

    connections: int
    gbps: float
    together_gbps: float
    resent: float
    core: float


@dataclass(frozen=True)
class LinkVerdict:
    """`should_gbps`: the goodput that port, PCIe and MTU allow (None: not known)."""

    should_gbps: float | None
    limit: str
    advice: str


def verdict(
    site: Site, cable: tuple[str, str], rates: Sequence[FlowRate], damaged_frames: int = 0
) -> LinkVerdict:
    """For one direction of a cable, whose cards have dropped so many frames meanwhile."""
    ends = cable_ends(site, cable)
    limits = cable_limits(site, cable, alone=True)
    least = min(limits, key=lambda limit: limit.gbps, default=None)
    mtu = min(interface.mtu for _, interface in ends)
    should = None if least is None else least.gbps * goodput_share(mtu)
    best, one = max(rates, key=lambda rate: rate.gbps), rates[0]
    advice = [*_narrow_pcie(site, cable, limits)]
    if least is not None and should is not None and best.gbps >= _REACHED * should:
        limit = least.what
    elif damaged_frames:
        limit = f"frames that the cards dropped ({damaged_frames})"
        advice.append("check cable, module and pause frames")
    elif best.resent >= _LOSSY:
        limit = f"losses on the way: TCP sends {best.resent:.1%} of the bytes again"
        advice.append("look for a shaper (tc qdisc), and for a switch in between")
    elif best.core >= _BUSY:
        limit = "one core, which is busy with this link"
        advice += _for_a_core(site, cable, mtu)
    elif off := _offloads_off(site, cable):
        limit = f"the driver: {off}"
    else:
        drivers = sorted({name for server, i in ends if (name := _driver(site, server, i.name))})
        named = f" ({', '.join(drivers)})" if drivers else ""
        limit = f"none of port, PCIe, MTU and cores: a shaper, the cable or the driver{named}"
    if best.gbps > _MORE * one.gbps:
        advice.append(
            f"one connection carries {format_gbps(one.gbps)}, {best.connections} carry "
            f"{format_gbps(best.gbps)}: topoopt run has --connections {best.connections}"
        )
    return LinkVerdict(should, limit, "; ".join(advice))


def _narrow_pcie(site: Site, cable: tuple[str, str], limits: Sequence[Limit]) -> list[str]:
    """Functions whose PCIe link is slower than card and slot allow, or than their port."""
    found = []
    for server, interface in cable_ends(site, cable):
        card = site.facts[server].rdma.card_of(interface.name)
        if card is None or card.pcie_gbps is None:
            continue
        best = card.pcie_best_gbps or card.pcie_gbps
        what = f"PCIe of {server} {interface.name} runs at {card.pcie_text}"
        if card.pcie_gbps < best * 0.999:
            share = card.pcie_gbps / best
            found.append(f"{what}, {share:.0%} of what card and slot allow ({rate_text(best)})")
        elif interface.gbps is not None and card.pcie_gbps < interface.gbps:
            found.append(f"{what}, less than the port's {rate_text(interface.gbps)}")
    return found


def _for_a_core(site: Site, cable: tuple[str, str], mtu: int) -> list[str]:
    advice = []
    if mtu <= _SMALL_MTU:
        advice.append(f"with the MTU of {mtu}, a core handles six times the packets of MTU 9000")
    return advice + ([off] if (off := _offloads_off(site, cable)) else [])


def _offloads_off(site: Site, cable: tuple[str, str]) -> str:
    off = [
        f"{name} is off at {server} {interface.name}"
        for server, interface in cable_ends(site, cable)
        for name, on in (("TSO", interface.tso), ("GRO", interface.gro))
        if on is False
    ]
    return ", ".join(off)


def _driver(site: Site, server: str, interface: str) -> str:
    card = site.facts[server].rdma.card_of(interface)
    return card.driver if card else ""
