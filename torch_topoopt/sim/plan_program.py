"""An OpGraph and a Plan as a flow program, which every level runs.

The tasks are those of `predict`: forward and backward pass of every operator on every server that
shares it, activations and gradients between placements, and one AllReduce per bucket
of gradients (per operator, if the OpGraph has no buckets). What
`predict` treats as one flow is taken apart, so that a packet has one path: a transfer is one flow
for each of its routes, and a ring one flow for each of its hops, with all bytes that cross this hop
in 2 (k - 1) steps. An AllReduce has ended when the slowest hop has, and when the latencies of the
2 (k - 1) consecutive hops are over, of which each flow has paid its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from torch_topoopt import _core
from torch_topoopt.search.lowering import servers_at_once
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.sim.flow_names import FlowName, StepNames
from torch_topoopt.sim.iteration import complete_groups
from torch_topoopt.sim.iteration_tasks import (
    IterationStep,
    IterationTask,
    check_iterations,
    iteration_steps,
    repeated_tasks,
    ring_delay_s,
)

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan, Ring


def plan_program(op_graph: OpGraph, plan: Plan, *, iterations: int = 1) -> _core.FlowProgram:
    """As `named_plan_program`, without the names."""
    return named_plan_program(op_graph, plan, iterations=iterations)[0]


def named_plan_program(
    op_graph: OpGraph, plan: Plan, *, iterations: int = 1
) -> tuple[_core.FlowProgram, dict[int, FlowName]]:
    """`iterations` training iterations of `op_graph` under `plan`, one after another, and what
    every flow carries, by the number of its task.

    Raises ValueError if the strategy does not fit the graph or the cluster, for an unknown
    accelerator, two servers that must exchange bytes but have no route, or no iterations.
    """
    check_iterations(iterations)
    check_strategy(op_graph, plan.cluster.servers, plan.strategy, micro_batches=plan.micro_batches)
    builder = _ProgramBuilder(op_graph, plan, _routes(plan))
    once = builder.iteration()
    tasks, _ = repeated_tasks(once, iterations, lambda task: task.links)
    bits_per_s, latency_ns = plan.cluster.link_gbps * 1e9, plan.cluster.link_latency_s * 1e9
    links = [(link.source, link.target, bits_per_s, latency_ns) for link in plan.network.links]
    servers = plan.cluster.servers
    names = {
        iteration * (len(once) + 1) + task: replace(name, iteration=iteration)
        for iteration in range(iterations)
        for task, name in builder.names.items()
    }
    at_once = servers_at_once(op_graph)
    program = _core.FlowProgram.of_tasks(servers, servers, links, tasks, [], hosts_at_once=at_once)
    return program, names


@dataclass(frozen=True)
class _Path:
    links: tuple[int, ...]
    weight: float  # of the bytes of the pair


def _routes(plan: Plan) -> dict[tuple[int, int], list[_Path]]:
    """The paths of every pair with a link or a route. Parallel links share what crosses them."""
    between: dict[tuple[int, int], list[int]] = {}
    for i, link in enumerate(plan.network.links):
        between.setdefault((link.source, link.target), []).append(i)
    paths: dict[tuple[int, int], list[_Path]] = {}
    for route in plan.network.routes:
        hops = [between[hop] for hop in pairwise(route.servers)]
        pair = (route.servers[0], route.servers[-1])
        paths.setdefault(pair, []).extend(_lanes(hops, route.weight))
    for pair, links in between.items():
        if pair not in paths:
            paths[pair] = _lanes([links], 1.0)
    return paths


def _lanes(hops: list[list[int]], weight: float) -> list[_Path]:
    lanes = math.lcm(*(len(links) for links in hops))
    return [
        _Path(tuple(links[lane % len(links)] for links in hops), weight / lanes)
        for lane in range(lanes)
    ]


@dataclass
class _RoutedTask(IterationTask):
    links: tuple[int, ...] = ()  # of a flow


@dataclass
class _ProgramBuilder:
    op_graph: OpGraph
    plan: Plan
    paths: dict[tuple[int, int], list[_Path]]
    tasks: list[_RoutedTask] = field(default_factory=list)
    names: dict[int, FlowName] = field(default_factory=dict)  # of flows, by index of `tasks`

    def __post_init__(self) -> None:
        plan = self.plan
        self.network = complete_groups(plan.cluster, plan.network, plan.strategy)
        self.rings = {tuple(sorted(g.servers)): g.rings for g in self.network.groups}

    def iteration(self) -> list[_RoutedTask]:
        plan = self.plan
        steps = iteration_steps(self.op_graph, plan.cluster, plan.strategy, plan.micro_batches)
        operators = [operator.name for operator in self.op_graph.operators]
        step_names = StepNames(steps, operators, plan.micro_batches)
        tasks_of: list[list[int]] = []  # per step
        for number, step in enumerate(steps):
            tasks_of.append(self.add_step(number, step, tasks_of, step_names))
        for step, tasks in zip(steps, tasks_of, strict=True):
            if step.kind != "all_reduce":
                after = [before for earlier in step.after for before in tasks_of[earlier]]
                for task in tasks:
                    self.tasks[task].after.extend(after)
        return self.tasks

    def add(self, task: _RoutedTask) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def add_step(
        self, number: int, step: IterationStep, tasks_of: list[list[int]], step_names: StepNames
    ) -> list[int]:
        """The tasks of a step; only those of an AllReduce wait for something already."""
        if step.kind == "flow":
            name = step_names.of_transfer(number)
            return self.add_flows(step.source, step.target, step.amount, [], name)
        if step.kind == "all_reduce":
            (ready,) = (task for before in step.after for task in tasks_of[before])
            for ring in self.rings[step.servers]:
                name = step_names.of_all_reduce(number, ring)
                self.add_ring(ring, step.amount * ring.share, ready, name)
            return []
        kind: Literal["compute", "delay"] = step.kind
        return [self.add(_RoutedTask(kind, step.source, 0, step.amount, step.priority, []))]

    def add_flows(
        self, source: int, target: int, size_bytes: float, after: list[int], name: FlowName
    ) -> list[int]:
        """The flows of these bytes, one for each path of the pair."""
        if (source, target) not in self.paths:
            raise ValueError(f"routes: no link and no route from server {source} to {target}")
        flows = [
            self.add(
                _RoutedTask(
                    "flow", source, target, size_bytes * path.weight, 0, list(after), path.links
                )
            )
            for path in self.paths[source, target]
            if path.weight
        ]
        self.names.update(dict.fromkeys(flows, name))
        return flows

    def add_ring(self, ring: Ring, size_bytes: float, ready: int, name: FlowName) -> None:
        k = len(ring.servers)
        hop_s, arrived = [], []
        for source, target in zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True):
            arrived += self.add_flows(source, target, 2 * (k - 1) / k * size_bytes, [ready], name)
            hop_s.append(self.latency_s(source, target))
        self.add(_RoutedTask("delay", 0, 0, ring_delay_s(hop_s), 0, arrived))

    def latency_s(self, source: int, target: int) -> float:
        hops = max(len(path.links) for path in self.paths[source, target])
        return hops * self.plan.cluster.link_latency_s
