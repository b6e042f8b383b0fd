"""The line that describes the chosen networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery.reach import slow_interfaces

if TYPE_CHECKING:
    from torch_topoopt.discovery.network_choice import NetworkChoice
    from torch_topoopt.discovery.reach import Server
    from torch_topoopt.plan import Plan, Ring

_MOST_SHOWN = 4


def describe_choice(servers: list[Server], choice: NetworkChoice) -> str:
    """Servers, ranks, shared memory or TCP, interfaces, ring, the reason for the choice, and
    unusable interfaces."""
    plan = choice.plan
    counts = sorted({len(server.ranks) for server in servers})
    ranks = _counted(counts[0], "rank")
    if len(counts) > 1:
        ranks = f"{counts[0]} to {counts[-1]} ranks"
    each = " each" if len(servers) > 1 else ""
    parts = [f"{_counted(len(servers), 'server')}, {ranks}{each}"]
    if counts[-1] > 1:
        parts.append("shared memory inside a server")
    if len(servers) > 1:
        names = ", ".join(sorted({port.interface or "" for port in choice.wiring.ports} - {""}))
        parts.append(f"{_counted(len(plan.network.links) // 2, 'TCP connection')} over {names}")
        parts.append(_rings(servers, plan, plan.network.groups[0].rings))
        if choice.reason:
            parts.append(choice.reason)
        if alone := _alone_in_their_subnets(servers, slow_interfaces(servers)):
            shown = ", ".join(alone[:_MOST_SHOWN])
            more = f" and {len(alone) - _MOST_SHOWN} more" if len(alone) > _MOST_SHOWN else ""
            parts.append(f"not used, for no other server is in their subnets: {shown}{more}")
    return "; ".join(parts)


def _alone_in_their_subnets(servers: list[Server], slow: set[str]) -> list[str]:
    """Fast interfaces without a common subnet with another server, on two servers or more.

    They may be the ends of cables with mismatched addresses. An address that several servers have
    belongs to a local bridge such as docker0.
    """
    found: dict[int, list[str]] = {}
    for number, server in enumerate(servers):
        others = [i for other in servers if other is not server for i in other.interfaces]
        for name in dict.fromkeys(interface.name for interface in server.interfaces):
            own = [i for i in server.interfaces if i.name == name and not i.loopback]
            if own and not any(
                i.address in slow or i.shares_subnet(far) for i in own for far in others
            ):
                addresses = ", ".join(i.with_prefix for i in own)
                found.setdefault(number, []).append(f"{name} of {server.name} ({addresses})")
    return [label for of_server in found.values() for label in of_server] if len(found) > 1 else []


def _rings(servers: list[Server], plan: Plan, rings: tuple[Ring, ...]) -> str:
    order = rings[0].servers
    routes = plan.network.routes_by_pair()
    direct = all(len(routes[hop][0].servers) == 2 for hop in rings[0].hops)
    distinct = len({server.name for server in servers}) == len(servers)
    names = [servers[s].name if distinct else f"rank {servers[s].ranks[0]}" for s in order]
    more = f" and {_counted(len(rings) - 1, 'more ring')}" if len(rings) > 1 else ""
    return f"ring {'' if direct else 'through relays '}{' - '.join(names)}{more}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
