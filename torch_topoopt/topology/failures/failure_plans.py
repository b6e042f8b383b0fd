"""Failure plans: the repair of a network after the loss of any one cable, link or server.

Paper, section 7 ("Handling failures"): a lost fiber leaves the graph connected, and a link meant
for MP recovers the ring. The alternative is to drop the ring: its bytes move to the group's other
rings, which costs 1/r of the bandwidth of r equal rings, without a detour. The plan's demand
decides between the two. Nothing is rewired.

The backend reduces over a packing of trees into the remaining links instead, if they join the
group. Rings are for groups that they do not join.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.plan import (
    DroppedRings,
    Failure,
    FailurePlan,
    cables,
    validate_failures,
    validate_network,
)
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.topology.failures.degraded import degraded_network, links_left
from torch_topoopt.topology.failures.loads import LoadModel, Loss

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Demand, Network, Plan
    from torch_topoopt.topology.failures.loads import Repair


@dataclass(frozen=True)
class FailureFigures:
    """The cost of a failure, in seconds of the busiest link for the demand of one iteration.

    A group reduces over a packing of trees into the remaining links where that is faster than its
    repaired rings, as the backend does. `all_reduce_s` counts the AllReduce bytes alone and
    `busiest_s` all bytes, before the failure and after it; both are None if the servers are no
    longer connected.
    """

    failure: Failure | None
    is_server: bool
    all_reduce_s: float | None
    busiest_s: float | None


def with_failures(plan: Plan) -> Plan:
    """`plan` with repairs for the loss of any one link or server."""
    failures = plan_failures(plan.cluster, plan.network, plan.demand)
    return replace(plan, failures=failures).validate()


def plan_failures(cluster: Cluster, network: Network, demand: Demand) -> FailurePlan:
    """The failure plans of a valid network, validated; the same arguments give the same result."""
    model = LoadModel(cluster, network, demand)
    servers = range(cluster.servers if cluster.servers > 1 else 0)
    failures = FailurePlan(
        tuple(_choose(model, lost[0], server=False) for lost in cables(cluster, network)),
        tuple(_choose(model, lost, server=True) for lost in servers),
    )
    validate_failures(cluster, network, failures)
    return failures


def degraded(plan: Plan, *, link: int | None = None, server: int | None = None) -> Network:
    """The network of `plan` without `network.links[link]` (and the other direction of its cable),
    or without `server`; see `degraded_network`.

    A plan without `failures` is treated as with those that `plan_failures` would give it. Raises
    ValueError unless exactly one loss is named and exists; DisconnectedError, one of these, if not
    all other servers can reach each other.
    """
    if (link is None) == (server is None):
        raise ValueError("degraded: name either a link or a server")
    cluster, network = plan.cluster, plan.network
    if server is not None:
        if not 0 <= server < cluster.servers or cluster.servers == 1:
            raise ValueError(
                f"server: {server} is not one of {cluster.servers} of which one can be lost"
            )
        position, lost = server, server
    else:
        together = cables(cluster, network)
        found = [i for i, indices in enumerate(together) if link in indices]
        if not found:
            raise ValueError(f"link: {link} is not in 0..{len(network.links) - 1}")
        position, lost = found[0], together[found[0]][0]
    if plan.failures is None:
        failure = _choose(LoadModel(cluster, network, plan.demand), lost, server=server is not None)
    else:
        entries = plan.failures.links if server is None else plan.failures.servers
        failure = entries[position]
    left = degraded_network(cluster, network, failure, server=server is not None)
    return validate_network(cluster, left, without=server)


def failure_figures(plan: Plan) -> tuple[FailureFigures, list[FailureFigures]]:
    """The figures of the whole network, and of every failure: links in order, then servers."""
    model = LoadModel(plan.cluster, plan.network, plan.demand)
    failures = plan.failures or plan_failures(plan.cluster, plan.network, plan.demand)
    if not any(model.all_reduce_bytes):  # no demand: one byte for every group
        model.all_reduce_bytes = [1] * len(model.all_reduce_bytes)
    load = model.zeros()
    for g, size_bytes in enumerate(model.all_reduce_bytes):
        load += model.reduced_load(g) * size_bytes
    whole = FailureFigures(
        None,
        False,
        float((load / model.rate).max(initial=0.0)),
        float(((load + model.pairs.load) / model.rate).max(initial=0.0)),
    )
    entries = [(failure, False) for failure in failures.links]
    entries += [(failure, True) for failure in failures.servers]
    return whole, [_figures(model, failure, is_server) for failure, is_server in entries]


def _figures(model: LoadModel, failure: Failure, is_server: bool) -> FailureFigures:
    if not failure.connected:
        return FailureFigures(failure, is_server, None, None)
    loss = Loss(model, failure.lost, server=is_server, detours=failure.detours)
    dropped = {drop.group: drop.rings for drop in failure.dropped}
    load = model.zeros()
    for g, size_bytes in enumerate(model.all_reduce_bytes):
        if size_bytes:
            load += loss.reduced_load(g, dropped.get(g, ())) * size_bytes
    return FailureFigures(
        failure, is_server, loss.busiest_s(load), loss.busiest_s(load + loss.load)
    )


def _choose(model: LoadModel, lost: int, *, server: bool) -> Failure:
    """The best repair of each group that the loss touches, one after the other."""
    left = links_left(model.cluster, model.network, lost, server=server)
    rest = [s for s in range(model.cluster.servers) if not server or s != lost]
    if unreachable(rest, {(link.source, link.target) for link in left}) is not None:
        return Failure(lost, False, (), ())
    loss = Loss(model, lost, server=server)
    others = loss.load + loss.all_reduce_load
    dropped = []
    for g in loss.groups:
        best = _best_repair(model, loss, g, others)
        others = others + best.load * model.all_reduce_bytes[g]
        if best.dropped:
            dropped.append(DroppedRings(g, best.dropped))
        loss.detours.update(best.detours)
    detours = [route for pair in sorted(loss.detours) for route in loss.detours[pair]]
    return Failure(lost, True, tuple(dropped), tuple(detours))


def _best_repair(model: LoadModel, loss: Loss, g: int, others: NDArray[np.float64]) -> Repair:
    """The cheapest option; one that reaches the bound ends the search."""
    bound_s = loss.bound_s(g, others)
    best: tuple[tuple[float, float, float], Repair] | None = None
    for dropped in _ways_to_drop(model, loss, g):
        repair = loss.repair(g, dropped, others)
        cost = _cost(model, loss, g, repair, others)
        if best is None or cost < best[0]:
            best = (cost, repair)
        if model.all_reduce_bytes[g] and cost[0] <= bound_s * (1 + 1e-8):
            break
    assert best is not None
    return best[1]


def _cost(
    model: LoadModel, loss: Loss, g: int, repair: Repair, others: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Seconds of the busiest link, then of the group alone, then hops; least is best.

    Rounded, so that sums in another order do not decide.
    """
    busiest_s = loss.busiest_s(others + repair.load * model.all_reduce_bytes[g])
    alone_s = loss.busiest_s(repair.load)
    return float(f"{busiest_s:.9g}"), float(f"{alone_s:.9g}"), round(repair.added_hops, 9)


def _ways_to_drop(model: LoadModel, loss: Loss, g: int) -> list[tuple[int, ...]]:
    """Sets of rings that the group may drop, the likely best first; a ring always remains.

    Of the rings on a lost link: one (on duplex with its reverse), all, or none. A lost server is on
    all rings of its groups, so none is dropped for it.
    """
    if loss.server is not None:
        return [()]
    hit = loss.rings_hit(g)
    rings = model.network.groups[g].rings
    units: dict[frozenset[frozenset[int]] | int, list[int]] = {}
    for j, ring in enumerate(rings):
        hops = frozenset(map(frozenset, ring.hops))
        units.setdefault(hops if model.cluster.ports == "duplex" else j, []).append(j)
    candidates = [tuple(unit) for unit in units.values() if hit & set(unit)]
    candidates.append(tuple(sorted(j for unit in candidates for j in unit)))
    ways = [drop for drop in dict.fromkeys(candidates) if drop and len(drop) < len(rings)]
    return [*ways, ()]
