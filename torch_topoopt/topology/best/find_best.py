"""Mode `best` of TopologyFinder: networks searched for the demand at hand, not built in one pass.

The paper's steps choose a degree split, strides and matchings one after the other, each by a rule.
Here several splits are tried; for each, rings and links are searched together (`best_candidates`);
routes are planned for every result; and the network that serves the demand best is kept. The
paper's own network is one of them, so the result is never worse than it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt.plan import Network, validate_demand
from torch_topoopt.topology.best.candidates import candidates
from torch_topoopt.topology.best.ring_unions import WORK_PER_S
from torch_topoopt.topology.finder.topology_finder import wire_by_rule
from torch_topoopt.topology.routing.load_checks import validate_loads
from torch_topoopt.topology.routing.loads import demand_cost
from torch_topoopt.topology.routing.policies import routed_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Cluster, Demand
    from torch_topoopt.topology.routing.policies import Policy

BUDGET_S_PER_SERVER = 1 / 64  # so that 128 servers get two seconds


def find_best_network(
    cluster: Cluster,
    demand: Demand,
    *,
    seed: int = 0,
    budget_s: float | None = None,
    paths: int = 4,
    routing: Policy = "shortest",
    price: Callable[[Network], float] | None = None,
    on_better: Callable[[Network], None] | None = None,
) -> Network:
    """The network half of a Plan for `demand`, validated: the best of all that were looked at.

    Best is the least `price(network)`, for example the predicted seconds of an iteration; where
    that is equal, or without a `price`, the least of `demand_cost`. As in mode `paper`, groups list
    the whole cluster first, rings of one group have equal shares (where ports are not alike, shares
    that follow their slowest link), and a ring is there in both directions on duplex. `routing` is
    a policy of `routing_policies`, for every candidate.

    `budget_s` is what the search over rings and links may cost, in seconds of a core that does
    `WORK_PER_S` operations in each: steps are counted, no clock is read, so the same arguments give
    the same network, byte for byte. More finds better; the default is `BUDGET_S_PER_SERVER` each.
    Planning routes comes on top. `on_better` is called with every network that is better than all
    before it, the paper's own first: for whoever ends the search early.

    Raises DocumentError if `cluster` or `demand` is not valid, and ValueError for a negative seed
    or a budget that is not a finite number above 0.
    """
    cluster.validate()
    validate_demand(cluster, demand)
    if seed < 0:
        raise ValueError(f"seed: {seed} is negative")
    if budget_s is None:
        budget_s = BUDGET_S_PER_SERVER * cluster.servers
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s: {budget_s} is not a finite number of seconds above 0")
    best = wire_by_rule(cluster, demand, paths=paths, routing=routing)
    if cluster.servers <= 2:
        return best  # one cable: there is nothing to choose
    best_cost = _cost(cluster, demand, best, price)
    if on_better is not None:
        on_better(best)
    for network in candidates(
        cluster, demand, seed=seed, work=int(budget_s * WORK_PER_S), paths=paths
    ):
        routed = routed_by(cluster, demand, network, routing, paths=paths)
        cost = _cost(cluster, demand, routed, price)
        if cost < best_cost:
            best, best_cost = routed, cost
            if on_better is not None:
                on_better(best)
    return validate_loads(cluster.servers, best, demand)


def _cost(
    cluster: Cluster, demand: Demand, network: Network, price: Callable[[Network], float] | None
) -> tuple[float, ...]:
    priced = () if price is None else (price(network),)
    return (*priced, *demand_cost(cluster, demand, network))
