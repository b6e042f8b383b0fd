"""The bytes of a model's state while it is trained."""

from __future__ import annotations

from typing import NamedTuple


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
