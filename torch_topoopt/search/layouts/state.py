"""The bytes of a model's state while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.search.optimizers import Optimizer

_WEIGHT, _FP32 = 2.0, 4.0  # bytes, in 16 and 32 bits


class StateBytes(NamedTuple):
    """Bytes for each byte of (16-bit) parameters.

    `gradient` is kept between micro-batches, `exchanged` is what data groups sum, `optimizer` the
    state of the optimizer with its copy of the parameters. `moved` is the memory traffic of its
    step, `summed` that of adding the gradients of a micro-batch.
    """

    gradient: float
    exchanged: float
    optimizer: float
    moved: float
    summed: float

    @classmethod
    def of(cls, optimizer: Optimizer) -> StateBytes:
        """The state of a model of 16-bit weights; gradients that are summed in another type stand
        beside those of the last micro-batch."""
        summed = optimizer.gradient_bytes
        beside = _WEIGHT if summed > _WEIGHT else 0.0
        return cls(
            (summed + beside) / _WEIGHT,
            summed / _WEIGHT,
            optimizer.state_bytes / _WEIGHT,
            optimizer.moved_bytes / _WEIGHT,
            optimizer.accumulated_bytes / _WEIGHT,
        )


ADAMW = StateBytes.of(OPTIMIZERS["adamw"])
ADAMW_FP32_GRADIENTS = StateBytes.of(OPTIMIZERS["adamw-fp32-gradients"])


def state_on(device: Accelerator, optimizer: Optimizer) -> StateBytes:
    """The state on `device`, whose format says whether parameters have 16 or 32 bits. Those of 32
    have no other copy."""
    if device.tensor_cores is not None:
        return StateBytes.of(optimizer)
    return state_of_factor(optimizer.moment_bytes / _FP32)


def state_of_factor(factor: float) -> StateBytes:
    """The state of an optimizer that keeps `factor` bytes for each byte of gradients."""
    return StateBytes(1.0, 1.0, factor, 3.0 + 2 * factor, 3.0)
