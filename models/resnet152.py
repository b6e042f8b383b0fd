"""ResNet-152 (He et al., CVPR 2016, table 1): 50 of the blocks of ResNet50.

The HammingMesh paper trains it with data parallelism, in 10 groups of gradients (section V-B2);
benchmarks/figures/papers/training_workloads.py has its compute time and volumes.
"""

from __future__ import annotations

import torch

from torch_topoopt.models.resnet50 import ResNet, ResNetSize
from torch_topoopt.models.sizes import choose

# 32 samples for each of 1 024 accelerators: the minibatch of 32 768 (HammingMesh, V-B2).
SIZES = {
    "paper": ResNetSize((3, 8, 36, 3), 64, 1000, 224, 32),
    "tiny": ResNetSize((1, 3), 4, 10, 32, 4),
}
DEFAULT_SIZE = "paper"


def build(size: str = DEFAULT_SIZE) -> ResNet:
    """The network of one of SIZES; raises ValueError for another name."""
    return ResNet(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Images of zeros, [batch_size, 3, pixels, pixels]; only shapes matter to a profile."""
    chosen = choose(SIZES, size)
    return torch.zeros(batch_size or chosen.batch_size, 3, chosen.pixels, chosen.pixels)
