"""The stack of dense layers used by the recommendation and drug-response models."""

from __future__ import annotations

from torch import nn


def dense_layers(inputs: int, width: int, count: int) -> list[nn.Module]:
    """`count` linear layers of `width` outputs, each with a ReLU; the first takes `inputs`."""
    layers: list[nn.Module] = []
    for i in range(count):
        layers += [nn.Linear(inputs if i == 0 else width, width), nn.ReLU()]
    return layers
