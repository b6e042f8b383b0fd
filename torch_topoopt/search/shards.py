"""The compute time and memory of one shard, modelled as an operator of the shard's parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.accelerators import (
    estimated_seconds,
    operator_seconds,
    reads_all_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operand, Operator, Split
    from torch_topoopt.plan import Degrees, ParameterKind
    from torch_topoopt.search.accelerators import Accelerator


class ShardCost(NamedTuple):
    """The cost of one shard: seconds of one micro-batch; bytes of its state (parameters,
    gradients, optimizer), and those kept from its forward to its backward pass."""

    forward_s: float
    backward_s: float
    state_bytes: int
    saved_bytes: int


UNSPLIT = ShardCost(-1.0, -1.0, 0, 0)  # the operator cannot be split that way


class ShardedOperator(NamedTuple):
    """The cost of an operator: `shards[i]` for degrees i of its job, and the gradients of all its
    parameters. Shards of the parameter splits `whole_operands` need whole operands, as do those
    of positions if `whole_positions`."""

    shards: Sequence[ShardCost]
    all_reduce_bytes: float
    whole_operands: Sequence[ParameterKind]
    whole_positions: bool
    operands: Sequence[Operand]


_LARGEST_PART = 1.05  # times an equal part, since costs are those of equal parts


def is_even(split: Split, degree: int) -> bool:
    """Whether `degree` parts are nearly equal: the largest at most 5 % above an equal part."""
    return -(-split.max_degree // degree) * degree <= _LARGEST_PART * split.max_degree


def may_split(operator: Operator, degrees: Degrees) -> bool:
    """Whether `operator` has the dimensions of `degrees`, with any samples."""
    for dimension, degree in ((degrees.kind, degrees.parameter), ("attribute", degrees.attribute)):
        if degree > 1:
            split = operator.split(dimension)  # type: ignore[arg-type]
            if split is None or not is_even(split, degree):
                return False
    return True


def shard_operator(operator: Operator, degrees: Degrees) -> Operator:
    """`operator` with one part of its parameters and positions and all of the samples.

    Sizes are rounded up. A shard that needs whole operands reads and saves all of them; one of
    "rows" writes a whole output. An operator that touches less memory than its parameters take (an
    embedding) reads its own rows or columns only. All parameters count as split, even the few that
    every shard needs (the bias of "rows"). A part drops the measured times of the whole operator.
    """
    inputs, outputs, flops, state = 1, 1, 1, 1  # the divisor of each
    if degrees.kind is not None:
        split = operator.split(degrees.kind)
        assert split is not None
        flops, state = degrees.parameter, degrees.parameter
        inputs = degrees.parameter if split.operands == "part" else 1
        outputs = 1 if degrees.kind == "rows" else degrees.parameter
    if degrees.attribute > 1:
        split = operator.split("attribute")
        assert split is not None
        flops *= degrees.attribute
        inputs *= degrees.attribute if split.operands == "part" else 1
        outputs *= degrees.attribute
    if flops == 1:
        return operator
    touches_all = reads_all_parameters(operator)
    held = operator.parameter_bytes if touches_all else 0
    read = max(0, operator.memory_bytes - held - operator.output_bytes)
    read_parts = inputs if touches_all else flops
    parameter_bytes = _part(operator.parameter_bytes, state)
    output_bytes = _part(operator.output_bytes, outputs)
    memory_bytes = _part(read, read_parts) + output_bytes
    memory_bytes += parameter_bytes if touches_all else 0
    return replace(
        operator,
        forward_flops=_part(operator.forward_flops, flops),
        backward_flops=_part(operator.backward_flops, flops),
        parameter_bytes=parameter_bytes,
        parameter_gradient_bytes=_part(operator.parameter_gradient_bytes, state),
        output_bytes=output_bytes,
        saved_bytes=_part(operator.saved_bytes, inputs),
        memory_bytes=memory_bytes,
        operands=tuple(
            replace(
                operand,
                size_bytes=_part(operand.size_bytes, inputs),
                gradient_bytes=_part(operand.gradient_bytes, inputs),
            )
            for operand in operator.operands
        ),
        measured=(),
    )


def shard_cost(
    device: Accelerator,
    operator: Operator,
    degrees: Degrees,
    accelerators_per_server: int,
    micro_batches: int,
    optimizer_factor: float = 0.0,
) -> ShardCost:
    """The cost of one shard.

    Times and saved bytes are of one micro-batch on each accelerator of a server. A splittable
    operator divides its samples among all of them, any other uses one. State is parameters,
    gradients, and `optimizer_factor` bytes of optimizer state per byte of gradients.
    """
    shard = shard_operator(operator, degrees)
    parts = accelerators_per_server if operator.splittable else 1
    count = degrees.sample * parts * micro_batches
    forward_s, backward_s = operator_seconds(device, shard, count)
    if operator.measured and shard is not operator:  # scale by the estimated speed-up
        estimated = estimated_seconds(device, operator, count)
        measured = operator_seconds(device, operator, count)
        forward_s *= measured[0] / estimated[0] if estimated[0] else 1
        backward_s *= measured[1] / estimated[1] if estimated[1] else 1
    state = shard.parameter_bytes + shard.parameter_gradient_bytes
    state += math.ceil(optimizer_factor * shard.parameter_gradient_bytes)
    saved = _part(_part(shard.saved_bytes, parts), degrees.sample * micro_batches)
    return ShardCost(forward_s, backward_s, state, saved)


def _part(size: int, parts: int) -> int:
    return -(-size // parts)
