"""Optimizers by name: the memory of their state, and what a step moves through it.

Bytes are per parameter of a model with bf16 weights, of fused kernels, which read and write
everything once. State may be shared out (ZeRO, FSDP); every server then updates its own part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.accelerators import BANDWIDTH

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators import Accelerator

_WEIGHT = 2.0  # bf16


class Optimizer(NamedTuple):
    """Bytes per trainable parameter.

    `gradient_bytes` is the size of a gradient from the backward pass to the step. `master_bytes`
    is a copy of the weight, which is updated in its place; `moment_bytes` the rest of the state.
    """

    gradient_bytes: float
    master_bytes: float
    moment_bytes: float

    @property
    def state_bytes(self) -> float:
        return self.master_bytes + self.moment_bytes

    @property
    def moved_bytes(self) -> float:
        """Of a step: reads gradients, reads and writes the state, writes the weight.

        Without a master copy it reads the weight, too.
        """
        weight = _WEIGHT if self.master_bytes else 2 * _WEIGHT
        return self.gradient_bytes + 2 * self.state_bytes + weight

    @property
    def accumulated_bytes(self) -> float:
        """Of adding the gradient of a micro-batch, in bf16, to the sum."""
        return _WEIGHT + 2 * self.gradient_bytes


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": Optimizer(2, 4, 8),
    "adamw-fp32-gradients": Optimizer(4, 4, 8),  # Megatron, nanotron
    "adamw-bf16": Optimizer(2, 0, 4),  # torch.optim.AdamW of a bf16 model
    "adam8bit": Optimizer(2, 0, 2.03),  # one byte a moment, and a scale for each 256
    "lion": Optimizer(2, 0, 2),
    "adafactor": Optimizer(2, 0, 0),  # means of rows and columns: too few to count
    "sgd": Optimizer(2, 0, 0),
    "sgd-momentum": Optimizer(2, 0, 2),
}


def optimizer(name: str) -> Optimizer:
    """The optimizer of that name; raises ValueError listing the known ones."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer: {name!r} is not known; use one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def optimizer_seconds(device: Accelerator, moved_bytes: float) -> float:
    """Seconds of a step, or of accumulating gradients, that moves so many bytes."""
    return moved_bytes / (device.memory_bytes_per_s * BANDWIDTH)
