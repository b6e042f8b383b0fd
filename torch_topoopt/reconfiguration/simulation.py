"""Iterations on a network whose circuits follow the demand (TopoOpt paper, Appendix E.4).

Flow level. Between two changes the circuits stand still: without forwarding each pair of servers
has its own circuits, or none and waits; with forwarding all flows share the links max-min fairly
along shortest paths. Every window the bytes that wait are measured, Algorithm 5 chooses circuits,
and if they differ nothing is sent until they have been moved.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.architectures.circuits import choose_circuits
from torch_topoopt.architectures.ocs_reconfig import of_circuits
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.search.lowering import servers_at_once
from torch_topoopt.sim.iteration_tasks import check_iterations, iteration_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.sim.iteration_tasks import IterationTask

ITERATIONS = 2  # the first one starts with random circuits; the last one counts
_SIMULTANEOUS = 1e-12
_COARSE_S = 5e-5  # with forwarding, where each event changes many rates, these count as one
MOST_WINDOWS = 200_000


@dataclass(frozen=True)
class ReconfiguredEstimate:
    """The last of the simulated iterations. `sent_bytes` counts every link that bytes crossed,
    `changes` how often circuits moved; `phases` are the circuits and how long they stood."""

    iteration_s: float
    compute_s: float
    sent_bytes: float
    changes: int
    phases: tuple[tuple[tuple[tuple[int, int], ...], float], ...]


def simulate_reconfiguring(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> ReconfiguredEstimate:
    """Runs `iterations` iterations one after the other on circuits that change as `topology` says.

    `seed` chooses where circuits go that no demand asks for. Emulated servers that share processors
    (MeasuredStep.servers_at_once) compute as if all of them did so all the time. Raises ValueError
    for a topology that does not change, iterations below 1, or a demand that still waits after
    200 000 windows.
    """
    check_iterations(iterations)
    rings = lower_topology(Routes(topology), ()).network.rings
    tasks = iteration_tasks(
        op_graph, cluster, strategy, rings, lambda *_: cluster.link_latency_s, micro_batches
    )
    stretch = max(1.0, cluster.servers / servers_at_once(op_graph))
    for task in tasks:
        task.amount *= stretch if task.kind == "compute" else 1.0
    engine = _Engine(topology, cluster, seed)
    for _ in range(iterations):
        engine.run(tasks)
    return ReconfiguredEstimate(
        iteration_s=engine.now - engine.began,
        compute_s=max(engine.busy_s),
        sent_bytes=engine.sent_bytes,
        changes=engine.changes,
        phases=tuple(engine.phases),
    )


@dataclass
class _PairFlows:
    """Flows from one server to another: they share its rate, and `served` is what each got."""

    number: int
    served: float = 0.0
    updated_at: float = 0.0
    rate: float = 0.0  # of each flow
    version: int = 0
    hops: float = 1.0
    latency_s: float = 0.0
    flows: list[tuple[float, int]] = field(default_factory=list)  # (served when done, task)
    waiting_bytes: float = 0.0


class _Engine:
    """A clock, the servers' queues, the pairs with flows, and the circuits of the moment."""

    def __init__(self, topology: Topology, cluster: Cluster, seed: int) -> None:
        if topology.reconfiguration is None:
            raise ValueError(f"topology: {topology.architecture} does not change its circuits")
        self.policy = topology.reconfiguration
        self.cluster = cluster
        self.servers = topology.servers
        self.rng = random.Random(seed)
        self.now = self.began = 0.0
        self.changes = 0
        self.sent_bytes = 0.0
        self.busy_s = [0.0] * self.servers
        self.phases: list[tuple[tuple[tuple[int, int], ...], float]] = []
        self.pairs: dict[tuple[int, int], _PairFlows] = {}
        self.measure_at = self.policy.window_s
        self.resume_at = math.inf  # while circuits move: when they have
        self.circuits = sorted((link.source, link.target) for link in topology.links)
        self.phase_from = 0.0
        self.windows = 0
        self.network = self._network()

    def _network(self) -> _Direct | _Forwarded:
        kind = _Forwarded if self.policy.forwarding else _Direct
        return kind(self.cluster, self.circuits)

    def run(self, tasks: list[IterationTask]) -> None:
        """One iteration from now on."""
        self.tasks = tasks
        self.began = self.now
        self.sent_bytes = 0.0
        self.busy_s = [0.0] * self.servers
        self.waiting = [len(task.after) for task in tasks]
        self.dependents: list[list[int]] = [[] for _ in tasks]
        for i, task in enumerate(tasks):
            for before in task.after:
                self.dependents[before].append(i)
        self.timers: list[tuple[float, int]] = []
        self.ends: list[tuple[float, int, int, _PairFlows]] = []
        self.ready: list[list[tuple[int, int]]] = [[] for _ in range(self.servers)]
        self.busy = [False] * self.servers
        self.touched: dict[int, _PairFlows] = {}
        self.left = len(tasks)
        for i, count in enumerate(self.waiting):
            if count == 0:
                self._start(i)
        while self.left:
            self._settle()
            self._next_event()
        self._settle()

    def _next_event(self) -> None:
        self.now = max(self.now, min(self.measure_at, self.resume_at, self._next_end_s()))
        horizon = self.now * (1 + _SIMULTANEOUS)
        if self.policy.forwarding:
            horizon += _COARSE_S
        # The clock goes on within what counts as one event: what is short takes its time, too.
        while (end_s := self._next_end_s()) <= horizon:
            self.now = max(self.now, end_s)
            if self.timers and self.timers[0][0] <= end_s:
                self._finish(heapq.heappop(self.timers)[1])
            else:
                self._complete(heapq.heappop(self.ends)[3], horizon)
        if self.resume_at <= horizon:
            self._resume()
        elif self.measure_at <= horizon:
            self._measure()

    def _next_end_s(self) -> float:
        """When the next task ends, as far as that is known; infinity if none is under way."""
        while self.ends and self.ends[0][1] != self.ends[0][3].version:
            heapq.heappop(self.ends)
        return min(
            self.timers[0][0] if self.timers else math.inf,
            self.ends[0][0] if self.ends else math.inf,
        )

    def _start(self, index: int) -> None:
        task = self.tasks[index]
        if task.kind == "delay":
            heapq.heappush(self.timers, (self.now + task.amount, index))
        elif task.kind == "compute":
            heapq.heappush(self.ready[task.source], (task.priority, index))
            self._dispatch(task.source)
        else:
            ends = (task.source, task.target)
            pair = self.pairs.setdefault(ends, _PairFlows(task.source * self.servers + task.target))
            self._advance(pair)
            if not pair.flows:
                pair.served = 0.0
            heapq.heappush(pair.flows, (pair.served + task.amount, index))
            pair.waiting_bytes += task.amount
            self.touched[pair.number] = pair

    def _dispatch(self, server: int) -> None:
        if not self.busy[server] and self.ready[server]:
            self.busy[server] = True
            index = heapq.heappop(self.ready[server])[1]
            seconds = self.tasks[index].amount
            self.busy_s[server] += seconds
            heapq.heappush(self.timers, (self.now + seconds, index))

    def _finish(self, index: int) -> None:
        task = self.tasks[index]
        self.left -= 1
        if task.kind == "compute":
            self.busy[task.source] = False
        for after in self.dependents[index]:
            self.waiting[after] -= 1
            if self.waiting[after] == 0:
                self._start(after)
        if task.kind == "compute":
            self._dispatch(task.source)

    def _complete(self, pair: _PairFlows, horizon: float) -> None:
        """Takes off the flows that have sent all; they are delivered a latency later."""
        self._advance(pair)
        reach = max(pair.served + pair.rate * (horizon - self.now), pair.flows[0][0])
        while pair.flows and pair.flows[0][0] <= reach:
            end, index = heapq.heappop(pair.flows)
            ahead = max(0.0, end - pair.served)  # what an event counted as simultaneous leaves out
            self.sent_bytes += ahead * pair.hops
            pair.waiting_bytes -= ahead
            heapq.heappush(self.timers, (self.now + pair.latency_s, index))
        if not pair.flows:
            pair.waiting_bytes = 0.0
        self.touched[pair.number] = pair

    def _advance(self, pair: _PairFlows) -> None:
        moved = pair.rate * (self.now - pair.updated_at)
        pair.updated_at = self.now
        if moved:
            pair.served += moved
            pair.waiting_bytes -= moved * len(pair.flows)
            self.sent_bytes += moved * len(pair.flows) * pair.hops

    def _settle(self) -> None:
        """New rates for the pairs whose flows changed and for those that they share links with."""
        if not self.touched:
            return
        moving = self.resume_at < math.inf
        if moving:
            rates = dict.fromkeys(self.touched, 0.0)
        else:
            rates = self.network.rates(self.touched.values())
        by_number = self.touched
        if self.policy.forwarding and not moving:
            by_number = {p.number: p for p in self.pairs.values() if p.flows} | self.touched
        for number, rate in rates.items():
            pair = by_number[number]
            if rate == pair.rate and number not in self.touched:
                continue
            self._advance(pair)
            pair.rate = rate
            pair.version += 1
            if pair.flows and rate > 0:
                end = self.now + max(0.0, pair.flows[0][0] - pair.served) / rate
                heapq.heappush(self.ends, (end, pair.version, number, pair))
        self.touched = {}

    def _measure(self) -> None:
        self.windows += 1
        if self.windows > MOST_WINDOWS:
            raise ValueError(f"window_s: the demand still waits after {MOST_WINDOWS} windows")
        self.measure_at = self.now + self.policy.window_s
        demand = {}
        for ends, pair in self.pairs.items():
            if pair.flows:
                self._advance(pair)
                demand[ends] = max(pair.waiting_bytes, 1.0)
        if not demand:
            return
        chosen = choose_circuits(
            self.servers,
            self.cluster.degree,
            demand,
            self.rng,
            present=self.circuits,
            halve=self.policy.halve,
            connect=self.policy.forwarding,
        )
        if chosen == self.circuits:
            return
        self.phases.append((tuple(self.circuits), self.now - self.phase_from))
        self.changes += 1
        self.circuits = chosen
        self.resume_at = self.now + self.policy.delay_s
        self.measure_at = self.resume_at + self.policy.window_s
        self.touched.update({p.number: p for p in self.pairs.values() if p.flows})

    def _resume(self) -> None:
        self.resume_at = math.inf
        self.phase_from = self.now
        self.network = self._network()
        for pair in self.pairs.values():
            if pair.flows:
                self.touched[pair.number] = pair


