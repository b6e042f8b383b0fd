"""CANDLE Uno: the response of a tumour to two drugs, from their features and doses.

Each of five feature vectors has its own tower of dense layers. The towers' outputs and the two
doses are joined and go through more dense layers. Input widths are those of the Uno benchmark;
List 1 gives the layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from torch_topoopt.models.dense import dense_layers
from torch_topoopt.models.sizes import choose, with_alias

FEATURES = {
    "cell_rnaseq": 942,
    "drug1_descriptors": 5270,
    "drug1_fingerprints": 2048,
    "drug2_descriptors": 5270,
    "drug2_fingerprints": 2048,
}
DOSES = ("dose1", "dose2")


@dataclass(frozen=True)
class CANDLESize:
    """`tower` layers for each feature vector and `dense` layers above; widths in units.

    `inputs` divides the width of every feature vector; 1 is the benchmark's. `batch_size` is List
    1's batch per accelerator.
    """

    dense: int
    dense_width: int
    tower: int
    tower_width: int
    inputs: int
    batch_size: int

    def features(self) -> dict[str, int]:
        return {name: width // self.inputs for name, width in FEATURES.items()}


SIZES = with_alias(
    {
        "paper-5.3": CANDLESize(8, 16384, 16, 16384, 1, 256),
        "paper-5.6": CANDLESize(8, 4096, 16, 4096, 1, 256),
        "paper-6": CANDLESize(4, 4096, 8, 4096, 1, 10),
        "tiny": CANDLESize(2, 16, 2, 8, 100, 4),
    }
)
DEFAULT_SIZE = "paper"


class CANDLE(nn.Module):
    """Keyword arguments by feature ([batch, width]) and dose ([batch, 1]) to growth [batch, 1]."""

    def __init__(self, size: CANDLESize) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(
            {
                name: nn.Sequential(*dense_layers(width, size.tower_width, size.tower))
                for name, width in size.features().items()
            }
        )
        joined = len(self.towers) * size.tower_width + len(DOSES)
        self.dense = nn.Sequential(
            *dense_layers(joined, size.dense_width, size.dense), nn.Linear(size.dense_width, 1)
        )

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        encoded = [tower(inputs[name]) for name, tower in self.towers.items()]
        return self.dense(torch.cat([*encoded, *(inputs[dose] for dose in DOSES)], dim=1))


def build(size: str = DEFAULT_SIZE) -> CANDLE:
    """The network of one of SIZES; raises ValueError for another name."""
    return CANDLE(choose(SIZES, size))


def example_batch(
    batch_size: int | None = None, *, size: str = DEFAULT_SIZE
) -> dict[str, torch.Tensor]:
    """Zeros for each keyword argument, [batch_size, width]."""
    chosen = choose(SIZES, size)
    batch = batch_size or chosen.batch_size
    widths = {**chosen.features(), **dict.fromkeys(DOSES, 1)}
    return {name: torch.zeros(batch, width) for name, width in widths.items()}
