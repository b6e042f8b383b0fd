"""Strategies to start from, and the accelerator memory that they need.

A strategy is a tuple of `Placement`, one per operator of the OpGraph, in its order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.lowering import degrees_of, lower_job, memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Cluster

    Executable = Callable[[Placement], bool]  # whether an operator can run on this placement

Strategy = tuple[Placement, ...]


def data_parallel(op_graph: OpGraph, servers: int) -> Strategy:
    """Every operator on every server; raises ValueError if there are fewer samples than servers."""
    if op_graph.batch_size < servers:
        raise ValueError(
            f"batch_size: {op_graph.batch_size} samples cannot be shared by {servers} servers; "
            f"use at least {servers}"
        )
    return everywhere(op_graph, servers)


def everywhere(op_graph: OpGraph, servers: int) -> Strategy:
    """Every operator on every server, however few the samples, to get a network of all servers."""
    all_servers = tuple(range(servers))
    return tuple(Placement(operator.name, all_servers) for operator in op_graph.operators)


def samples_of_servers(op_graph: OpGraph, cluster: Cluster, micro_batches: int) -> int:
    """The most servers that may share a micro-batch: one sample per accelerator, at least one."""
    return max(1, op_graph.batch_size // micro_batches // cluster.accelerators_per_server)


@lru_cache(maxsize=4096)
def most_parts(servers: int, samples: int) -> int:
    """The largest divisor of `servers` that is at most `samples`."""
    return max(k for k in range(1, min(servers, samples) + 1) if servers % k == 0)


def whole_operators(
    op_graph: OpGraph,
    cluster: Cluster,
    chosen: Collection[int],
    base: Strategy | None = None,
    homes: Sequence[tuple[int, ...]] | None = None,
) -> Strategy:
    """The operators of index `chosen` whole on one server each, the others as in `base`.

    The largest is placed first, on the server with the fewest bytes. Ties go to the first of
    `homes[i]` for operator i, which default to all servers.
    """
    base = base or everywhere(op_graph, cluster.servers)
    homes = homes or (tuple(range(cluster.servers)),) * len(base)
    home: dict[int, int] = {}
    held = [0] * cluster.servers
    by_size = sorted(chosen, key=lambda i: (-_state_bytes(op_graph.operators[i]), i))
    for i in by_size:
        server = min(homes[i], key=held.__getitem__)
        home[i] = server
        held[server] += _state_bytes(op_graph.operators[i])
    return tuple(
        Placement(placement.operator, (home[i],)) if i in home else placement
        for i, placement in enumerate(base)
    )


def heavy_operators(op_graph: OpGraph) -> frozenset[int]:
    """Indices of operators whose AllReduce would exceed the bytes of their inputs and outputs."""
    return frozenset(
        i
        for i, operator in enumerate(op_graph.operators)
        if 2 * operator.parameter_gradient_bytes > _traffic_bytes(op_graph, i)
    )


def largest_operators(op_graph: OpGraph) -> tuple[int, ...]:
    """Indices of operators with parameters, in descending order of parameter bytes."""
    sizes = [_state_bytes(operator) for operator in op_graph.operators]
    return tuple(sorted((i for i, size in enumerate(sizes) if size), key=lambda i: (-sizes[i], i)))


def _state_bytes(operator: Operator) -> int:
    return operator.parameter_bytes + operator.parameter_gradient_bytes


def _traffic_bytes(op_graph: OpGraph, index: int) -> int:
    """Activations and gradients to and from an operator that is whole on one server."""
    operator = op_graph.operators[index]
    edges = list(operator.operands)
    edges += [
        o for consumer in op_graph.operators for o in consumer.operands if o.producer == index
    ]
    return sum(edge.size_bytes + edge.gradient_bytes for edge in edges)


def starting_strategies(
    op_graph: OpGraph,
    cluster: Cluster,
    executable: Executable | None = None,
    *,
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> tuple[Strategy, ...]:
    """The starts of the search that fit into the accelerators' memory, of these:

    - data parallelism;
    - the same with every operator whole whose AllReduce exceeds its activations;
    - the same with the fewest of the largest operators whole that make it fit.

    With fewer samples than servers, some servers share them; that is not `executable`. An operator
    that is not `executable` on each single server stays on all of them. Raises ValueError with the
    bytes needed and available if none fits.
    """
    if executable is not None:
        base = data_parallel(op_graph, cluster.servers)
    else:
        samples = samples_of_servers(op_graph, cluster, micro_batches)
        base = everywhere(op_graph, most_parts(cluster.servers, samples))
    if cluster.servers == 1:
        alone = check_memory(
            op_graph,
            cluster,
            base,
            micro_batches=micro_batches,
            optimizer_factor=optimizer_factor,
        )
        return (alone,)
    movable = [
        i
        for i, operator in enumerate(op_graph.operators)
        if executable is None
        or all(executable(Placement(operator.name, (s,))) for s in range(cluster.servers))
    ]
    heavy = heavy_operators(op_graph).intersection(movable)
    # With micro-batches, a whole operator is a stage of its own, and the others would wait for it.
    homes = [base[0].servers] * len(base) if micro_batches > 1 else None
    candidates = [base, whole_operators(op_graph, cluster, heavy, base, homes)]
    by_size = sorted(movable, key=lambda i: (-_state_bytes(op_graph.operators[i]), i))
    memory = Memory(
        op_graph,
        cluster,
        degrees_of(candidates) | {Degrees(1)},
        micro_batches,
        optimizer_factor=optimizer_factor,
    )
    for count in range(1, len(by_size) + 1):
        strategy = whole_operators(op_graph, cluster, by_size[:count], base, homes)
        if memory.fits(strategy):
            candidates.append(strategy)
            break
    return _those_that_fit(memory, candidates)


def check_memory(
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> Strategy:
    """Returns `strategy`; raises ValueError with the bytes needed (see `Memory`) and available."""
    memory = Memory(
        op_graph, cluster, degrees_of([strategy]), micro_batches, optimizer_factor=optimizer_factor
    )
    return _those_that_fit(memory, [strategy])[0]


class Memory:
    """The accelerator memory of strategies of some degrees, a hard limit.

    It counts parameters, gradients, `optimizer_factor` bytes of optimizer state for each byte of
    gradients, and the activations kept for the backward pass: those of all micro-batches that 1F1B
    holds at once on that stage of the pipeline.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        degrees: Collection[Degrees],
        micro_batches: int = 1,
        *,
        optimizer_factor: float = 0.0,
    ) -> None:
        self.op_graph = op_graph
        self.cluster = cluster
        self.limit_bytes = memory_limit(cluster)
        self._job = lower_job(
            op_graph,
            cluster,
            degrees,
            micro_batches=micro_batches,
            optimizer_factor=optimizer_factor,
        )

    def needed_bytes(self, strategy: Strategy) -> int:
        """Bytes on the accelerators of the fullest server."""
        return max(_core.memory_bytes(self._job, strategy))

    def fits(self, strategy: Strategy) -> bool:
        return self.needed_bytes(strategy) <= self.limit_bytes


def _those_that_fit(memory: Memory, candidates: list[Strategy]) -> tuple[Strategy, ...]:
    needed = [memory.needed_bytes(strategy) for strategy in candidates]
    fitting = [s for s, size in zip(candidates, needed, strict=True) if size <= memory.limit_bytes]
    if not fitting:
        raise ValueError(
            f"accelerator: {memory.op_graph.model} needs {min(needed)} bytes in the memory of one "
            f"{memory.cluster.accelerator}, which has {memory.limit_bytes}; use "
            "strategy_space layouts, which shards its state, more servers, a larger accelerator or "
            "a smaller batch"
        )
    return tuple(dict.fromkeys(fitting))