class _Direct:
    """Every pair has its own circuits, or none."""

    def __init__(self, cluster: Cluster, circuits: list[tuple[int, int]]) -> None:
        self.count = Counter(a * cluster.servers + b for a, b in circuits)
        self.cluster = cluster

    def rates(self, changed: Iterable[_PairFlows]) -> dict[int, float]:
        rates = {}
        for pair in changed:
            pair.latency_s = self.cluster.link_latency_s
            circuits = self.count[pair.number]
            rates[pair.number] = (
                circuits * self.cluster.link_bytes_per_s / len(pair.flows) if pair.flows else 0.0
            )
        return rates


class _Forwarded:
    """All pairs share the links, along shortest paths."""

    def __init__(self, cluster: Cluster, circuits: list[tuple[int, int]]) -> None:
        self.servers = cluster.servers
        self.routes = Routes(of_circuits(cluster, circuits))
        self.paths = self.routes.loads(
            (a, b) for a in range(self.servers) for b in range(self.servers) if a != b
        )
        self.row = {
            a * self.servers + b: i
            for i, (a, b) in enumerate(
                zip(self.paths.source.tolist(), self.paths.target.tolist(), strict=True)
            )
        }
        self.hops: NDArray[np.float64] = np.add.reduceat(self.paths.load, self.paths.begin[:-1])
        begin, edge, load = self.paths.begin, self.paths.edge.tolist(), self.paths.load.tolist()
        self.solver = _core.MaxMinRates(
            self.routes.bytes_per_s.tolist(),
            [
                list(zip(edge[a:b], load[a:b], strict=True))
                for a, b in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True)
            ],
        )
        self.count: dict[int, int] = {}

    def rates(self, changed: Iterable[_PairFlows]) -> dict[int, float]:
        asked = set()
        for pair in changed:
            asked.add(pair.number)
            row = self.row[pair.number]
            pair.hops = float(self.hops[row])
            pair.latency_s = float(self.paths.latency_s[row])
            delta = len(pair.flows) - self.count.get(pair.number, 0)
            if delta:
                self.solver.change(row, delta)
            self.count[pair.number] = len(pair.flows)
        solved = self.solver.solve()[0]
        return {
            number: solved[self.row[number]] if flows else 0.0
            for number, flows in self.count.items()
            if flows or number in asked
        }
