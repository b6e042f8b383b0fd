"""The jobs of route control on TopoOpt's fabric; costs of both networks (docs/guides/routes.md)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from torch_topoopt import _core
from torch_topoopt.comparison.cost import Parts
from torch_topoopt.plan import Cluster, Demand, GroupDemand
from torch_topoopt.route_control.clos_network import leaf_spine
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.rates import fair_shares
from torch_topoopt.route_control.schemes import local_search_paths
from torch_topoopt.shared_networks.routed.ring_jobs import MODELS
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.plan import Network

DEPENDS_ON = ("csrc/route_control", "torch_topoopt/route_control", "torch_topoopt/shared_networks")

_PORTS = 8  # of a server, each of them a host of the Clos network


def one_shot(*, model: str, copies: int, mode: Literal["paper", "best"], seed: int) -> Any:
    """Seconds of the AllReduces of one job on links that TopologyFinder chose for them, and that
    stay: servers of 8 ports of 100 Gb/s, a copy of the model on each parts / 8 of them.

    All groups reduce at once, each over its planned rings in rounds; links are shared max-min
    fairly. `group_ports` are the ports of the first server whose links lead into its group.
    """
    split = MODELS[model]
    per_copy = split.parts // _PORTS
    cluster = Cluster(copies * per_copy, _PORTS, 100.0, parallel_links=True)
    groups = tuple(
        GroupDemand(
            tuple(copy * per_copy + place for copy in range(copies)),
            round(_PORTS * split.part_bytes),
        )
        for place in range(per_copy)
    )
    network = find_network(cluster, Demand(groups, ()), mode=mode, search=NetworkSearch(seed=seed))
    own = set(groups[0].servers)
    return {
        "all_reduce_s": _all_reduce_s(cluster, network, groups),
        "servers": cluster.servers,
        "group_ports": sum(link.source == 0 and link.target in own for link in network.links),
    }


def _all_reduce_s(cluster: Cluster, network: Network, groups: tuple[GroupDemand, ...]) -> float:
    links = Counter((link.source, link.target) for link in network.links)
    numbers = {pair: number for number, pair in enumerate(links)}
    bytes_per_s = cluster.link_gbps * 1e9 / 8
    transfers = _core.RingTransfers([count * bytes_per_s for count in links.values()])
    routes = network.routes_by_pair()
    rings = {group.servers: group.rings for group in network.groups}
    waiting = set()
    for group in groups:
        count = len(group.servers)
        for ring in rings[group.servers]:
            hops = []
            for pair in zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True):
                route = max(routes[pair], key=lambda one: one.weight)
                hops.append([numbers[link] for link in pairwise(route.servers)])
            size_bytes = ring.share * group.size_bytes / count
            waiting.add(transfers.start(hops, size_bytes, 2 * (count - 1)))
    while waiting:
        waiting -= set(transfers.advance(float("inf")))
    return float(transfers.now_s)


def figure_9() -> Any:
    """Rates of two flows, of two jobs, from one ToR to another, in links: over the one circuit
    that joins the ToRs, and over paths that the controller chooses among those of two spines."""
    flows = [SwitchedFlow(0, 1, job=0), SwitchedFlow(0, 1, job=1)]
    found = {}
    for name, spines in (("one circuit", 1), ("two spines", 2)):
        problem = RoutingProblem(leaf_spine(2, spines), flows)
        found[name] = list(fair_shares(problem, local_search_paths(problem)).rates)
    return found


def dollars(*, ports: int, gbps: float) -> Any:
    """What joins so many ports of servers: TopoOpt's patch panels, or ToRs and spines that never
    block; prices and parts as in `comparison.cost`."""
    nics = {gbps: ports // 2}
    panels = Parts(
        nics=nics,
        transceivers={gbps: ports},
        switch_ports={},
        switch_fibres={},
        panel_ports=2 * ports,
        ocs_ports=0,
        selectors=ports,
        fibres=ports,
    )
    clos = Parts(
        nics=nics,
        transceivers={gbps: 4 * ports},
        switch_ports={gbps: 3 * ports},
        switch_fibres={gbps: 2 * ports},
        panel_ports=0,
        ocs_ports=0,
        selectors=0,
        fibres=0,
    )
    return {"TopoOpt": panels.cost().total, "Clos": clos.cost().total}
