"""The bytes of a model's state while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.search.optimizers import Optimizer


class StateBytes(NamedTuple):
    """Bytes for each byte of (16-bit) parameters.

    `gradient` is kept between micro-batches, `exchanged` is what data groups sum, `optimizer` the
    state of the optimizer with its copy of the parameters, `moved` the memory traffic of its step.
    """

    gradient: float = 1.0
    exchanged: float = 1.0
    optimizer: float = 6.0
    moved: float = 15.0


ADAMW = StateBytes()  # gradients in 16 bits; parameters and both moments in 32
# Gradients of micro-batches are summed in 32 bits, beside those of the last one.
ADAMW_SUMMED_IN_FP32 = StateBytes(gradient=3.0, exchanged=2.0, moved=16.0)


_BF16 = 2.0  # bytes of a parameter


def state_of(optimizer: Optimizer, parameter_bytes: float = _BF16) -> StateBytes:
    """The state of a model trained by `optimizer`, whose parameters have `parameter_bytes` each.

    Parameters of 32 bits need no other copy; their gradients have 32 bits.
    """
    if parameter_bytes > _BF16:
        moments = optimizer.moment_bytes / parameter_bytes
        return StateBytes(1.0, 1.0, moments, 3.0 + 2 * moments)
    gradient = optimizer.gradient_bytes / _BF16
    # Gradients of micro-batches are summed beside those of the last one.
    kept = gradient + 1.0 if gradient > 1.0 else 1.0
    return StateBytes(kept, gradient, optimizer.state_bytes / _BF16, optimizer.moved_bytes / _BF16)


def state_on(device: Accelerator, optimizer: Optimizer) -> StateBytes:
    """The state on `device`, whose format says whether parameters have 16 or 32 bits."""
    return state_of(optimizer, 4.0 if device.tensor_cores is None else 2.0)


def state_of_factor(factor: float) -> StateBytes:
    """The state of an optimizer that keeps `factor` bytes for each byte of gradients."""
    return StateBytes(1.0, 1.0, factor, 3.0 + 2 * factor)
