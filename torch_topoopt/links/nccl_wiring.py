"""The NCCL plugin's text form of a Plan and its Wiring, and the order of NCCL's ranks.

The plugin cannot read JSON documents, so its text is lines of words (csrc/nccl/wiring.h).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.links.rank_layout import RankLayout, rank_routes, rings_of
from torch_topoopt.links.sockets import connections, unsent_bytes
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.network import hops_around

if TYPE_CHECKING:
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

LIBRARY = Path(__file__).parent.parent / "lib" / "libnccl-net-topoopt.so"
MAX_RANKS = 1024

_TOKEN_BYTES = 32
_NOT_ENCRYPTED = "-"


def ring_order(plan: Plan) -> tuple[int, ...]:
    """The servers in a cyclic order whose neighbours have links, if there is one.

    NCCL's ring among servers follows its ranks. The first of these orders that has links is used:
    ascending numbers, or a ring of the plan over all servers; if none has, ascending numbers.
    """
    servers = tuple(range(plan.cluster.servers))
    linked = {(link.source, link.target) for link in plan.network.links}
    rings = [
        ring.servers
        for group in plan.network.groups
        for ring in group.rings
        if len(ring.servers) == len(servers)
    ]
    for ring in (servers, *rings):
        if all(hop in linked for hop in hops_around(ring)):
            first = ring.index(0)
            return (*ring[first:], *ring[:first])
    return servers


def nccl_layout(plan: Plan, ranks_per_server: int = 1) -> RankLayout:
    """NCCL's ranks, equally many on every server, in the order of `ring_order`."""
    order = ring_order(plan)
    return RankLayout(tuple(server for server in order for _ in range(ranks_per_server)))


def nccl_wiring(
    plan: Plan, wiring: Wiring, *, ranks_per_server: int = 1, encrypt: bool = False
) -> str:
    """The text for one new job, whose ranks are those of `nccl_layout`.

    Raises:
        DocumentError: the wiring is for another plan, has link-local addresses, or its hosts
            forward for each other (the plugin relays by itself); or there are too many ranks.
    """
    wiring.check(plan)
    if wiring.forwarded:
        raise DocumentError(
            "forwarded: must be empty, for NCCL's plugin relays by itself; wire without forwarding"
        )
    for i, port in enumerate(wiring.ports):
        if is_ipv6(port.address):
            raise DocumentError(
                f"ports[{i}].address: {port.address} is an IPv6 address, which NCCL's "
                "plugin does not take; give the cables IPv4 addresses"
            )
    if ranks_per_server < 1:
        raise DocumentError(f"ranks_per_server: {ranks_per_server} is not 1 or more")
    layout = nccl_layout(plan, ranks_per_server)
    ranks = len(layout.server_of)
    if not 2 <= ranks <= MAX_RANKS:
        raise DocumentError(
            f"cluster.servers: {plan.cluster.servers}, with {ranks_per_server} ranks each, make "
            f"{ranks} ranks, which is not in 2..{MAX_RANKS}"
        )
    asked, said = (secrets.token_hex(_TOKEN_BYTES) for _ in range(2))
    lines = [
        "topoopt-nccl-wiring 4",
        f"job {asked} {said}",
        f"ranks {' '.join(map(str, layout.server_of))}",
    ]
    ports, rates = wiring.by_port(), wiring.planned_rates(plan)
    for link in connections(plan):
        near = ports[link.source, link.source_port]
        far = ports[link.target, link.target_port]
        key = secrets.token_hex(_TOKEN_BYTES) if encrypt else _NOT_ENCRYPTED
        lines.append(
            f"cable {link.source} {link.source_port} {link.target} {link.target_port} "
            f"{plan.cluster.ports} {rates.get(link, 0):g} "
            f"{near.address} {far.address} {wiring.tcp_port_of(far)} "
            f"{near.gbps or 0:g} {far.gbps or 0:g} {unsent_bytes(near)} {unsent_bytes(far)} {key}"
        )
    for rank in range(ranks):
        lines += [
            f"route {route.weight!r} {' '.join(map(str, route.servers))}"
            for route in rank_routes(plan.network, layout, rank)
            if route.servers[0] == rank
        ]
    rings = rings_of(plan, list(range(plan.cluster.servers)), wiring.link_rates(plan))
    lines += [f"ring {ring.share!r} {' '.join(map(str, ring.servers))}" for ring in rings]
    return "\n".join([*lines, ""])


def write_nccl_wiring(
    path: Path,
    plan: Plan,
    wiring: Wiring,
    *,
    ranks_per_server: int = 1,
    encrypt: bool = False,
) -> None:
    """Writes nccl_wiring() with mode 0600, because it contains the job's keys; raises OSError."""
    text = nccl_wiring(plan, wiring, ranks_per_server=ranks_per_server, encrypt=encrypt)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
