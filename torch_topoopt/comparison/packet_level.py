"""One training iteration on any architecture, packet by packet, also where circuits move.

Every flow has one path (see `architecture_program`). On circuits that follow the demand there is a
link between every two servers that had or will have one, at the rate of the circuits it has at the
moment. Every window the bytes that wait are measured and Algorithm 5 of the TopoOpt paper chooses
circuits; if they differ, senders are held, what is in the network drains (so nothing is lost), and
after the switch's delay the new circuits are there.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch_topoopt import _core
from torch_topoopt.architectures.circuits import choose_circuits
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.comparison.flow_level import ArchitectureEstimate, demand_bytes
from torch_topoopt.reconfiguration.simulation import ITERATIONS, MOST_WINDOWS
from torch_topoopt.search.lowering import servers_at_once
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import run_program
from torch_topoopt.sim.architecture_program import architecture_program
from torch_topoopt.sim.iteration_tasks import check_iterations, iteration_tasks, repeated_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.architectures.circuits import Pair
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.sim import FlowsResult
    from torch_topoopt.sim.packet import ChooseCircuits, CircuitChanges


class MovingCircuits:
    """Iterations on circuits that follow the demand: `program`, and what moves the circuits.

    `run()` simulates it, packet by packet. `ends` are the tasks that end an iteration, `changes`
    counts how often circuits moved. `seed` is for circuits that no demand asks for and for choices
    between shortest paths. Raises ValueError for a topology that does not change, a strategy that
    does not fit, or iterations below 1.
    """

    def __init__(
        self,
        topology: Topology,
        op_graph: OpGraph,
        cluster: Cluster,
        strategy: Strategy,
        *,
        micro_batches: int = 1,
        seed: int = 0,
        iterations: int = ITERATIONS,
    ) -> None:
        if topology.reconfiguration is None:
            raise ValueError(f"topology: {topology.architecture} does not change its circuits")
        check_iterations(iterations)
        check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
        self.policy = topology.reconfiguration
        self.cluster = cluster
        self.servers = topology.servers
        self.changes = 0
        self._windows = 0
        self._rng = random.Random(seed)
        self._circuits = sorted((link.source, link.target) for link in topology.links)
        everyone = range(self.servers)
        self._pairs = [(a, b) for a in everyone for b in everyone if a != b]
        self._link = {pair: i for i, pair in enumerate(self._pairs)}
        rings = lower_topology(Routes(topology), ()).network.rings
        once = iteration_tasks(
            op_graph, cluster, strategy, rings, lambda *_: cluster.link_latency_s, micro_batches
        )
        self._asked = sorted({(t.source, t.target) for t in once if t.kind == "flow"})
        paths = self._paths()
        tasks, self.ends = repeated_tasks(
            once, iterations, lambda task: paths[task.source, task.target]
        )
        count = Counter(self._circuits)
        self.program = _core.FlowProgram.of_tasks(
            self.servers,
            self.servers,
            [(a, b, self._rate(count[a, b] or 1), self._latency_ns) for a, b in self._pairs],
            tasks,
            [(0.0, link, 0.0) for pair, link in self._link.items() if not count[pair]],
            hosts_at_once=servers_at_once(op_graph),
        )

    def run(
        self,
        *,
        until_s: float = float("inf"),
        keep_going: Callable[[float, int], bool] | None = None,
        **options: Any,
    ) -> FlowsResult:
        """Raises ValueError for unknown options, and for a demand that still waits after 200 000
        windows. One run per instance: the next would begin on the last circuits."""
        return run_program(
            self.program,
            level="packet",
            until_s=until_s,
            keep_going=keep_going,
            control=self.control,
            **options,
        )

    @property
    def control(self) -> tuple[float, float, ChooseCircuits]:
        """What `run_program(self.program, level="packet", control=...)` needs."""
        return self.policy.window_s, self.policy.delay_s, self._choose

    @property
    def _latency_ns(self) -> float:
        return self.cluster.link_latency_s * 1e9

    def _rate(self, circuits: int) -> float:
        return circuits * self.cluster.link_gbps * 1e9

    def _choose(self, now_s: float, waiting: list[tuple[int, int, float]]) -> CircuitChanges | None:
        self._windows += 1
        if self._windows > MOST_WINDOWS:
            raise ValueError(f"window_s: the demand still waits after {MOST_WINDOWS} windows")
        chosen = choose_circuits(
            self.servers,
            self.cluster.degree,
            {(source, target): size for source, target, size in waiting},
            self._rng,
            present=self._circuits,
            halve=self.policy.halve,
            connect=self.policy.forwarding,
        )
        if chosen == self._circuits:
            return None
        before, after = Counter(self._circuits), Counter(chosen)
        self._circuits = chosen
        self.changes += 1
        rates = [
            (self._link[pair], self._rate(after[pair]))
            for pair in sorted(before | after)
            if before[pair] != after[pair]
        ]
        paths = self._paths() if self.policy.forwarding else {}
        return rates, list(paths.items())

    def _paths(self) -> dict[Pair, list[int]]:
        """Links between the pairs that send: of their own, or of a shortest path over circuits."""
        if not self.policy.forwarding:
            return {pair: [self._link[pair]] for pair in self._asked}
        count = Counter(self._circuits)
        into: dict[int, list[int]] = {}
        out: dict[int, list[int]] = {}
        for a, b in count:
            into.setdefault(b, []).append(a)
            out.setdefault(a, []).append(b)
        distance: dict[int, dict[int, int]] = {}
        paths = {}
        for source, target in self._asked:
            if target not in distance:
                distance[target] = _distances(into, target)
            to_target = distance[target]
            links, here = [], source
            while here != target:
                nearer = [n for n in out[here] if to_target[n] == to_target[here] - 1]
                rates = [count[here, n] for n in nearer]
                after = self._rng.choices(nearer, rates)[0]
                links.append(self._link[here, after])
                here = after
            paths[source, target] = links
        return paths


def _distances(into: dict[int, list[int]], target: int) -> dict[int, int]:
    """Hops to `target` from every server that reaches it."""
    distance = {target: 0}
    frontier = [target]
    for server in frontier:
        for before in into.get(server, ()):
            if before not in distance:
                distance[before] = distance[server] + 1
                frontier.append(before)
    return distance


def predict_packets(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    seed: int = 0,
    **options: Any,
) -> ArchitectureEstimate:
    """`flow_level.predict_architecture` at packet level; `options` are those of the level.

    Where circuits move, two iterations run one after the other; the time is that of the second,
    and the bytes are the mean. Raises ValueError as `architecture_program` and `run_flows`.
    """
    needed = demand_bytes(demand(op_graph, strategy, cluster.servers))
    iterations = 1
    if topology.reconfiguration is None:
        program = architecture_program(
            topology, op_graph, cluster, strategy, micro_batches=micro_batches, seed=seed
        )
        result = run_program(program, level="packet", **options)
        iteration_s = result.completion_s
        by_servers = [link.source < topology.servers for link in topology.links]
        sent_bytes = float(result.link_bytes[by_servers].sum())
        link_bytes = tuple(round(size) for size in result.link_bytes.tolist())
    else:
        moving = MovingCircuits(
            topology, op_graph, cluster, strategy, micro_batches=micro_batches, seed=seed
        )
        iterations = len(moving.ends)
        result = moving.run(**options)
        first, last = result.finish_s[moving.ends[0]], result.finish_s[moving.ends[-1]]
        iteration_s = float(last - first) / (iterations - 1)
        sent_bytes = float(result.link_bytes.sum()) / iterations
        link_bytes = ()
    return ArchitectureEstimate(
        iteration_s,
        float(result.device_busy_s.max()) / iterations,
        link_bytes,
        sent_bytes / needed if needed else 1.0,
    )
