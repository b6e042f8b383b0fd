"""Plans that are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    Placement,
    Plan,
    Prediction,
    Ring,
    Round,
    Route,
    SearchSample,
)

RingPlan = Callable[..., Plan]


def _ring_links(count: int, ports: str) -> tuple[Link, ...]:
    """The +1 ring. Duplex: port 0 to the successor's port 1, and back on the same cable."""
    if count == 1:
        return ()
    if count == 2 and ports == "duplex":
        return (Link(0, 0, 1, 0), Link(1, 0, 0, 0))
    forward = [Link(s, 0, (s + 1) % count, 1 if ports == "duplex" else 0) for s in range(count)]
    back = [link.reverse for link in forward] if ports == "duplex" else []
    return (*forward, *back)


def _ring_routes(count: int, links: tuple[Link, ...]) -> tuple[Route, ...]:
    adjacent = {(link.source, link.target) for link in links}
    return tuple(
        Route(tuple((a + i) % count for i in range((b - a) % count + 1)), 1.0)
        for a in range(count)
        for b in range(count)
        if a != b and (a, b) not in adjacent
    )


def make_ring_plan(servers: int = 4, *, link_gbps: float = 1.0, ports: str = "duplex") -> Plan:
    """A small valid plan by hand, without the planner: servers on one +1 ring."""
    duplex = ports == "duplex"
    degree = 2 if duplex and servers > 2 else 1
    links = _ring_links(servers, ports)
    everyone = tuple(range(servers))
    rings = [Ring(everyone, 1.0)]
    if duplex and servers > 2:
        rings = [Ring(everyone, 0.5), Ring(everyone[::-1], 0.5)]
    size = 4_000_000
    return Plan(
        version=Plan.WITHOUT_LAYOUT,
        model="by hand",
        batch_size=32,
        seed=0,
        mode="paper",
        strategy_space="data-parallel",
        cluster=Cluster(servers, degree, link_gbps, "duplex" if duplex else "simplex"),
        network=Network(
            links,
            (Group(everyone, tuple(rings) if servers > 1 else ()),),
            _ring_routes(servers, links),
        ),
        demand=Demand((GroupDemand(everyone, size),), ()),
        prediction=Prediction(0.02, 0.01, 0.02, 0.015, tuple(size for _ in links)),
        rounds=(Round(0.02, 0.02, 0.02, 0.015, True),),
        search=(SearchSample(1, 0.02, 0.02),),
        strategy=(Placement("layer", everyone),),
    ).validate()


def renumbered(plan: Plan, order: tuple[int, ...]) -> Plan:
    """The same plan, whose server k is now order[k]."""
    network = plan.network
    links = tuple(
        replace(link, source=order[link.source], target=order[link.target])
        for link in network.links
    )
    groups = tuple(
        replace(
            group,
            rings=tuple(
                replace(ring, servers=tuple(order[s] for s in ring.servers)) for ring in group.rings
            ),
        )
        for group in network.groups
    )
    routes = tuple(
        replace(route, servers=tuple(order[s] for s in route.servers)) for route in network.routes
    )
    renumbered = replace(network, links=links, groups=groups, routes=routes)
    return replace(plan, network=renumbered)
