"""The space of strategies: which servers may share which operator, and how it may be split.

FlexFlow's space as the TopoOpt paper searches it: an operator is split along the batch only, over a
number of servers that divides n, on consecutive servers or on servers at equal distance; one server
means that the whole operator lives there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Placement, validate_placement
from torch_topoopt.search.lowering import lower_placement

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.search.strategies import Executable, Strategy

ServerSet = tuple[int, ...]


@dataclass(frozen=True)
class StrategySpace:
    """`sets[s]` are the allowed server sets of kind s, grouped by size; `kind[i]` is operator i's.

    Kind 0 is for splittable operators, kind 1 for the others, which run whole on one server or, as
    in data parallelism, on every server for the samples that it holds.
    """

    sets: tuple[tuple[tuple[ServerSet, ...], ...], ...]
    kind: tuple[int, ...]


def shard_counts(servers: int, batch_size: int) -> tuple[int, ...]:
    """The numbers of servers that may share a batch: divisors of `servers`, one sample each."""
    return tuple(k for k in range(1, min(servers, batch_size) + 1) if servers % k == 0)


def server_sets(servers: int, count: int) -> tuple[ServerSet, ...]:
    """All sets of `count` consecutive or equally spaced servers, from every start, without repeats.

    `count` must divide `servers`. Consecutive sets wrap around from the last server to the first.
    """
    if count < 1 or servers % count:
        raise ValueError(f"count: {count} does not divide {servers} servers")
    stride = servers // count
    sets = {tuple(sorted((s + i) % servers for i in range(count))) for s in range(servers)}
    sets |= {tuple(range(s, servers, stride)) for s in range(stride)}
    return tuple(sorted(sets))


def strategy_space(
    op_graph: OpGraph, servers: int, executable: Executable | None = None
) -> StrategySpace:
    """What every operator of `op_graph` may do on `servers` servers, as far as it is `executable`.

    Raises ValueError for an operator that may run nowhere.
    """
    counts = shard_counts(servers, op_graph.batch_size)
    split = tuple(server_sets(servers, k) for k in counts)
    whole = tuple(server_sets(servers, k) for k in sorted({1, counts[-1]}) if k in (1, servers))
    if executable is None:
        kind = tuple(0 if operator.splittable else 1 for operator in op_graph.operators)
        return StrategySpace((split, whole), kind)
    kinds: dict[tuple[tuple[ServerSet, ...], ...], int] = {}
    of_operator = []
    for operator in op_graph.operators:
        sizes = split if operator.splittable else whole
        kept = (tuple(s for s in sets if executable(Placement(operator.name, s))) for sets in sizes)
        allowed = tuple(sets for sets in kept if sets)
        if not allowed:
            raise ValueError(f"executable: operator {operator.name!r} may run on no servers")
        of_operator.append(kinds.setdefault(allowed, len(kinds)))
    return StrategySpace(tuple(kinds), tuple(of_operator))


def check_strategy(
    op_graph: OpGraph, servers: int, strategy: Strategy, *, micro_batches: int = 1
) -> Strategy:
    """Returns `strategy`, or raises ValueError with one line for the first rule that is broken.

    It places the operators of `op_graph` in their order; each on some of the servers, none of them
    twice, split as the operator allows and with at least one sample per part of a micro-batch;
    micro-batches are equal, and the stages of a pipeline follow each other.
    """
    names = tuple(operator.name for operator in op_graph.operators)
    if tuple(placement.operator for placement in strategy) != names:
        raise ValueError(
            f"strategy: must place the {len(names)} operators of {op_graph.model} in their order"
        )
    if micro_batches < 1 or op_graph.batch_size % micro_batches:
        raise ValueError(
            f"micro_batches: {micro_batches} does not divide the batch of {op_graph.batch_size}"
        )
    samples = op_graph.batch_size // micro_batches
    for operator, placement in zip(op_graph.operators, strategy, strict=True):
        where = f"strategy ({placement.operator})"
        validate_placement(where, placement, servers)
        if placement.sample > samples:
            raise ValueError(
                f"{where}.servers: {samples} samples cannot be shared by {placement.sample} servers"
                + (f" ({micro_batches} micro-batches)" if micro_batches > 1 else "")
            )
        _check_splits(where, operator, placement)
    if micro_batches > 1:
        producers = [[o.producer for o in operator.operands] for operator in op_graph.operators]
        lowered = [lower_placement(placement) for placement in strategy]
        _core.micro_batches_in_flight(lowered, producers, servers, micro_batches)
    return strategy


def _check_splits(where: str, operator: Operator, placement: Placement) -> None:
    for dimension, degree in (
        ("columns", placement.columns),
        ("rows", placement.rows),
        ("experts", placement.experts),
        ("attribute", placement.attribute),
    ):
        if degree == 1:
            continue
        split = operator.split(dimension)  # type: ignore[arg-type]
        if split is None or degree > split.max_degree:
            allowed = ", ".join(
                f"{s.dimension} into at most {s.max_degree}" for s in operator.splits
            )
            raise ValueError(
                f"{where}.{dimension}: {degree}, but a {operator.kind} may be split by "
                f"{allowed or 'nothing but its samples'}"
            )
