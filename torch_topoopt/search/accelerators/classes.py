"""The classes of operators, and the fractions of an A100's peaks that each reaches in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

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
    if kind.startswith("conv") and operator.kind != "Conv1D":  # transformers' linear layer
        return "convolution"
    return "dense" if operator.forward_flops else "elementwise"


def reads_all_parameters(operator: Operator) -> bool:
    """Whether every shard of the batch reads all parameters, unlike a lookup in a table."""
    return class_of(operator) != "lookup" and operator.memory_bytes >= operator.parameter_bytes
