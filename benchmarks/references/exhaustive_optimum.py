"""The least time of all strategies on all networks of a small cluster, without simulating each.

Strategies are all of a strategy_space. Networks are those that TopologyFinder makes for any of the
strategies that are not ruled out, in the order of its modes given, with the servers in any order:
where a server has two ports, or one for every other server, these are all cablings.

A pair of both is simulated only if two lower bounds of its time are below the least time known:

- of the strategy (`StrategyBound`): the compute of the busiest server; and what must follow each
  other, where a server sends and takes no more than all its ports carry, and no transfer or
  AllReduce is faster than alone on the network that is fastest for it;
- of the pair (`LinkLoads`): the bytes on the busiest link over its rate.

That leaves few pairs; tests compare with going through all.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import Group, Link, Network, Ring, Route
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.lowering import degrees_of, lower_job, operand_needs
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.strategy_space import every_strategy
from torch_topoopt.search.traffic import demand, parameter_groups
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch_topoopt.op_graph import OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster, Demand, Placement
    from torch_topoopt.search.strategies import Strategy

Alone = tuple[np.ndarray, dict[tuple[int, ...], float]]  # seconds per byte: pairs, groups
_ROUNDING = 1e-9  # of a bound, which adds the same numbers in another order than a simulator


@dataclass(frozen=True)
class Optimum:
    """The least time, and how it was found: of `strategies`, `promising` were not ruled out."""

    iteration_s: float
    strategy: Strategy
    strategies: int
    promising: int
    networks: int
    simulated: int


def optimum_of(
    graph: OpGraph,
    cluster: Cluster,
    *,
    dimensions: Collection[SplitDimension] = (),
    at_most_s: float = math.inf,
    also: Iterable[Network] = (),
) -> Optimum:
    """The least time of all strategies on all networks (see the top), and on those of `also`.

    `at_most_s` is the time of a pair that is known: it spares simulations, and changes
    nothing else, as long as it is not below the optimum. Raises ValueError if nothing is as fast.
    """
    strategies = every_strategy(graph, cluster.servers, dimensions)
    bound = StrategyBound(graph, cluster)
    by_bound = sorted((bound.seconds(strategy), i) for i, strategy in enumerate(strategies))
    limit_s = at_most_s * (1 + _ROUNDING)
    promising = [strategies[i] for seconds, i in by_bound if seconds <= limit_s]
    if not promising:
        raise ValueError(f"at_most_s: nothing is as fast as {at_most_s:g} s")
    demands = [demand(graph, strategy, cluster.servers) for strategy in promising]
    made = (find_network(cluster, d, mode="paper") for d in dict.fromkeys(demands))
    loads = LinkLoads(cluster, demands)
    networks = list(in_any_order(cluster, itertools.chain(also, made)))
    seconds_per_byte = [loads.seconds_per_byte(network) for network in networks]
    alone = loads.by_name(np.min([each.max(axis=0) for each in seconds_per_byte], axis=0))
    bounds = [bound.seconds(strategy, alone) for strategy in promising]
    pairs = []
    for n, per_byte in enumerate(seconds_per_byte):
        seconds = np.maximum(loads.seconds(per_byte), bounds)
        pairs += [(float(seconds[s]), n, s) for s in np.flatnonzero(seconds <= limit_s)]
    job = lower_job(graph, cluster, degrees_of(promising))
    routed: dict[int, _core.RoutedNetwork] = {}
    best_s, best, simulated = math.inf, -1, 0
    for seconds, n, s in sorted(pairs):
        if seconds > min(best_s, limit_s):
            break
        if n not in routed:
            routed[n] = _core.RoutedNetwork(
                servers=cluster.servers,
                links=networks[n].links,
                bytes_per_s=cluster.link_bytes_per_s,
                latency_s=cluster.link_latency_s,
                routes=networks[n].routes,
                groups=networks[n].groups,
            )
        simulated += 1
        took_s = _core.simulate_iteration(job, routed[n], promising[s]).iteration_s
        if took_s < best_s:
            best_s, best = took_s, s
    if best_s > limit_s:
        raise ValueError(f"at_most_s: nothing is as fast as {at_most_s:g} s")
    counts = len(strategies), len(promising), len(networks), simulated
    return Optimum(best_s, promising[best], *counts)


def in_any_order(cluster: Cluster, networks: Iterable[Network]) -> Iterator[Network]:
    """The networks for every order of the servers, each only once; ports are all 0."""
    found: set[Network] = set()
    seen: set[str] = set()
    for network in networks:
        routes = [route for routes in network.routes_by_pair().values() for route in routes]
        if (same := repr((network.links, network.groups, routes))) in seen:
            continue
        seen.add(same)
        for order in itertools.permutations(range(cluster.servers)):
            named = _renumbered(network, routes, order)
            if named not in found:
                found.add(named)
                yield named


def _renumbered(network: Network, routes: Sequence[Route], order: Sequence[int]) -> Network:
    def servers_of(part: Group | Ring | Route) -> tuple[int, ...]:
        return tuple(order[server] for server in part.servers)

    links = sorted((order[a.source], order[a.target]) for a in network.links)
    groups = sorted(
        (tuple(sorted(servers_of(group))), sorted((servers_of(r), r.share) for r in group.rings))
        for group in network.groups
    )
    return Network(
        tuple(Link(source, 0, target, 0) for source, target in links),
        tuple(Group(members, tuple(Ring(*ring) for ring in rings)) for members, rings in groups),
        tuple(Route(*way) for way in sorted((servers_of(r), r.weight) for r in routes)),
    )


class LinkLoads:
    """Seconds that links are busy, for many demands at once; of every pair and every group.

    AllReduces of a group that the network has no rings for are left out, so it is a lower bound.
    """

    def __init__(self, cluster: Cluster, demands: Sequence[Demand]) -> None:
        n = cluster.servers
        self._cluster = cluster
        groups = sorted({g.servers for d in demands for g in d.groups})
        self._bytes = np.zeros((n * n + len(groups), len(demands)))
        self._groups = {members: n * n + i for i, members in enumerate(groups)}
        for i, asked in enumerate(demands):
            for pair in asked.pairs:
                self._bytes[pair.source * n + pair.target, i] += pair.size_bytes
            for group in asked.groups:
                self._bytes[self._groups[group.servers], i] += group.size_bytes

    def seconds_per_byte(self, network: Network) -> np.ndarray:
        """Of each link (rows) for each pair and group (columns) on `network`, of `in_any_order`."""
        n = self._cluster.servers
        use = np.zeros((n * n, len(self._bytes)))  # bytes on a link per byte that is asked for
        for route in network.routes:
            path = route.servers
            for a, b in itertools.pairwise(path):
                use[a * n + b, path[0] * n + path[-1]] += route.weight
        for group in network.groups:
            column = self._groups.get(group.servers)
            if column is None:
                continue
            share_of_ring = 2 * (len(group.servers) - 1) / len(group.servers)
            for ring in group.rings:
                for a, b in zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True):
                    use[:, column] += ring.share * share_of_ring * use[:, a * n + b]
        count = np.zeros(n * n)
        np.add.at(count, [link.source * n + link.target for link in network.links], 1)
        used = count > 0
        per_byte: np.ndarray = use[used] / (count[used] * self._cluster.link_bytes_per_s)[:, None]
        return per_byte

    def seconds(self, per_byte: np.ndarray) -> np.ndarray:
        """Of the busiest link, for each of the demands, of `seconds_per_byte` of a network."""
        # Pairs are rounded to whole bytes in a demand.
        less = per_byte.sum(axis=1).max()
        worst: np.ndarray = (per_byte @ self._bytes).max(axis=0) - less
        return worst * (1 - _ROUNDING)

    def by_name(self, columns: np.ndarray) -> tuple[np.ndarray, dict[tuple[int, ...], float]]:
        """A number for each pair, [source, target], and for each group."""
        n = self._cluster.servers
        groups = {members: float(columns[i]) for members, i in self._groups.items()}
        return columns[: n * n].reshape(n, n), groups


class StrategyBound:
    """Seconds that a strategy takes at least, on any network of the cluster's ports."""

    def __init__(self, graph: OpGraph, cluster: Cluster) -> None:
        self._graph, self._cluster = graph, cluster
        self._ports = cluster.degree * cluster.link_bytes_per_s
        self._device = accelerator(cluster.accelerator)
        self._cost: dict[Any, tuple[float, float]] = {}
        self._moved: dict[Any, list[tuple[int, int, float]]] = {}

    def seconds(self, strategy: Strategy, alone: Alone | None = None) -> float:
        """The bound of `strategy`; `alone` says what a byte of a pair or group takes at least."""
        busy = [0.0] * self._cluster.servers
        forward: list[dict[int, float]] = []  # per operator, when its shard on a server is done
        for i, (operator, placement) in enumerate(
            zip(self._graph.operators, strategy, strict=True)
        ):
            cost_s = self._cost_of(i, placement)
            for server in placement.servers:
                busy[server] += sum(cost_s)
            ready = dict.fromkeys(placement.servers, 0.0)
            for operand in operator.operands:
                moved = self._moved_of(i, strategy[operand.producer], placement)
                made = forward[operand.producer]
                _wait(ready, made, moved, self._wire(operand.size_bytes, alone))
            forward.append({server: ready[server] + cost_s[0] for server in ready})
        ready_s = [dict(done) for done in forward]  # for the backward pass
        worst_s = max(busy)
        for i in range(len(strategy) - 1, -1, -1):
            operator, placement = self._graph.operators[i], strategy[i]
            cost_s = self._cost_of(i, placement)
            done = {server: ready_s[i][server] + cost_s[1] for server in placement.servers}
            worst_s = max(worst_s, *done.values(), self._reduced(i, placement, done, alone))
            for operand in operator.operands:
                if operand.gradient_bytes:
                    producer = strategy[operand.producer]
                    back = [(b, a, share) for a, b, share in self._moved_of(i, producer, placement)]
                    wire = self._wire(operand.gradient_bytes, alone)
                    _wait(ready_s[operand.producer], done, back, wire)
        return worst_s * (1 - _ROUNDING)

    def _wire(self, size_bytes: int, alone: Alone | None) -> tuple[float, np.ndarray | None]:
        """Seconds of a tensor over all ports, and from each server to each other."""
        return size_bytes / self._ports, None if alone is None else size_bytes * alone[0]

    def _reduced(
        self, index: int, placement: Placement, done: dict[int, float], alone: Alone | None
    ) -> float:
        """When the gradients of an operator are reduced: after the last of a group has its own."""
        size_bytes = self._graph.operators[index].parameter_gradient_bytes / placement.parameter
        last_s = 0.0
        for group in parameter_groups(placement):
            if len(group) == 1 or not size_bytes:
                continue
            took_s = 2 * (len(group) - 1) / len(group) * size_bytes / self._ports
            if alone is not None:
                took_s = max(took_s, size_bytes * alone[1].get(group, 0.0))
            last_s = max(last_s, max(done[s] for s in group) + took_s)
        return last_s

    def _cost_of(self, index: int, placement: Placement) -> tuple[float, float]:
        key = index, placement.degrees
        if key not in self._cost:
            operator, device = self._graph.operators[index], self._device
            per_server = self._cluster.accelerators_per_server
            self._cost[key] = shard_cost(device, operator, placement.degrees, per_server, 1)[:2]
        return self._cost[key]

    def _moved_of(
        self, index: int, producer: Placement, consumer: Placement
    ) -> list[tuple[int, int, float]]:
        """(source, target, share of the tensor), what stays on a server with it."""
        needs = operand_needs(self._graph.operators[index], consumer)
        key = *((p.servers, p.degrees) for p in (producer, consumer)), needs
        if key not in self._moved:
            found = _core.placement_transfers(producer, consumer, *needs)
            self._moved[key] = [(t.source, t.target, t.fraction) for t in found]
        return self._moved[key]


def _wait(
    ready: dict[int, float],
    made: dict[int, float],
    moved: Iterable[tuple[int, int, float]],
    wire: tuple[float, np.ndarray | None],
) -> None:
    """Raises `ready` (per target) to when what comes from each source may have come.

    `made` says from when on a source has it, and `wire` what the whole tensor takes.
    """
    seconds, by_pair = wire
    first: dict[int, float] = {}
    total: dict[int, float] = {}
    for source, target, share in moved:
        wire_s = share * seconds if source != target else 0.0
        pair_s = wire_s if by_pair is None else max(wire_s, share * float(by_pair[source, target]))
        ready[target] = max(ready[target], made[source] + pair_s)
        if wire_s:
            first[target] = min(first.get(target, math.inf), made[source])
            total[target] = total.get(target, 0.0) + wire_s
    for target, wire_s in total.items():
        ready[target] = max(ready[target], first[target] + wire_s)
