"""How many TCP connections every link of this process's jobs has.

A network card hands the packets of one connection to one core, and one connection has one
congestion window, so a fast link is filled by several. To the transport each is a cable of its own:
messages go over all of them in parts, and one that is lost is opened anew while the others carry
what it would have.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.reconfiguration.circuit_service import CIRCUITS_VARIABLE
from torch_topoopt.route_control.host.settings import CONTROLLER_VARIABLE
from torch_topoopt.runtime.link_options.transport import TCP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import LinkTraffic, Route

CONNECTIONS_VARIABLE = "TOPOOPT_CONNECTIONS"
MOST_CONNECTIONS = 16
# Rates from which on a link has so many where nothing was asked.
_BY_GBPS = ((100.0, 4), (25.0, 2))
# What has one connection per link, by the variable that asks for it.
_SINGLE = {
    CONTROLLER_VARIABLE: "a controller of routes assigns a path to one connection per link",
    CIRCUITS_VARIABLE: "circuits that move carry one connection each",
}


def connections_asked(transport: str) -> int | None:
    """What TOPOOPT_CONNECTIONS says; None: as many as fit the rates of the links.

    Raises FabricError for another value, and for several where a link can have one only.
    """
    text = os.environ.get(CONNECTIONS_VARIABLE, "auto")
    if text == "auto":
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_CONNECTIONS):
        raise FabricError(
            f"{CONNECTIONS_VARIABLE}: {text!r} is neither auto nor a number in "
            f"1..{MOST_CONNECTIONS}"
        )
    number = int(text)
    if number > 1 and (why := _why_single(transport)):
        raise FabricError(f"{CONNECTIONS_VARIABLE}: {number}, but {why}; set it to 1")
    return number


def _why_single(transport: str) -> str:
    if transport != TCP:
        return f"a link over libfabric ({transport}) has one connection"
    return next((why for name, why in _SINGLE.items() if os.environ.get(name)), "")


def connections_per_link(asked: int | None, transport: str, wiring: Wiring) -> int:
    """The same on all ranks: what was asked, else by the fastest port of the wiring."""
    if asked is not None:
        return asked
    if _why_single(transport):
        return 1
    rates = [port.gbps or port.speed_gbps for port in wiring.ports]
    fastest = max((rate for rate in rates if rate is not None), default=0.0)
    return next((number for gbps, number in _BY_GBPS if fastest >= gbps), 1)


def over_all_connections(routes: Iterable[Route], per_link: int) -> list[Route]:
    """Every route as often as links have connections; the k-th of a pair takes the k-th one."""
    return [
        replace(route, weight=route.weight / per_link) for route in routes for _ in range(per_link)
    ]


def of_links(traffic: Iterable[LinkTraffic]) -> list[LinkTraffic]:
    """The traffic of links from that of their connections, which are busy at the same time."""
    links: dict[Any, LinkTraffic] = {}
    for each in traffic:
        before = links.get(each.link)
        if before is None:
            links[each.link] = each
        else:
            both, seconds = before + each, max(before.seconds, each.seconds)
            links[each.link] = replace(both, seconds=seconds, kind=each.kind)
    return list(links.values())
