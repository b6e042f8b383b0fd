"""From a strategy to its traffic: AllReduce and MP bytes (paper section 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt import _core
from torch_topoopt.plan import Demand, GroupDemand, PairDemand, validate_placement
from torch_topoopt.search.lowering import operand_needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Placement


def transfers(
    operator: Operator, producer: Placement, consumer: Placement
) -> list[tuple[int, int, float]]:
    """The parts of a tensor on `producer` that `operator` on `consumer` reads.

    (source, target, fraction of the tensor), only where source and target differ; gradients go the
    other way. A fraction may be listed for several pairs: partial sums come from every server that
    has one, and operands needed whole go to every server.
    """
    needs = operand_needs(operator, consumer)
    found = _core.placement_transfers(producer, consumer, *needs)
    return [(t.source, t.target, t.fraction) for t in found if t.source != t.target]


class SharedRead(NamedTuple):
    """A tensor and the operators, by index, that share its transfer; gradients return summed up."""

    producer: int
    size_bytes: int
    gradient_bytes: int
    readers: tuple[int, ...]


def shared_reads(op_graph: OpGraph, placements: Sequence[Placement]) -> list[SharedRead]:
    """Every tensor, once for each distinct need of its readers.

    Readers share a transfer if their needs are equal (_core.placement_need). Both simulators use
    this rule: PlacementCosts::carrier, csrc/sim/iteration/job.h.
    """
    found: dict[object, SharedRead] = {}
    for i, (operator, placement) in enumerate(zip(op_graph.operators, placements, strict=True)):
        needs = operand_needs(operator, placement)
        for j, operand in enumerate(operator.operands):
            key: object = (i, j)
            if operand.tensor:
                need = _core.placement_need(placement, *needs)
                key = (operand.producer, operand.tensor, need)
            before = found.get(key, SharedRead(operand.producer, operand.size_bytes, 0, ()))
            found[key] = before._replace(
                gradient_bytes=max(before.gradient_bytes, operand.gradient_bytes),
                readers=(*before.readers, i),
            )
    return list(found.values())


def transfer_count(op_graph: OpGraph, placements: Sequence[Placement]) -> int:
    """The number of transfers between servers of `placements`, one way."""
    total = 0
    for read in shared_reads(op_graph, placements):
        producer, reader = placements[read.producer], placements[read.readers[0]]
        needs = operand_needs(op_graph.operators[read.readers[0]], reader)
        total += _core.placement_sent(producer, reader, *needs)
    return total


def parameter_groups(placement: Placement) -> list[tuple[int, ...]]:
    """The servers that hold the same parameters, ascending: one group per part of them."""
    return [tuple(group) for group in _core.parameter_groups(placement)]


def demand(op_graph: OpGraph, placements: Sequence[Placement], servers: int) -> Demand:
    """The demand of one iteration of `op_graph` under `placements` on a cluster of `servers`.

    One group per set of at least two servers that hold the same parameters, with the summed
    gradients of all operators on it, and one pair per (source, target) with activations sent
    forward and gradients sent back, in bytes. Groups are in descending order of bytes, pairs in
    ascending order of servers. Raises DocumentError for a placement that is not valid.
    """
    groups: dict[tuple[int, ...], int] = {}
    pairs: dict[tuple[int, int], float] = {}
    for i, placement in enumerate(placements):
        validate_placement(f"strategy[{i}] ({placement.operator})", placement, servers)
    for operator, placement in zip(op_graph.operators, placements, strict=True):
        if operator.parameter_gradient_bytes:
            size_bytes = -(-operator.parameter_gradient_bytes // placement.parameter)
            for group in parameter_groups(placement):
                if len(group) > 1:
                    groups[group] = groups.get(group, 0) + size_bytes
    for read in shared_reads(op_graph, placements):
        producer, reader = placements[read.producer], read.readers[0]
        if _stays(producer, placements[reader]):
            continue
        for source, target, share in transfers(
            op_graph.operators[reader], producer, placements[reader]
        ):
            for pair, size in (
                ((source, target), read.size_bytes),
                ((target, source), read.gradient_bytes),
            ):
                if size:
                    pairs[pair] = pairs.get(pair, 0.0) + share * size
    return Demand(
        groups=tuple(
            GroupDemand(members, size)
            for members, size in sorted(groups.items(), key=lambda item: (-item[1], item[0]))
        ),
        pairs=tuple(
            PairDemand(source, target, max(1, round(size)))
            for (source, target), size in sorted(pairs.items())
        ),
    )


def _stays(producer: Placement, consumer: Placement) -> bool:
    """Whether both have the same samples on the same servers, so that nothing moves."""
    samples_only = len(consumer.servers) == consumer.sample
    return (
        samples_only and producer.servers == consumer.servers and producer.sample == consumer.sample
    )
