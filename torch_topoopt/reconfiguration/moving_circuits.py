"""Iterations on a network whose circuits follow the demand (TopoOpt paper, Appendix E.4).

There is a link between every two servers, at the rate of their current circuits. Every window the
pending bytes are measured and Algorithm 5 chooses circuits. If these differ, senders are held, the
network drains (so nothing is lost), and the new circuits are up after the switch's delay
(csrc/sim/core/reconfigurer.h).

Without forwarding each pair of servers has its own circuits, or waits. With forwarding bytes take
shortest paths over the current circuits: at flow level all of them, in proportion to their rates;
at packet level one, chosen at random, for all flows of a pair.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.architectures.circuits import choose_circuits
from torch_topoopt.architectures.ocs_reconfig import of_circuits
from torch_topoopt.architectures.path_picker import PathPicker
from torch_topoopt.architectures.routing import PairLoads, Routes
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.sim import run_program
from torch_topoopt.sim.iteration_program import IterationTasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Pair
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.sim import FlowsResult
    from torch_topoopt.sim.iteration_program import RingSteps

ITERATIONS = 2  # the first one starts with random circuits; the last one counts
MOST_WINDOWS = 200_000


class MovingCircuits:
    """Iterations on circuits that follow the demand: `program`, and the control of circuits.

    `run()` simulates it at `level`. `ends` are the last tasks of iterations, `phases` the circuits
    over time. `seed` is for circuits without demand and for choices between shortest paths. Raises
    ValueError for a topology that does not change, a strategy that does not fit, or iterations
    below 1.
    """

    # parameters: as `architecture_program`, and the level
    def __init__(
        self,
        topology: Topology,
        op_graph: OpGraph,
        cluster: Cluster,
        strategy: Strategy,
        *,
        level: str = "flow",
        micro_batches: int = 1,
        seed: int = 0,
        iterations: int = ITERATIONS,
        ring_steps: RingSteps = "together",
    ) -> None:
        if topology.reconfiguration is None:
            raise ValueError(f"topology: {topology.architecture} does not change its circuits")
        check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
        self.level = level
        self.policy = topology.reconfiguration
        self.cluster = cluster
        self.phases: list[list[Pair]] = []
        self._windows = 0
        self._rng = random.Random(seed)
        self._first = sorted((link.source, link.target) for link in topology.links)
        everyone = range(cluster.servers)
        self._link = {
            pair: i for i, pair in enumerate((a, b) for a in everyone for b in everyone if a != b)
        }
        self.program = _core.FlowProgram(cluster.servers, cluster.servers)
        for a, b in self._link:
            self.program.add_link(a, b, self._bits_per_s(1), cluster.link_latency_s * 1e9)
        rings = Routes(topology).rings
        tasks = IterationTasks.of(op_graph, cluster, rings, strategy, micro_batches, ring_steps)
        self._demand_pairs = tasks.pairs
        direct = [[_core.WeightedPath([self._link[pair]])] for pair in tasks.pairs]
        path_of_flow = np.tile(tasks.pair_of_flow, max(iterations, 0))
        self.ends = tasks.add_to(self.program, direct, path_of_flow, iterations).ends

    @property
    def changes(self) -> int:
        """The number of times that circuits moved."""
        return max(0, len(self.phases) - 1)

    def run(
        self,
        *,
        until_s: float = float("inf"),
        keep_going: Callable[[float, int], bool] | None = None,
        **options: Any,
    ) -> FlowsResult:
        """Raises ValueError for unknown options, and for demand still pending after 200 000
        windows. One run per instance: the next would begin on the last circuits."""
        return run_program(
            self.program,
            level=self.level,
            until_s=until_s,
            keep_going=keep_going,
            control=self.control,
            **options,
        )

    @property
    def control(self) -> _core.CircuitControl:
        """The `control` of `run_program(self.program, level=self.level, control=...)`."""
        return _core.CircuitControl(self.policy.window_s, self.policy.delay_s, self._choose)

    def _bits_per_s(self, circuits: int) -> float:
        return circuits * self.cluster.link_gbps * 1e9

    def _choose(self, now_s: float, waiting: _core.BytesOfPairs) -> _core.CircuitMove | None:
        if not self.phases:
            self.phases.append(self._first)
            return self._move(Counter(dict.fromkeys(self._link, 1)))
        self._windows += 1
        if self._windows > MOST_WINDOWS:
            raise ValueError(f"window_s: the demand still waits after {MOST_WINDOWS} windows")
        chosen = choose_circuits(
            self.cluster.servers,
            self.cluster.degree,
            waiting,
            self._rng,
            present=self.phases[-1],
            halve=self.policy.halve,
            connect=self.policy.forwarding,
        )
        if chosen == self.phases[-1]:
            return None
        self.phases.append(chosen)
        return self._move(Counter(self.phases[-2]))

    def _move(self, before: Counter[Pair]) -> _core.CircuitMove:
        """Switches to the circuits of the last phase."""
        after = Counter(self.phases[-1])
        changed = {pair for pair, _ in before.items() ^ after.items()}
        rates = {self._link[pair]: self._bits_per_s(after[pair]) for pair in sorted(changed)}
        ways = self._paths() if self.policy.forwarding else _NO_PATHS
        return _core.CircuitMove(
            rates, ways.source, ways.target, ways.latency_s, ways.begin, ways.edge, ways.load
        )

    def _paths(self) -> PairLoads:
        """The loads of the sending pairs on the links, by the circuits of the last phase."""
        routes = Routes(of_circuits(self.cluster, self.phases[-1]))
        if self.level == "flow":
            loads = routes.loads(self._demand_pairs)
            link_of_edge = np.array([self._link[ends] for ends in routes.index], dtype=np.int64)
            return replace(loads, edge=link_of_edge[loads.edge])
        picker = PathPicker(routes, self._rng)
        picked = [
            [self._link[hop] for hop in pairwise(picker.nodes(*pair))]
            for pair in self._demand_pairs
        ]
        hops = [len(links) for links in picked]
        return PairLoads(
            source=np.array([source for source, _ in self._demand_pairs], dtype=np.int64),
            target=np.array([target for _, target in self._demand_pairs], dtype=np.int64),
            latency_s=np.array(hops) * self.cluster.link_latency_s,
            begin=np.concatenate([[0], np.cumsum(hops)]).astype(np.int64),
            edge=np.array([link for links in picked for link in links], dtype=np.int64),
            load=np.ones(sum(hops)),
        )


_NONE, _NO_LOAD = np.zeros(0, dtype=np.int64), np.zeros(0)
_NO_PATHS = PairLoads(_NONE, _NONE, _NO_LOAD, np.zeros(1, dtype=np.int64), _NONE, _NO_LOAD)
