"""The cost of operators in bf16, fp8 and fp4: matrix products by shape, fused attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.accelerators.attention import (
    BACKWARD_PER_FORWARD,
    AttentionKernel,
    at_length,
)
from torch_topoopt.search.accelerators.classes import class_of
from torch_topoopt.search.accelerators.products import (
    ProductShape,
    inner_bytes,
    is_aligned,
    shape_of,
    utilisation,
)

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

# of the data sheet's memory bandwidth, by kernels that stream: 0.8 to 0.9 on all of these devices
BANDWIDTH = 0.85
LAUNCH_S = 5e-6  # between two kernels of one stream, with a queue that is never empty
# An output layer has many more columns than its input. Transformer Engine and torchao keep it in
# bf16; a fused gate and up projection has up to 7 times as many.
_OUTPUT_LAYER = 8
# Of `sustained`, by bits: from the measured steps of NVIDIA's Megatron-Bridge and DGX Station pages
# that take little communication. Scaling, and more power per product.
_NARROW = {8: 0.87, 4: 0.55}
# Of the rate, where the columns are no multiple of 8: nanoGPT's steps became 25 % faster with 50304
# columns of its output layer in place of 50257.
_UNALIGNED = 0.5


class TensorCores(NamedTuple):
    """How a device multiplies matrices.

    `product_flops` is the peak of layers with parameters in the chosen format, of `bits`;
    `bf16_flops` that of all other products. `sustained` and `processors` are the device's.
    """

    product_flops: float
    bf16_flops: float
    bits: int
    sustained: float
    processors: int
    attention: AttentionKernel


class Work(NamedTuple):
    """The FLOPs and bytes of both passes of a part of the batch."""

    forward_flops: float
    backward_flops: float
    forward_bytes: float
    backward_bytes: float


def tensor_core_seconds(
    cores: TensorCores, memory_bytes_per_s: float, operator: Operator, work: Work, shards: float
) -> tuple[float, float]:
    """(forward, backward) seconds of an operator that multiplies matrices; no time for no work."""
    inner = 0.0
    if class_of(operator) == "attention":
        compute, moved = _attention_seconds(cores, operator, work), work[2:]
    else:
        inner = inner_bytes(operator) / shards
        shape = shape_of(operator, shards)
        narrow = _is_narrow(cores, operator, shape)
        compute = _product_seconds(cores, operator, work, shape, narrow)
        moved = _with_casts(cores, operator, work, shards) if narrow else work[2:]
    passes = []
    rate = memory_bytes_per_s * BANDWIDTH
    for compute_s, size_bytes, more in zip(compute, moved, (inner, 2 * inner), strict=True):
        busy_s = max(compute_s, size_bytes / rate)
        passes.append(busy_s + more / rate + LAUNCH_S if busy_s else 0.0)
    return passes[0], passes[1]


def on_tensor_cores(operator: Operator) -> bool:
    """Whether the operator multiplies matrices; transformers' Conv1D is a linear layer."""
    return operator.forward_flops > 0 and (
        class_of(operator) in ("dense", "attention") or operator.kind == "Conv1D"
    )


def _is_narrow(cores: TensorCores, operator: Operator, shape: ProductShape) -> bool:
    """Whether the operator's products are in a format below 16 bits."""
    return (
        cores.bits < 16
        and operator.parameter_bytes > 0
        and shape.columns < _OUTPUT_LAYER * shape.inner
    )


def _product_seconds(
    cores: TensorCores, operator: Operator, work: Work, shape: ProductShape, narrow: bool
) -> tuple[float, float]:
    rate = cores.bf16_flops * cores.sustained
    speed = 1.0
    if narrow:
        rate = cores.product_flops * cores.sustained * _NARROW[cores.bits]
        speed = cores.product_flops / cores.bf16_flops

    if not is_aligned(shape):
        rate *= _UNALIGNED

    def seconds(flops: float, shape: ProductShape) -> float:
        return flops / (rate * utilisation(shape, cores.processors, speed))

    forward_s = seconds(work.forward_flops, shape)
    gradients = []
    if any(operand.gradient_bytes for operand in operator.operands):
        gradients.append(shape.of_operand_gradient)
    if operator.parameter_gradient_bytes or len(gradients) == 0:
        gradients.append(shape.of_parameter_gradient)
    again = max(0.0, work.backward_flops - 2 * work.forward_flops)  # recomputation
    rest = work.backward_flops - again
    backward_s = sum(seconds(rest / len(gradients), gradient) for gradient in gradients)
    return forward_s, backward_s + seconds(again, shape)


def _with_casts(
    cores: TensorCores, operator: Operator, work: Work, shards: float
) -> tuple[float, float]:
    """Bytes of both passes: each factor is read once more, and written by rows and by columns."""
    output = operator.output_bytes / shards
    factors = work.forward_bytes - output
    cast = 1 + 2 * cores.bits / 16
    return work.forward_bytes + cast * factors, work.backward_bytes + cast * output


def _attention_seconds(cores: TensorCores, operator: Operator, work: Work) -> tuple[float, float]:
    causal = "causal" in operator.kind.lower()
    products = cores.bf16_flops * cores.sustained
    projections, element = _projection_flops(operator)
    part = 1 - projections / operator.forward_flops  # of the FLOPs that are attention's
    sequence = part * operator.forward_flops * element / (4 * max(operator.output_bytes, 1))
    share = part * (0.5 if causal else 1.0)
    forward = share * work.forward_flops
    again = share * max(0.0, work.backward_flops - 2 * work.forward_flops)  # a profile counts 2
    backward = BACKWARD_PER_FORWARD * forward if work.backward_flops else 0.0
    rates = [at_length(one, sequence, causal=causal) * products for one in cores.attention]
    return (
        forward / rates[0] + (1 - part) * work.forward_flops / products,
        backward / rates[1] + again / rates[0] + (1 - part) * work.backward_flops / products,
    )


def _projection_flops(operator: Operator) -> tuple[float, int]:
    """FLOPs of the four square projections of a module that has them, and bytes of an element.

    Read as 2 bytes each, elements of 4 would make more FLOPs than the operator has.
    """
    flops = 0.0
    for element in (2, 4):
        hidden = (operator.parameter_bytes / (4 * element)) ** 0.5
        flops = 8 * operator.output_bytes * hidden / element
        if flops < operator.forward_flops:
            return flops, element
    return 0.0, 2
