"""The cost of an operator on an accelerator: a roofline whose peaks come from data sheets.

A device has a peak for each number format, and a memory bandwidth. The fraction that an operator
reaches depends on its class (`OperatorClass`). The fractions are fitted to measurements on an A100
(benchmarks/cost_calibration.py) and assumed to hold on other devices.

An accelerator is named DEVICE or DEVICE:FORMAT. FORMAT selects the units for matrix products:

- fp32, the default: PyTorch's defaults for a float32 model. Dense layers use the FP32 units;
  convolutions and attention use the tensor cores in TF32, if any. The paper measured like this.
- tf32: everything on tensor cores, from float32 (`torch.set_float32_matmul_precision("high")`).
- bf16: everything on tensor cores in BF16 or FP16. The bytes of an OpGraph stay those of the
  profiled model: profile one of that type.

"cpu" is this machine, measured at run time (cpu_roofline.py).

Peaks are dense, with FP32 accumulation, from data sheets of the largest version: A100 80 GB SXM,
H100 SXM, H200 SXM, HGX B200, GB10 in a DGX Spark, RTX 4090. The GB10 sheet gives 1 PFLOP/s of
sparse FP4; BF16 is an eighth of it, as on other Blackwell chips, and TF32 half of that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

Format = Literal["fp32", "tf32", "bf16"]
ClassName = Literal["dense", "convolution", "attention", "lookup", "concatenation", "elementwise"]


class Pass(NamedTuple):
    """The use of a device by a forward or backward pass of a class of operators.

    It reaches `efficiency` of the peak and `bandwidth` of the memory bandwidth. `overlap` is the
    fraction of the shorter of compute and memory time that the longer one hides. It takes at least
    `launch_s`, and `operand_s` for each tensor that it reads from another operator.
    """

    efficiency: float
    bandwidth: float
    overlap: float
    launch_s: float
    operand_s: float = 0.0


class OperatorClass(NamedTuple):
    """The two passes of a class of operators."""

    forward: Pass
    backward: Pass


# Fitted by `benchmarks/cost_calibration.py --fit`; without --fit it prints the errors.
# Launch times are fitted for dense layers and assumed equal for other classes. Those of elementwise
# operators are assumed, because the measured one fits into the cache.
_LAUNCH_S = 1.32e-5
FITTED: dict[ClassName, OperatorClass] = {
    "dense": OperatorClass(Pass(0.943, 0.679, 0.48, _LAUNCH_S), Pass(0.912, 1.0, 0.858, 3.88e-5)),
    "convolution": OperatorClass(
        Pass(0.542, 0.229, 1.0, _LAUNCH_S), Pass(0.591, 0.0805, 1.0, _LAUNCH_S)
    ),
    "attention": OperatorClass(Pass(0.197, 1.0, 1.0, _LAUNCH_S), Pass(0.193, 1.0, 1.0, _LAUNCH_S)),
    "lookup": OperatorClass(Pass(1.0, 0.0969, 1.0, _LAUNCH_S), Pass(1.0, 0.0968, 1.0, _LAUNCH_S)),
    "concatenation": OperatorClass(
        Pass(1.0, 0.464, 1.0, 0.0, 3.09e-6), Pass(1.0, 0.562, 1.0, 0.0, 3.06e-6)
    ),
    "elementwise": OperatorClass(Pass(1.0, 1.0, 1.0, 5e-6), Pass(1.0, 1.0, 1.0, 5e-6)),
}


@dataclass(frozen=True)
class Accelerator:
    """Peak rates of one device; `peer_bytes_per_s` joins it to the others of the same server.

    `tensor_flops` is the peak of convolutions and attention, `dense_flops` that of dense layers.
    """

    dense_flops: float
    tensor_flops: float
    memory_bytes_per_s: float
    memory_bytes: int
    peer_bytes_per_s: float
    classes: dict[ClassName, OperatorClass]

    def peak_flops(self, class_name: ClassName) -> float:
        return self.tensor_flops if class_name in _ON_TENSOR_CORES else self.dense_flops


_ON_TENSOR_CORES: tuple[ClassName, ...] = ("convolution", "attention")


@dataclass(frozen=True)
class _Device:
    """A row of the table: FLOP/s by format, bytes per second, bytes, bytes per second."""

    fp32: float
    tf32: float
    bf16: float
    memory_bytes_per_s: float
    memory_bytes: int
    peer_bytes_per_s: float


_GIB = 2**30

DEVICES: dict[str, _Device] = {
    # One core with 8-wide FP32 fused multiply-add units at 3 GHz and its share of the memory.
    "cpu-core": _Device(96e9, 96e9, 96e9, 10e9, 4 * _GIB, 10e9),
    "a100": _Device(19.5e12, 156e12, 312e12, 2.039e12, 80 * _GIB, 300e9),
    "h100": _Device(67e12, 494.5e12, 989e12, 3.35e12, 80 * _GIB, 450e9),
    "h200": _Device(67e12, 494.5e12, 989e12, 4.8e12, 141 * 10**9, 450e9),
    "b200": _Device(75e12, 1100e12, 2250e12, 8.0e12, 180 * 10**9, 900e9),
    "gb10": _Device(31e12, 62.5e12, 125e12, 273e9, 128 * 10**9, 273e9),
    "rtx-4090": _Device(82.6e12, 82.6e12, 165.2e12, 1.008e12, 24 * _GIB, 32e9),
}
FORMATS: tuple[Format, ...] = ("fp32", "tf32", "bf16")


def names() -> tuple[str, ...]:
    """The names of accelerators, without formats; "cpu" is this machine's."""
    return (*DEVICES, "cpu")


