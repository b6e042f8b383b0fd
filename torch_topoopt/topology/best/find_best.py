"""Mode `best` of TopologyFinder: searches a network for the demand.

The paper's steps choose a degree split, strides and matchings one after the other, each by a rule.
Mode `best` tries several splits, searches rings and links together (`best_candidates`), plans
routes for every candidate, and returns the best network. The paper's own network is a candidate, so
the result is never worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Network, validate_demand
from torch_topoopt.topology.best.candidates import candidates
from torch_topoopt.topology.best.network_search import DEFAULT_SEARCH
from torch_topoopt.topology.best.ring_unions import WORK_PER_S
from torch_topoopt.topology.finder.topology_finder import wire_by_rule
from torch_topoopt.topology.routing.load_checks import validate_loads
from torch_topoopt.topology.routing.loads import demand_cost
from torch_topoopt.topology.routing.policies import routed_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Cluster, Demand, Policy
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.user_functions import UserFunction


def find_best_network(
    cluster: Cluster,
    demand: Demand,
    search: NetworkSearch = DEFAULT_SEARCH,
    *,
    paths: int = 4,
    routing: Policy | UserFunction = "shortest",
) -> Network:
    """The network half of a Plan for `demand`, validated: the best of all that were looked at.

    `search` defines the objective and the budget. As in mode `paper`, groups list the whole cluster
    first, rings of one group have equal shares (at unequal rates, in proportion to their slowest
    link), and duplex rings have both directions. `routing` is a policy of `routing.policies`.

    Raises DocumentError if `cluster` or `demand` is not valid, and ValueError for a negative seed
    or a budget that is not a finite number above 0.
    """
    cluster.validate()
    validate_demand(cluster, demand)
    search.validate()
    budget_s = search.budget_of(cluster.servers)
    best = wire_by_rule(cluster, demand, paths=paths, routing=routing)
    if cluster.servers <= 2:
        return best  # one cable: there is nothing to choose
    best_cost = _cost(cluster, demand, best, search.price)
    if search.on_better is not None:
        search.on_better(best)
    for network in candidates(
        cluster, demand, seed=search.seed, work=int(budget_s * WORK_PER_S), paths=paths
    ):
        routed = routed_by(cluster, demand, network, routing, paths=paths)
        cost = _cost(cluster, demand, routed, search.price)
        if cost < best_cost:
            best, best_cost = routed, cost
            if search.on_better is not None:
                search.on_better(best)
    return validate_loads(cluster.servers, best, demand)


def _cost(
    cluster: Cluster, demand: Demand, network: Network, price: Callable[[Network], float] | None
) -> tuple[float, ...]:
    priced = () if price is None else (price(network),)
    return (*priced, *demand_cost(cluster, demand, network))
