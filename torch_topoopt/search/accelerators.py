"""What an operator costs on an accelerator: a roofline over public peak figures.

Peaks are the dense figures of the makers' data sheets for the number format that training uses on
the device (BF16 or FP16 tensor cores with FP32 sums; FP32 on a CPU core). `efficiency` is the share
of that peak that large matrix products reach; it is an assumption, not a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator


@dataclass(frozen=True)
class Accelerator:
    """Peak rates of one device. `peer_bytes_per_s` joins it to the others of the same server."""

    peak_flops: float
    memory_bytes_per_s: float
    memory_bytes: int
    peer_bytes_per_s: float
    efficiency: float
    launch_overhead_s: float


_GIB = 2**30

ACCELERATORS: dict[str, Accelerator] = {
    # One core with 8-wide FP32 fused multiply-add units at 3 GHz and its share of the memory.
    "cpu-core": Accelerator(96e9, 10e9, 4 * _GIB, 10e9, 0.5, 5e-6),
    "a100": Accelerator(312e12, 2.039e12, 80 * _GIB, 300e9, 0.5, 5e-6),
    "h100": Accelerator(989e12, 3.35e12, 80 * _GIB, 450e9, 0.5, 5e-6),
    "h200": Accelerator(989e12, 4.8e12, 141 * 10**9, 450e9, 0.5, 5e-6),
    "b200": Accelerator(2250e12, 8.0e12, 180 * 10**9, 900e9, 0.5, 5e-6),
    "gb10": Accelerator(125e12, 273e9, 128 * 10**9, 273e9, 0.5, 5e-6),
    "rtx-4090": Accelerator(165e12, 1.008e12, 24 * _GIB, 32e9, 0.5, 5e-6),
}


def accelerator(name: str) -> Accelerator:
    """The entry of `ACCELERATORS`; raises ValueError listing the known names."""
    try:
        return ACCELERATORS[name]
    except KeyError:
        raise ValueError(
            f"accelerator: {name!r} is not known; use one of {', '.join(ACCELERATORS)}"
        ) from None


def roofline_seconds(device: Accelerator, flops: float, size_bytes: float) -> float:
    """Seconds of one kernel: the longer of computing and moving bytes, plus the launch.

    0 for an operator that neither computes nor moves anything (a view).
    """
    if flops == 0 and size_bytes == 0:
        return 0.0
    compute_s = flops / (device.peak_flops * device.efficiency)
    return max(compute_s, size_bytes / device.memory_bytes_per_s) + device.launch_overhead_s


def operator_seconds(device: Accelerator, operator: Operator, shards: float) -> tuple[float, float]:
    """(forward, backward) seconds of one shard when the batch is split into `shards` equal parts.

    FLOPs and activation bytes are divided by `shards`. Parameters are read, and their gradients
    written, by every shard, unless the operator touches less memory than its parameters take (an
    embedding reads only the rows of its samples): then all of its traffic is divided. The backward
    pass moves the bytes of the forward pass once more, and writes the gradients.
    """
    touches_all = operator.memory_bytes >= operator.parameter_bytes
    fixed = operator.parameter_bytes if touches_all else 0
    gradient_fixed = operator.parameter_gradient_bytes if touches_all else 0
    moved = (operator.memory_bytes - fixed) / shards
    gradients = sum(operand.gradient_bytes for operand in operator.operands) / shards
    forward = roofline_seconds(device, operator.forward_flops / shards, moved + fixed)
    if operator.backward_flops == 0 and gradients == 0 and operator.parameter_gradient_bytes == 0:
        return forward, 0.0
    if not touches_all:
        gradients += operator.memory_bytes / shards
    backward = roofline_seconds(
        device, operator.backward_flops / shards, moved + fixed + gradients + gradient_fixed
    )
    return forward, backward
