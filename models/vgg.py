"""VGG16 and VGG19 (Simonyan and Zisserman, ICLR 2015, configurations D and E), and smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from torch_topoopt.models.sizes import choose, with_alias


@dataclass(frozen=True)
class VGGSize:
    """Blocks of 3x3 convolutions by their channels, then dense layers. A pool ends each block.

    Images are `channels` x `pixels` x `pixels`. `batch_size` is List 1's batch per accelerator.
    Pools of `pool` x `pool` have a stride of 2.
    """

    blocks: tuple[tuple[int, ...], ...]
    dense: tuple[int, ...]
    classes: int
    channels: int
    pixels: int
    dropout: float
    batch_size: int
    padding: int = 1
    pool: int = 2

    @property
    def side(self) -> int:
        """Side length, in pixels, of the first dense layer's input."""
        side = self.pixels
        for block in self.blocks:
            side += len(block) * 2 * (self.padding - 1)
            side = (side - self.pool) // 2 + 1
        return side


_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_VGG19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)

# "vgg19" is the model trained to an accuracy on the testbed of section 6 (Figure 20). "released" is
# VGG16 of the simulations that the paper released: 289 million parameters instead of 138.
SIZES = with_alias(
    {
        "paper-5.3": VGGSize(_VGG16, (4096, 4096), 1000, 3, 224, 0.5, 64),
        "paper-5.6": VGGSize(_VGG16, (4096, 4096), 1000, 3, 224, 0.5, 64),
        "paper-6": VGGSize(_VGG16, (4096, 4096), 1000, 3, 224, 0.5, 32),
        "released": VGGSize(_VGG16, (4096, 4096), 1000, 3, 224, 0.5, 64, padding=2, pool=3),
        "vgg19": VGGSize(_VGG19, (4096, 4096), 1000, 3, 224, 0.5, 32),
        "digits": VGGSize(((32, 32), (64, 64)), (1024, 512), 10, 1, 8, 0.5, 120),
        "tiny": VGGSize(((4, 4), (8, 8)), (16,), 10, 3, 16, 0.5, 4),
    }
)
DEFAULT_SIZE = "paper"


class VGG(nn.Module):
    """Images [batch, channels, pixels, pixels] to logits [batch, classes]."""

    def __init__(self, size: VGGSize) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = size.channels
        for block in size.blocks:
            for width in block:
                layers += [nn.Conv2d(channels, width, 3, padding=size.padding), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(size.pool, 2))
        self.features = nn.Sequential(*layers)
        dense: list[nn.Module] = []
        for inputs, outputs in pairwise((channels * size.side**2, *size.dense)):
            dense += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(size.dropout)]
        self.classifier = nn.Sequential(*dense, nn.Linear(size.dense[-1], size.classes))
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def _initialise(module: nn.Module) -> None:
    """Variance-preserving weights: without batch norm, a deep VGG does not train otherwise."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


def build(size: str = DEFAULT_SIZE) -> VGG:
    """The network of one of SIZES; raises ValueError for another name."""
    return VGG(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Images of zeros, [batch_size, channels, pixels, pixels]; only shapes matter to a profile."""
    chosen = choose(SIZES, size)
    batch = batch_size or chosen.batch_size
    return torch.zeros(batch, chosen.channels, chosen.pixels, chosen.pixels)
