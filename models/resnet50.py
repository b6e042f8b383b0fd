"""ResNet50 (He et al., CVPR 2016, table 1) with the stride in the 3x3 convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import relu

from torch_topoopt.models.sizes import choose, with_alias

EXPANSION = 4  # a bottleneck's output is this many times as wide as its 3x3 convolution


@dataclass(frozen=True)
class ResNetSize:
    """`blocks` bottlenecks in each stage; the first is `width` wide, each next one twice that.

    Images are 3 x `pixels` x `pixels`. `batch_size` is List 1's batch per accelerator.
    """

    blocks: tuple[int, ...]
    width: int
    classes: int
    pixels: int
    batch_size: int


SIZES = with_alias(
    {
        "paper-5.3": ResNetSize((3, 4, 6, 3), 64, 1000, 224, 128),
        "paper-6": ResNetSize((3, 4, 6, 3), 64, 1000, 224, 20),
        "tiny": ResNetSize((1, 2), 4, 10, 32, 4),
    }
)
DEFAULT_SIZE = "paper"


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut, which is projected where shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images [batch, 3, pixels, pixels] to logits [batch, classes]."""

    def __init__(self, size: ResNetSize) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, size.width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(size.width),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        stages = []
        inputs = size.width
        for i, count in enumerate(size.blocks):
            width = size.width * 2**i
            blocks = []
            for j in range(count):
                blocks.append(Bottleneck(inputs, width, stride=2 if i > 0 and j == 0 else 1))
                inputs = width * EXPANSION
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, size.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.stages(self.stem(images))).flatten(1))


def build(size: str = DEFAULT_SIZE) -> ResNet:
    """The network of one of SIZES; raises ValueError for another name."""
    return ResNet(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Images of zeros, [batch_size, 3, pixels, pixels]; only shapes matter to a profile."""
    chosen = choose(SIZES, size)
    return torch.zeros(batch_size or chosen.batch_size, 3, chosen.pixels, chosen.pixels)
