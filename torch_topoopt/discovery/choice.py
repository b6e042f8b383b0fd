"""The line that says what was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.discovery.network_choice import NetworkChoice
    from torch_topoopt.discovery.reach import Server
    from torch_topoopt.plan import Plan, Ring


def describe_choice(servers: list[Server], choice: NetworkChoice) -> str:
    """Servers, ranks, shared memory or TCP, interfaces, ring, and why these networks."""
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
    return "; ".join(parts)


def _rings(servers: list[Server], plan: Plan, rings: tuple[Ring, ...]) -> str:
    order = rings[0].servers
    routes = plan.network.routes_by_pair()
    hops = zip(order, order[1:] + order[:1], strict=True)
    direct = all(len(routes[hop][0].servers) == 2 for hop in hops)
    distinct = len({server.name for server in servers}) == len(servers)
    names = [servers[s].name if distinct else f"rank {servers[s].ranks[0]}" for s in order]
    more = f" and {_counted(len(rings) - 1, 'more ring')}" if len(rings) > 1 else ""
    return f"ring {'' if direct else 'through relays '}{' - '.join(names)}{more}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