def accelerator(name: str) -> Accelerator:
    """The device DEVICE or DEVICE:FORMAT; raises ValueError listing the known ones."""
    device, _, number_format = name.partition(":")
    if name == "cpu":
        return _this_cpu()
    if device == "cpu":
        raise ValueError(
            f"accelerator: {name!r}: the cpu is measured in fp32; leave :{number_format} out"
        )
    if device not in DEVICES:
        raise ValueError(f"accelerator: {device!r} is not known; use one of {', '.join(names())}")
    if number_format not in ("", *FORMATS):
        raise ValueError(
            f"accelerator: {number_format!r} in {name!r} is not one of {', '.join(FORMATS)}"
        )
    row = DEVICES[device]
    classes = FITTED
    if number_format in ("tf32", "bf16"):  # convolutions reach the tensor cores' peak
        dense, on_tensor_cores = FITTED["dense"], FITTED["convolution"]
        dense = OperatorClass(
            dense.forward._replace(efficiency=on_tensor_cores.forward.efficiency),
            dense.backward._replace(efficiency=on_tensor_cores.backward.efficiency),
        )
        classes = {**FITTED, "dense": dense}
    return Accelerator(
        dense_flops=getattr(row, number_format or "fp32"),
        tensor_flops=row.bf16 if number_format == "bf16" else row.tf32,
        memory_bytes_per_s=row.memory_bytes_per_s,
        memory_bytes=row.memory_bytes,
        peer_bytes_per_s=row.peer_bytes_per_s,
        classes=classes,
    )


@cache
def _this_cpu() -> Accelerator:
    """Operators reach the efficiency of the measured kernels."""
    from torch_topoopt.profile.cpu_roofline import cpu_roofline

    figures = cpu_roofline()
    most = max(figures.dense_flops, figures.convolution_flops)

    def reaching(flops: float) -> OperatorClass:
        one = Pass(flops / most, 1.0, 1.0, figures.launch_s)
        return OperatorClass(one, one)

    product = reaching(figures.dense_flops)
    classes: dict[ClassName, OperatorClass] = dict.fromkeys(FITTED, product)
    classes["convolution"] = reaching(figures.convolution_flops)
    return Accelerator(
        dense_flops=most,
        tensor_flops=most,
        memory_bytes_per_s=figures.memory_bytes_per_s,
        memory_bytes=figures.memory_bytes,
        peer_bytes_per_s=figures.memory_bytes_per_s / 2,
        classes=classes,
    )


_CLASS_OF_KIND: dict[str, ClassName] = {
    "multiheadattention": "attention",
    "scaled_dot_product_attention": "attention",
    "embedding": "lookup",
    "embeddingbag": "lookup",
    "embedding_bag": "lookup",
    "cat": "concatenation",
    "concat": "concatenation",
    "stack": "concatenation",
}


def class_of(operator: Operator) -> ClassName:
    """The class of an operator, by its kind and by whether it multiplies matrices."""
    kind = operator.kind.lower()
    if kind in _CLASS_OF_KIND:
        return _CLASS_OF_KIND[kind]
    if "attention" in kind and operator.forward_flops:
        return "attention"
    if kind.startswith("conv"):
        return "convolution"
    return "dense" if operator.forward_flops else "elementwise"


def reads_all_parameters(operator: Operator) -> bool:
    """Whether every shard of the batch reads all parameters, unlike a lookup in a table."""
    return class_of(operator) != "lookup" and operator.memory_bytes >= operator.parameter_bytes


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
    cost = device.classes[class_of(operator)]
    touches_all = reads_all_parameters(operator)
    fixed = operator.parameter_bytes if touches_all else 0
    moved = (operator.memory_bytes - fixed) / shards + fixed
    forward = pass_seconds(device, operator, cost.forward, operator.forward_flops / shards, moved)
    gradients = sum(operand.gradient_bytes for operand in operator.operands) / shards
    if operator.backward_flops == 0 and gradients == 0 and operator.parameter_gradient_bytes == 0:
        return forward, 0.0
    gradients += (
        operator.parameter_gradient_bytes if touches_all else operator.memory_bytes / shards
    )
    flops = operator.backward_flops / shards
    return forward, pass_seconds(device, operator, cost.backward, flops, moved + gradients)
