"""The kernel's routes are the plan's: hop by hop, each pair reaches its target over its relays."""

from __future__ import annotations

import dataclasses

from support.fabric.netns_fixtures import make_plan

from torch_topoopt.fabric.netns.routes import hops_by_server
from torch_topoopt.plan import Route


def test_following_the_hops_of_any_pair_visits_the_servers_of_its_route() -> None:
    plan = make_plan(12, 4)
    hops = {
        (server, hop.source, hop.target): hop
        for server, of_server in hops_by_server(plan).items()
        for hop in of_server
    }
    routes = plan.network.heaviest_routes()
    assert len(routes) == 12 * 11
    for (source, target), servers in routes.items():
        visited = [source]
        while visited[-1] != target:
            hop = hops.pop((visited[-1], source, target))
            assert hop.link in plan.network.links
            assert hop.relayed == (len(visited) > 1)
            visited.append(hop.link.target)
            assert hop.last == (visited[-1] == target)
        assert tuple(visited) == servers
    assert hops == {}, "no unused entry"


def test_of_several_routes_the_heaviest_is_taken() -> None:
    plan = make_plan(4, 2)
    network = dataclasses.replace(
        plan.network,
        routes=(
            Route((0, 1, 2), 0.4),
            Route((0, 3, 2), 0.6),
            *(route for route in plan.network.routes if route.servers[::2] != (0, 2)),
        ),
    )
    assert network.heaviest_routes()[0, 2] == (0, 3, 2)
