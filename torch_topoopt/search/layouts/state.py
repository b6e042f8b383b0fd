"""The bytes of a model's state while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.optimizers import OPTIMIZERS, Optimizer, optimizer

if TYPE_CHECKING:
    from torch_topoopt.plan.layout import Trainer
    from torch_topoopt.search.accelerators import Accelerator

_WEIGHT, _FP32 = 2.0, 4.0  # bytes, in 16 and 32 bits


class StateBytes(NamedTuple):
    """Bytes for each byte of (16-bit) parameters.

    `gradient` is kept between micro-batches, `exchanged` is what data groups sum, `optimizer` the
    state of the optimizer with its copy of the parameters. `moved` is the memory traffic of its
    step, `summed` that of adding the gradients of a micro-batch. `stored` are the parameters of
    which a host copies shares.
    """

    gradient: float
    exchanged: float
    optimizer: float
    moved: float
    summed: float
    stored: float = 1.0

    @classmethod
    def of(cls, trained_by: Optimizer) -> StateBytes:
        """The state of a model of 16-bit weights; gradients that are summed in another type stand
        beside those of the last micro-batch."""
        summed = trained_by.gradient_bytes
        beside = _WEIGHT if summed > _WEIGHT else 0.0
        return cls(
            (summed + beside) / _WEIGHT,
            summed / _WEIGHT,
            trained_by.state_bytes / _WEIGHT,
            trained_by.moved_bytes / _WEIGHT,
            trained_by.accumulated_bytes / _WEIGHT,
        )


ADAMW = StateBytes.of(OPTIMIZERS["adamw"])
ADAMW_FP32_GRADIENTS = StateBytes.of(OPTIMIZERS["adamw-fp32-gradients"])


def state_on(device: Accelerator, trained_by: Optimizer) -> StateBytes:
    """The state on `device`, whose format says whether parameters have 16 or 32 bits. Those of 32
    have no other copy."""
    if device.tensor_cores is not None:
        return StateBytes.of(trained_by)
    return state_of_factor(trained_by.moment_bytes / _FP32)


def trained_state(trainer: Trainer, device: Accelerator) -> StateBytes:
    """The state of a layout that `trainer` trains on `device`; raises ValueError for an unknown
    optimizer.

    In another precision than theirs, parameters have 32 bits, as the sums of their gradients.
    """
    if trainer.precision != "own":
        moments = _FP32 * trainer.optimizer_factor or optimizer(trainer.optimizer).moment_bytes
        state = StateBytes.of(Optimizer(_FP32, _FP32, moments))
        return state._replace(stored=_FP32 / _WEIGHT)
    if trainer.optimizer_factor:
        return state_of_factor(trainer.optimizer_factor)
    return state_on(device, optimizer(trainer.optimizer))


def state_of_factor(factor: float) -> StateBytes:
    """The state of an optimizer that keeps `factor` bytes for each byte of gradients."""
    return StateBytes(1.0, 1.0, factor, 3.0 + 2 * factor, 3.0)
