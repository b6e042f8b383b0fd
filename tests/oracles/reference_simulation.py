"""Slow, plain simulations of what the C++ simulator does, written independently of it."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

from support.task_programs import ComputeTask, FlowTask, SimLink, Task, simulate_tasks

from oracles.element_ownership import element_needs, element_transfers, shards
from oracles.exact_max_min import exact_rates
from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.search.shards import shard_operator

if TYPE_CHECKING:
    from torch_topoopt.op_graph import GradientBuckets, Operand, Operator, OpGraph
    from torch_topoopt.plan import Cluster, Network, Ring
    from torch_topoopt.search.strategies import Strategy


def reference_finish(
    links: list[SimLink], tasks: list[Task], devices_at_once: float = math.inf
) -> list[float]:
    """When each task ends; exact rates, all flows solved again at every event."""
    run = _Run(links, tasks, devices_at_once)
    while run.step():
        pass
    return run.finish


class _Run:
    def __init__(self, links: list[SimLink], tasks: list[Task], devices_at_once: float) -> None:
        self.links = links
        self.devices_at_once = devices_at_once
        self.tasks = tasks
        self.waiting = [len(task.after) for task in tasks]
        self.finish = [math.nan] * len(tasks)
        self.timers: list[tuple[float, int]] = []
        self.ready: dict[int, list[tuple[int, int]]] = {}
        self.computing: dict[int, tuple[int, float]] = {}  # by device: the task, seconds left
        self.sending: dict[int, float] = {}
        self.now = 0.0
        for i in range(len(tasks)):
            if self.waiting[i] == 0:
                self.start(i)

    def start(self, i: int) -> None:
        task = self.tasks[i]
        if isinstance(task, ComputeTask):
            heapq.heappush(self.ready.setdefault(task.device, []), (task.priority, i))
        else:
            self.sending[i] = float(task.size_bytes)

    def end(self, i: int) -> None:
        self.finish[i] = self.now
        for j, task in enumerate(self.tasks):
            self.waiting[j] -= task.after.count(i)
            if i in task.after and self.waiting[j] == 0:
                self.start(j)

    def rates(self) -> dict[int, float]:
        order = sorted(self.sending)
        paths = [[(link, 1.0) for link in self.tasks[i].links] for i in order]
        capacity = [link.bytes_per_s for link in self.links]
        return dict(
            zip(order, map(float, exact_rates(capacity, paths, [1] * len(order))), strict=True)
        )

    def dispatch(self) -> None:
        for device in sorted(self.ready):
            if device not in self.computing and self.ready[device]:
                _, i = heapq.heappop(self.ready[device])
                self.computing[device] = (i, self.tasks[i].seconds)

    def step(self) -> bool:
        """Moves on to the next event; False if there is none."""
        self.dispatch()
        rate = self.rates()
        ends = {i: self.now + self.sending[i] / rate[i] for i in rate}
        pace = min(1.0, self.devices_at_once / max(1, len(self.computing)))
        worked = {
            device: self.now + left_s / pace for device, (_, left_s) in self.computing.items()
        }
        timers = [time for time, _ in self.timers[:1]]
        then = min([*ends.values(), *worked.values(), *timers], default=math.inf)
        if then == math.inf:
            return False
        for i in rate:
            self.sending[i] -= rate[i] * (then - self.now)
        for device, (i, left_s) in self.computing.items():
            self.computing[device] = (i, left_s - pace * (then - self.now))
        self.now = then
        close = then * (1 + 1e-12)
        while self.timers and self.timers[0][0] <= close:
            self.end(heapq.heappop(self.timers)[1])
        done = [device for device, end_s in worked.items() if end_s <= close]
        for i in [self.computing.pop(device)[0] for device in done]:
            self.end(i)
        for i, end in ends.items():
            if end <= close:
                del self.sending[i]
                latency_s = sum(self.links[link].latency_s for link in self.tasks[i].links)
                heapq.heappush(self.timers, (then + latency_s, i))
        return True


class IterationReference:
    """An iteration without folding: every shard on its own server, one flow per pair and ring.

    The network must have one route per pair, no parallel links and no latency.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        network: Network,
        strategy: Strategy,
        micro_batches: int = 1,
    ) -> None:
        self.index = {(link.source, link.target): i for i, link in enumerate(network.links)}
        self.links = [SimLink(cluster.link_bytes_per_s) for _ in network.links]
        self.routes = {pair: r[0].servers for pair, r in network.routes_by_pair().items()}
        self.tasks: list[tuple[Task, list[int]]] = []
        self.last_flow: dict[object, int] = {}
        self.shared: dict[object, int] = {}  # flows of tensors that others read too
        self.strategy = strategy
        self.groups = {tuple(sorted(group.servers)): group for group in network.groups}
        self.micro_batches = micro_batches
        step = op_graph.measured_step
        self.at_once = step.servers_at_once or math.inf if step else math.inf
        self.forward: dict[tuple[int, int, int], int] = {}  # micro-batch, operator, server
        self.backward: dict[tuple[int, int, int], int] = {}
        device = accelerator(cluster.accelerator)
        count = len(op_graph.operators)
        for b, (i, op) in itertools.product(range(micro_batches), enumerate(op_graph.operators)):
            shard = shard_operator(op, strategy[i].degrees)
            times = operator_seconds(device, shard, strategy[i].sample * micro_batches)
            if step := op_graph.measured_step:
                times = times[0] * step.forward_scale, times[1] * step.backward_scale
            ahead = micro_batches > 1  # backward work goes first, older micro-batches too
            backward_first = (2 * b * count if ahead else 2 * count) - i
            forward_then = (2 * (micro_batches + b) * count if ahead else 0) + i
            for s in strategy[i].servers:
                self.forward[b, i, s] = self.add(ComputeTask(s, times[0], priority=forward_then))
                self.backward[b, i, s] = self.add(ComputeTask(s, times[1], priority=backward_first))
                self.tasks[self.backward[b, i, s]][1].append(self.forward[b, i, s])
        if op_graph.measured_step:
            for s in range(cluster.servers):
                self.add(ComputeTask(s, op_graph.measured_step.overhead_s, priority=-1))
        self.limit_what_is_in_flight()
        self.gradients: dict[tuple[int, ...], list[tuple[int, float]]] = {}  # by group
        for i, op in enumerate(op_graph.operators):
            for operand, b in itertools.product(op.operands, range(micro_batches)):
                self.exchange(b, i, op, operand)
            if op.parameter_gradient_bytes:
                self.all_reduce(i, op.parameter_gradient_bytes)
        for members, gradients in self.gradients.items():
            self.sum_buckets(members, gradients[::-1], op_graph.gradient_buckets)

    def add(self, task: Task) -> int:
        self.tasks.append((task, []))
        return len(self.tasks) - 1

    def limit_what_is_in_flight(self) -> None:
        """A pipeline's stage i of n from the front starts micro-batch b when b - (n - i) is back.

        Stages are taken to be a line, each on other servers than all others.
        """
        if self.micro_batches == 1:
            return
        stages: list[set[int]] = []
        for placement in self.strategy:
            if not stages or not stages[-1] & set(placement.servers):
                stages.append(set())
            stages[-1] |= set(placement.servers)
        for (b, i, s), task in self.forward.items():
            (stage,) = (k for k, servers in enumerate(stages) if s in servers)
            if (back := b - (len(stages) - stage)) >= 0:
                self.tasks[task][1].append(self.backward[back, i, s])

    def hops(self, source: int, target: int) -> tuple[int, ...]:
        return tuple(self.index[hop] for hop in itertools.pairwise(self.routes[source, target]))

    def move(
        self, b: int, source: int, target: int, size: float, before: int, after: int, edge: object
    ) -> None:
        """Transfers over one edge are in the order of the micro-batches, and once in each."""
        if size and source != target:
            if (b, edge) in self.shared:
                flow = self.shared[b, edge]
            else:
                flow = self.shared[b, edge] = self.add(FlowTask(self.hops(source, target), size))
                if edge in self.last_flow:
                    self.tasks[flow][1].append(self.last_flow[edge])
                self.last_flow[edge] = flow
            self.tasks[flow][1].append(before)
            before = flow
        self.tasks[after][1].append(before)

    def exchange(self, b: int, i: int, op: Operator, operand: Operand) -> None:
        """Activations and gradients by the owners and users of every element."""
        p = operand.producer
        producer, consumer = self.strategy[p], self.strategy[i]
        read: object = (i, id(operand))
        if operand.tensor:
            read = (p, operand.tensor, element_needs(op, consumer))
        for (x, y), fraction in element_transfers(op, producer, consumer).items():
            s, t = producer.servers[x], consumer.servers[y]
            share = float(fraction / self.micro_batches)
            size = share * operand.size_bytes
            there, back = (read, x, y), (read, y, x, "back")
            self.move(b, s, t, size, self.forward[b, p, s], self.forward[b, i, t], there)
            if operand.gradient_bytes:
                size = share * operand.gradient_bytes
                self.move(b, t, s, size, self.backward[b, i, t], self.backward[b, p, s], back)

    def all_reduce(self, i: int, size_bytes: int) -> None:
        placement = self.strategy[i]
        for part in range(placement.parameter):
            members = [
                server
                for server, (_, j, _) in zip(placement.servers, shards(placement), strict=True)
                if j == part
            ]
            if len(members) > 1:
                group = tuple(sorted(members))
                self.gradients.setdefault(group, []).append((i, size_bytes / placement.parameter))

    def sum_buckets(
        self,
        members: tuple[int, ...],
        gradients: list[tuple[int, float]],
        rule: GradientBuckets | None,
    ) -> None:
        """`gradients` are operators and bytes, as the backward pass makes them."""
        buckets: list[list[tuple[int, float]]] = [[]]
        for gradient in gradients:
            cap = 0 if rule is None else rule.first_bytes if len(buckets) == 1 else rule.cap_bytes
            buckets[-1].append(gradient)
            if sum(size for _, size in buckets[-1]) >= cap:
                buckets.append([])
        arrived: list[int] = []
        for bucket in filter(None, buckets):
            own = [i for i, _ in bucket]
            arrived = own if rule is None else arrived + own  # buckets start one after the other
            for ring in self.groups[members].rings:
                self.ring(arrived, ring, sum(size for _, size in bucket))

    def ring(self, operators: list[int], ring: Ring, size_bytes: float) -> None:
        k = len(ring.servers)
        path: tuple[int, ...] = ()
        for source, target in itertools.pairwise((*ring.servers, ring.servers[0])):
            path += self.hops(source, target)
        flow = self.add(FlowTask(path, 2 * (k - 1) / k * ring.share * size_bytes))
        for b, i, s in itertools.product(range(self.micro_batches), operators, ring.servers):
            self.tasks[flow][1].append(self.backward[b, i, s])

    def seconds(self) -> float:
        """When the last task ends."""
        tasks = [
            ComputeTask(t.device, t.seconds, tuple(after), t.priority)
            if isinstance(t, ComputeTask)
            else FlowTask(t.links, t.size_bytes, tuple(after))
            for t, after in self.tasks
        ]
        return simulate_tasks(self.links, tasks, devices_at_once=self.at_once).end_s
