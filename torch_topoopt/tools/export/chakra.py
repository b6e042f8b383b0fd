"""A plan's iteration as Chakra traces, one for each server: what ASTRA-sim and other readers run.

A forward and a backward COMP node for every operator that has a shard on the server, a pair of
COMM_SEND and COMM_RECV nodes for every part of a tensor that it sends or gets, and an ALL_REDUCE
for the gradients of each operator, as soon as they are there. Sizes are those of the plan's demand,
times those of its planner.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.profile.chakra_format import (
    ChakraNode,
    ChakraTrace,
    CollectiveType,
    NodeType,
    Value,
)
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.traffic import parameter_groups, shared_reads, transfers
from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.search.traffic import SharedRead


DEFAULT_GROUP = "0"  # of all servers, as PyTorch names it


@dataclass
class _ServerTrace:
    """The trace of one server, as it grows."""

    server: int
    nodes: list[ChakraNode] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: NodeType,
        after: Iterable[int],
        attributes: Mapping[str, Value],
        seconds: float = 0.0,
    ) -> int:
        number = len(self.nodes)
        self.nodes.append(
            ChakraNode(
                number,
                name,
                kind,
                data_deps=tuple(sorted(set(after))),
                duration_us=round(seconds * 1e6),
                attributes={"is_cpu_op": False, **attributes},
            )
        )
        return number


def group_names(plan: Plan) -> dict[tuple[int, ...], str]:
    """Servers of an AllReduce -> the name of their process group."""
    everyone = tuple(range(plan.cluster.servers))
    names = {everyone: DEFAULT_GROUP}
    for group in plan.demand.groups:
        names.setdefault(tuple(sorted(group.servers)), str(len(names)))
    return names


def traces(plan: Plan, op_graph: OpGraph) -> tuple[ChakraTrace, ...]:
    """The trace of every server. Raises ExportError for more than one accelerator of a server, and
    for a pipeline."""
    _check(plan, op_graph)
    ranks = [_ServerTrace(server) for server in range(plan.cluster.servers)]
    iteration = _Iteration(plan, op_graph, ranks)
    iteration.forward()
    iteration.backward()
    return tuple(
        ChakraTrace(tuple(rank.nodes), attributes={"model": plan.model, "rank": rank.server})
        for rank in ranks
    )


def _check(plan: Plan, op_graph: OpGraph) -> None:
    if plan.cluster.accelerators_per_server > 1:
        raise ExportError(
            f"chakra: {plan.cluster.accelerators_per_server} accelerators of each server; traces "
            "have one rank for each server"
        )
    if plan.micro_batches > 1:
        raise ExportError(
            f"chakra: {plan.micro_batches} micro-batches; traces are of a batch as a whole"
        )
    if len(plan.strategy) != len(op_graph.operators):
        raise ExportError(
            f"chakra: a strategy of {len(plan.strategy)} operators for the "
            f"{len(op_graph.operators)} of {op_graph.model}"
        )


class _Iteration:
    """Forward and backward pass on all servers at once."""

    def __init__(self, plan: Plan, op_graph: OpGraph, ranks: list[_ServerTrace]) -> None:
        self._plan, self._graph, self._ranks = plan, op_graph, ranks
        self._names = group_names(plan)
        self._reads = shared_reads(op_graph, plan.strategy)
        self._tags = 0
        self._forward: dict[tuple[int, int], int] = {}  # (operator, server) -> node
        self._backward: dict[tuple[int, int], int] = {}
        device = accelerator(plan.cluster.accelerator)
        self._costs = [
            shard_cost(device, operator, placement.degrees, 1, 1)
            for operator, placement in zip(op_graph.operators, plan.strategy, strict=True)
        ]

    def forward(self) -> None:
        """Operators in order; an operator waits for its operands, which were sent where needed."""
        waits: dict[tuple[int, int], list[int]] = defaultdict(list)
        by_first_reader = defaultdict(list)
        for read in self._reads:
            by_first_reader[read.readers[0]].append(read)
        for index, placement in enumerate(self._plan.strategy):
            for read in by_first_reader[index]:
                arrived = self._move(read, back=False)
                for server, nodes in arrived.items():
                    for reader in read.readers:
                        waits[reader, server] += nodes
            for operand in self._graph.operators[index].operands:
                for server in placement.servers:
                    if (operand.producer, server) in self._forward:
                        waits[index, server].append(self._forward[operand.producer, server])
            for server in placement.servers:
                self._forward[index, server] = self._compute(
                    index, server, "forward", waits[index, server]
                )

    def backward(self) -> None:
        """Operators in reverse; gradients of operands go back once all their readers are done."""
        waits: dict[tuple[int, int], list[int]] = defaultdict(list)
        by_last_done = defaultdict(list)
        for read in self._reads:
            if read.gradient_bytes:
                by_last_done[read.readers[0]].append(read)
        for index in reversed(range(len(self._plan.strategy))):
            placement = self._plan.strategy[index]
            for server in placement.servers:
                before = [self._forward[index, server], *waits[index, server]]
                self._backward[index, server] = self._compute(index, server, "backward", before)
            self._reduce(index)
            for operand in self._graph.operators[index].operands:
                for server in placement.servers:
                    if (operand.producer, server) in self._forward and operand.gradient_bytes:
                        waits[operand.producer, server].append(self._backward[index, server])
            for read in by_last_done[index]:
                arrived = self._move(read, back=True)
                for server, nodes in arrived.items():
                    waits[read.producer, server] += nodes

    def _compute(self, index: int, server: int, way: str, after: Iterable[int]) -> int:
        cost = self._costs[index]
        operator = self._graph.operators[index]
        shards = len(self._plan.strategy[index].servers)
        flops = operator.forward_flops if way == "forward" else operator.backward_flops
        return self._ranks[server].add(
            f"{way} {operator.name}",
            NodeType.COMP,
            after,
            {"num_ops": flops // shards, "tensor_size": max(1, operator.memory_bytes // shards)},
            cost.forward_s if way == "forward" else cost.backward_s,
        )

    def _move(self, read: SharedRead, *, back: bool) -> dict[int, list[int]]:
        """Sends the parts of a tensor, or of its gradient; server -> its nodes that have received
        them."""
        arrived: dict[int, list[int]] = defaultdict(list)
        size_bytes = read.gradient_bytes if back else read.size_bytes
        if not size_bytes:
            return arrived
        strategy, producer, reader = self._plan.strategy, read.producer, read.readers[0]
        makers, done = (read.readers, self._backward) if back else ((producer,), self._forward)
        parts = transfers(self._graph.operators[reader], strategy[producer], strategy[reader])
        for source, target, share in parts:
            if back:
                source, target = target, source
            self._tags += 1
            sender = self._ranks[source]
            made_by = [done[maker, source] for maker in makers if (maker, source) in done]
            name = self._graph.operators[producer].name
            what = {
                "comm_size": max(1, round(share * size_bytes)),
                "comm_src": source,
                "comm_dst": target,
                "comm_tag": self._tags,
            }
            title = f"{'gradient' if back else 'output'} of {name}"
            sender.add(f"send {title}", NodeType.COMM_SEND, made_by, what)
            receiver = self._ranks[target]
            arrived[target].append(receiver.add(f"receive {title}", NodeType.COMM_RECV, [], what))
        return arrived

    def _reduce(self, index: int) -> None:
        """The AllReduce of an operator's gradients among those that hold the same parameters."""
        operator, placement = self._graph.operators[index], self._plan.strategy[index]
        size_bytes = -(-operator.parameter_gradient_bytes // placement.parameter)
        if not size_bytes:
            return
        for group in parameter_groups(placement):
            if len(group) < 2:
                continue
            for server in group:
                self._ranks[server].add(
                    f"all_reduce {operator.name}",
                    NodeType.COMM_COLL,
                    [self._backward[index, server]],
                    {
                        "comm_type": int(CollectiveType.ALL_REDUCE),
                        "comm_size": size_bytes,
                        "pg_name": self._names[group],
                    },
                )
