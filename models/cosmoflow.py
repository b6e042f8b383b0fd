"""CosmoFlow (Mathuriya et al., SC 2018): cosmological parameters of a universe from its density.

Convolutions of 3 x 3 x 3, each followed by pooling that halves a side, then dense layers: the sizes
of MLPerf HPC's CosmoFlow, whose 8.9 M parameters the HammingMesh paper trains (section V-B3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from torch_topoopt.models.sizes import choose


@dataclass(frozen=True)
class CosmoFlowSize:
    """A sample has `channels` of `side`^3 voxels; convolution i has `filters * 2**i` outputs.

    `dense` are the widths after the convolutions, the last of them the number of predicted
    parameters. `batch_size` is that of one accelerator.
    """

    side: int
    channels: int
    filters: int
    convolutions: int
    dense: tuple[int, ...]
    batch_size: int


# 8 samples for each of 1 024 accelerators: the minibatch of 8 192 (HammingMesh, V-B3).
SIZES = {
    "paper": CosmoFlowSize(128, 4, 32, 5, (128, 64, 4), 8),
    "tiny": CosmoFlowSize(8, 2, 4, 2, (8, 3), 4),
}
DEFAULT_SIZE = "paper"


class CosmoFlow(nn.Module):
    """Volumes [batch, channels, side, side, side] to parameters [batch, dense[-1]]."""

    def __init__(self, size: CosmoFlowSize) -> None:
        super().__init__()
        widths = [size.channels, *(size.filters * 2**i for i in range(size.convolutions))]
        self.convolutions = nn.ModuleList(
            nn.Conv3d(inputs, outputs, kernel_size=3, padding=1)
            for inputs, outputs in pairwise(widths)
        )
        self.pool = nn.MaxPool3d(2)
        features = widths[-1] * (size.side >> size.convolutions) ** 3
        self.dense = nn.ModuleList(
            nn.Linear(inputs, outputs)
            for inputs, outputs in zip((features, *size.dense), size.dense, strict=False)
        )

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        x = volumes
        for convolution in self.convolutions:
            x = self.pool(leaky_relu(convolution(x)))
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = leaky_relu(layer(x))
        return self.dense[-1](x)


def build(size: str = DEFAULT_SIZE) -> CosmoFlow:
    """The network of one of SIZES; raises ValueError for another name."""
    return CosmoFlow(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Volumes of zeros, [batch_size, channels, side, side, side]; only shapes matter."""
    chosen = choose(SIZES, size)
    return torch.zeros(batch_size or chosen.batch_size, chosen.channels, *[chosen.side] * 3)
