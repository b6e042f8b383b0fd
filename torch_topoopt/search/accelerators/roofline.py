"""The cost of an operator on an accelerator: a roofline of its class (classes.py).

In bf16 and narrower formats, operators that multiply matrices cost what their shapes allow
(tensor_cores.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.search.accelerators.classes import class_of, reads_all_parameters
from torch_topoopt.search.accelerators.devices import ALONE, Box, HostMemory
from torch_topoopt.search.accelerators.tensor_cores import (
    BANDWIDTH,
    Work,
    on_tensor_cores,
    tensor_core_seconds,
)

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator
    from torch_topoopt.search.accelerators.classes import ClassName, OperatorClass, Pass
    from torch_topoopt.search.accelerators.tensor_cores import TensorCores


@dataclass(frozen=True)
class Accelerator:
    """Peak rates of one device; `peer_bytes_per_s` joins it to the others of the same server.

    `tensor_flops` is the peak of convolutions and attention, `dense_flops` that of dense layers.
    `tensor_cores` replaces the classes of products and attention in bf16 and narrower formats.
    `reserved_bytes` of the memory are not free to a training script. `box` is its usual server, and
    `host` its part of the memory there, unless that is the accelerator's.
    """

    dense_flops: float
    tensor_flops: float
    memory_bytes_per_s: float
    memory_bytes: int
    peer_bytes_per_s: float
    classes: dict[ClassName, OperatorClass]
    tensor_cores: TensorCores | None = None
    reserved_bytes: int = 0
    box: Box = ALONE
    host: HostMemory | None = None

    def peak_flops(self, class_name: ClassName) -> float:
        return self.tensor_flops if class_name in _ON_TENSOR_CORES else self.dense_flops


# log_softmax reads and writes what nll_loss then reads; backward, two steps read and write as much
_LOSSES = frozenset({"cross_entropy", "CrossEntropyLoss"})
_ON_TENSOR_CORES: tuple[ClassName, ...] = ("convolution", "attention")


def pass_seconds(
    device: Accelerator, operator: Operator, one: Pass, flops: float, size_bytes: float
) -> float:
    """Seconds of a pass with this compute and traffic; 0 without either (a view)."""
    if flops == 0 and size_bytes == 0:
        return 0.0
    compute_s = flops / (device.peak_flops(class_of(operator)) * one.efficiency)
    move_s = size_bytes / (device.memory_bytes_per_s * one.bandwidth)
    work_s = max(compute_s, move_s) + (1 - one.overlap) * min(compute_s, move_s)
    return work_s + one.launch_s + one.operand_s * len(operator.operands)


def operator_seconds(device: Accelerator, operator: Operator, shards: float) -> tuple[float, float]:
    """(forward, backward) seconds of one shard when the batch is split into `shards` equal parts.

    Measured costs take precedence over the cost model: interpolated (in logarithms) between two,
    and beyond them the nearest one, scaled by the change of the estimate.
    """
    if not operator.measured:
        return estimated_seconds(device, operator, shards)
    known = [cost.shards for cost in operator.measured]
    after = bisect_left(known, shards)
    if 0 < after < len(known):
        low, high = operator.measured[after - 1], operator.measured[after]
        part = math.log(shards / low.shards) / math.log(high.shards / low.shards)
        return (
            _between(low.forward_s, high.forward_s, part),
            _between(low.backward_s, high.backward_s, part),
        )
    nearest = operator.measured[min(after, len(known) - 1)]
    there = estimated_seconds(device, operator, nearest.shards)
    here = estimated_seconds(device, operator, shards)
    return _scaled(nearest.forward_s, here[0], there[0]), _scaled(
        nearest.backward_s, here[1], there[1]
    )


def _between(low: float, high: float, part: float) -> float:
    if low == 0 or high == 0:
        return low + part * (high - low)
    return math.exp((1 - part) * math.log(low) + part * math.log(high))


def _scaled(measured: float, here: float, there: float) -> float:
    return measured * here / there if there else measured


def estimated_seconds(
    device: Accelerator, operator: Operator, shards: float
) -> tuple[float, float]:
    """(forward, backward) seconds by the cost model alone.

    FLOPs and activation bytes are divided by `shards`. Every shard reads all parameters and writes
    their gradients, except for table lookups, whose traffic is divided. The backward pass moves the
    bytes of the forward pass again, and writes the gradients.
    """
    touches_all = reads_all_parameters(operator)
    fixed = operator.parameter_bytes if touches_all else 0
    moved = (operator.memory_bytes - fixed) / shards + fixed
    gradients = sum(operand.gradient_bytes for operand in operator.operands) / shards
    goes_back = bool(operator.backward_flops or gradients or operator.parameter_gradient_bytes)
    gradients += (
        operator.parameter_gradient_bytes if touches_all else operator.memory_bytes / shards
    )
    work = Work(
        operator.forward_flops / shards,
        operator.backward_flops / shards,
        moved,
        moved + gradients if goes_back else 0.0,
    )
    if device.tensor_cores is not None and operator.kind in _LOSSES:
        work = work._replace(forward_bytes=3 * moved, backward_bytes=2 * work.backward_bytes)
    elif device.tensor_cores is not None and on_tensor_cores(operator):
        return tensor_core_seconds(
            device.tensor_cores, device.memory_bytes_per_s, operator, work, shards
        )
    cost = device.classes[class_of(operator)]
    return (
        pass_seconds(device, operator, cost.forward, work.forward_flops, work.forward_bytes),
        pass_seconds(device, operator, cost.backward, work.backward_flops, work.backward_bytes),
    )


def loss_seconds(device: Accelerator, logits: float) -> float:
    """Seconds of both passes of the cross entropy of bf16 logits, where an OpGraph has none.

    PyTorch casts them to fp32 and back, and each pass of log_softmax and nll_loss reads or writes
    them all: 40 bytes for each.
    """
    return 40 * logits / (device.memory_bytes_per_s * BANDWIDTH)
