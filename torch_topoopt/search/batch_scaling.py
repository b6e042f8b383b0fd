"""An OpGraph of another batch size, without its model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.search.accelerators import reads_all_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import Operand, Operator, OpGraph


def with_batch_size(graph: OpGraph, batch_size: int) -> OpGraph:
    """`graph` for a batch of that many samples.

    FLOPs and tensors of operators that samples can be split by are in proportion to the samples.
    Parameters stay. A measured cost is still that of as many samples, so of other `shards`. Raises
    ValueError where the batch size is not above 0, for a measured step, whose overhead depends on
    the batch in an unknown way, and for products in which samples meet.
    """
    if batch_size < 1:
        raise ValueError(f"batch-size: must be at least 1 (got {batch_size})")
    if batch_size == graph.batch_size:
        return graph
    if graph.measured_step is not None:
        raise ValueError(
            f"batch-size: {graph.model} has the measured step of {graph.batch_size} samples; "
            "profile the model with the other batch, or leave --batch-size out"
        )

    def scaled(size: int) -> int:
        return -(-size * batch_size // graph.batch_size)

    operators: list[Operator] = []
    for operator in graph.operators:
        grows = [graph.operators[operand.producer].splittable for operand in operator.operands]
        operands = tuple(
            _operand(operand, scaled) if of_samples else operand
            for operand, of_samples in zip(operator.operands, grows, strict=True)
        )
        made = replace(operator, operands=operands)
        if operator.splittable:
            made = _splittable(made, scaled)
        elif any(grows):
            made = _mixing(operator, operands, scaled)
        shards = batch_size / graph.batch_size
        measured = tuple(replace(c, shards=c.shards * shards) for c in operator.measured)
        operators.append(replace(made, measured=measured))
    return replace(graph, batch_size=batch_size, operators=tuple(operators)).validate()


def _operand(operand: Operand, scaled: Callable[[int], int]) -> Operand:
    return replace(
        operand,
        size_bytes=scaled(operand.size_bytes),
        gradient_bytes=scaled(operand.gradient_bytes),
    )


def _splittable(operator: Operator, scaled: Callable[[int], int]) -> Operator:
    parameters = operator.parameter_bytes if reads_all_parameters(operator) else 0
    return replace(
        operator,
        forward_flops=scaled(operator.forward_flops),
        backward_flops=scaled(operator.backward_flops),
        output_bytes=scaled(operator.output_bytes),
        saved_bytes=scaled(operator.saved_bytes),
        memory_bytes=scaled(operator.memory_bytes - parameters) + parameters,
    )


def _mixing(
    operator: Operator, operands: tuple[Operand, ...], scaled: Callable[[int], int]
) -> Operator:
    """An operator that reads samples and makes something of the same size for any number."""
    if operator.forward_flops or operator.backward_flops:
        raise ValueError(
            f"batch-size: operator {operator.name!r} multiplies samples with one another, so its "
            "cost is not known for another batch; profile the model with it"
        )
    more = sum(operand.size_bytes for operand in operands)
    more -= sum(operand.size_bytes for operand in operator.operands)
    return replace(
        operator,
        operands=operands,
        saved_bytes=scaled(operator.saved_bytes),
        memory_bytes=max(0, operator.memory_bytes + more),
    )
