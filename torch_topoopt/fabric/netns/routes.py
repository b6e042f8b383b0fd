"""Host-based forwarding (paper, section 6 and Appendix I): the plan's routes as kernel routes.

Every server has an address of its own. The source sends to the target's address over the port that
the planned route begins with; each relay looks up source and target together (a routing table per
source), so a packet takes the planned route and no other of the same length. Where a plan spreads a
pair over several routes, the kernel takes the heaviest of them, the first of equals.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Link, Plan

_TABLE = 1000  # of source 0; table and priority of the rules


@dataclass(frozen=True)
class Hop:
    """At `link.source`, packets from `source` to `target` leave over `link`."""

    source: int
    target: int
    link: Link

    @property
    def last(self) -> bool:
        return self.link.target == self.target

    @property
    def relayed(self) -> bool:
        return self.link.source != self.source


def hops_by_server(plan: Plan) -> dict[int, list[Hop]]:
    """Server -> its hops; between two servers the first link is used."""
    links: dict[tuple[int, int], Link] = {}
    for link in plan.network.links:
        links.setdefault((link.source, link.target), link)
    hops: dict[int, list[Hop]] = {server: [] for server in range(plan.cluster.servers)}
    for (source, target), servers in plan.network.heaviest_routes().items():
        for here, there in pairwise(servers):
            hops[here].append(Hop(source, target, links[here, there]))
    return hops


def add(
    route: Any,
    layout: NetnsLayout,
    server: int,
    hops: list[Hop],
    ports: dict[int, int],
    addresses: dict[tuple[int, int], str],
    *,
    split: bool,
) -> None:
    """Writes the routes of `server` into its namespace, which `route` talks to.

    `ports` are the indexes of its ports' interfaces, `addresses` those of all (server, port). With
    `split`, packets for the next server to relay go to the forwarding half of its port.
    """
    ruled = set()
    for hop in hops:
        link = hop.link
        gateway = addresses[link.target, link.target_port]
        if split and not hop.last:
            gateway = layout.forward_address(link.target, link.target_port)
        entry: dict[str, Any] = {
            "dst": f"{layout.server_address(hop.target)}/32",
            "gateway": gateway,
            "oif": ports[link.source_port],
            "flags": ["onlink"],
        }
        if not hop.relayed:
            route.route("add", prefsrc=layout.server_address(server), **entry)
            continue
        table = _TABLE + hop.source
        if table not in ruled:
            ruled.add(table)
            source = layout.server_address(hop.source)
            route.rule("add", src=source, src_len=32, table=table, priority=table)
        route.route("add", table=table, **entry)
