"""TopologyFinder: the network for a demand, in one of three modes.

Source: paper section 4.2, Algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from torch_topoopt.plan import Network, validate_demand, validate_network
from torch_topoopt.plan.codec import as_read
from torch_topoopt.topology.best.network_search import DEFAULT_SEARCH
from torch_topoopt.topology.finder.topology_finder import wire_by_rule
from torch_topoopt.topology.routing.load_checks import validate_loads
from torch_topoopt.topology.routing.policies import routed_by
from torch_topoopt.user_functions import UserFunction

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand, Policy
    from torch_topoopt.topology.best.network_search import NetworkSearch

Mode = Literal["paper", "released", "best"]
MODES: tuple[Mode, ...] = get_args(Mode)


def find_network(
    cluster: Cluster,
    demand: Demand,
    *,
    mode: Mode | UserFunction = "paper",
    paths: int = 4,
    routing: Policy | UserFunction = "shortest",
    search: NetworkSearch = DEFAULT_SEARCH,
) -> Network:
    """The network half of a Plan for `demand`, validated; the same arguments give the same result.

    Mode `paper`, the four steps of Algorithm 1: split the degree (`degree_split`; on duplex the
    AllReduce part is rounded up to even), wire strides for AllReduce groups (`ring_counts`,
    `wire_rings`), wire matchings for MP demand (`wire_matchings`), route (`plan_routes`, up to
    `paths` shortest paths for a pair with MP demand). The remaining ports go, in this order, to
    further strides, strides that are not coprime with n, repeated strides if the cluster allows
    parallel links, a matching that crosses the last ring (`crossed_rings`: the odd port of every
    server; stride n / 2 if possible), and matchings over a uniform demand. A port stays unused only
    if no other server has a free one. If a matching crosses a ring over all servers, AllReduce also
    uses its cables when that lowers the load of the busiest link.

    Mode `released`: the algorithm of the paper's public artifact (`released`), one path per pair.
    Both are deterministic: the seed of `search` changes nothing.

    Mode `best`: a search with the options `search` (`find_best_network`; only this mode accepts a
    budget or a price).

    A user's function in the place of a mode is called as find(cluster, demand, seed=...) and
    returns a Network for that cluster, with rings for every group of `demand`
    (`single_ring.ring_network` makes one of links alone).

    Another `routing` than "shortest" replaces the routes at the end (`routing.policies.routed_by`).

    `groups` of the result lists the whole cluster first, demanded or not, and then every demanded
    group, most traffic first; a group of one server has no rings. Rings of one group have equal
    shares, or where ports are not alike shares in proportion to their slowest link. On duplex every
    order of three servers or more is there in both directions.

    Raises DocumentError if `cluster` or `demand` is not valid, ValueError for another mode, a
    `search` out of range, or what the artifact cannot wire.
    """
    if isinstance(mode, UserFunction):
        return _found_by(mode, cluster, demand, search.seed, paths=paths, routing=routing)
    if mode not in MODES:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
    if mode == "best":
        from torch_topoopt.topology.best.find_best import find_best_network

        return find_best_network(cluster, demand, search, paths=paths, routing=routing)
    if search.budget_s is not None or search.price is not None:
        raise ValueError(f"budget_s, price: mode {mode!r} does not search")
    return wire_by_rule(cluster, demand, mode=mode, paths=paths, routing=routing)


def _found_by(
    find: UserFunction,
    cluster: Cluster,
    demand: Demand,
    seed: int,
    *,
    paths: int,
    routing: Policy | UserFunction,
) -> Network:
    """The network that a user's function finds, with the routes of `routing`; validated."""
    cluster.validate()
    validate_demand(cluster, demand)
    network = find(cluster, demand, seed=seed)
    if not isinstance(network, Network):
        raise find.returned(network, "a torch_topoopt.plan.Network")
    with find.checking_result():
        network = validate_network(cluster, as_read(Network, network, "network"))
        validate_loads(cluster.servers, network, demand)
    network = routed_by(cluster, demand, network, routing, paths=paths)
    return validate_loads(cluster.servers, network, demand)
