"""DLRM (Naumov et al., 2019): embedding tables beside a dense network, joined by concatenation.

List 1 gives the sizes. Two choices follow the simulations that the paper released: the dense input
is as wide as the dense layers, and every table sums a bag of 100 rows per sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from torch_topoopt.models.dense import dense_layers
from torch_topoopt.models.sizes import choose


@dataclass(frozen=True)
class DLRMSize:
    """`tables` of `rows` x `width`; `dense` layers below the interaction, `top` layers above it.

    `bag` is the number of rows that a sample looks up in each table, `batch_size` List 1's batch
    per accelerator.
    """

    dense: int
    dense_width: int
    top: int
    top_width: int
    tables: int
    rows: int
    width: int
    bag: int
    batch_size: int


SIZES = {
    "paper": DLRMSize(8, 2048, 16, 4096, 64, 10**7, 128, 100, 128),
    "paper-5.4": DLRMSize(8, 2048, 16, 4096, 128, 10**7, 128, 100, 128),
    "paper-5.6": DLRMSize(8, 1024, 16, 2048, 16, 10**7, 256, 100, 256),
    "paper-6": DLRMSize(4, 1024, 8, 2048, 12, 10**5, 32768, 100, 64),
    "tiny": DLRMSize(2, 8, 2, 16, 3, 50, 4, 5, 4),
}
DEFAULT_SIZE = "paper"


class DLRM(nn.Module):
    """Dense features [batch, dense_width] and bags [batch, tables, bag] to logits [batch, 1]."""

    def __init__(self, size: DLRMSize) -> None:
        super().__init__()
        self.bottom = nn.Sequential(*dense_layers(size.dense_width, size.dense_width, size.dense))
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(size.rows, size.width, mode="sum") for _ in range(size.tables)
        )
        joined = size.dense_width + size.tables * size.width
        self.top = nn.Sequential(
            *dense_layers(joined, size.top_width, size.top), nn.Linear(size.top_width, 1)
        )

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        looked_up = [table(bags[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *looked_up], dim=1))


def build(size: str = DEFAULT_SIZE) -> DLRM:
    """The network of one of SIZES; raises ValueError for another name."""
    return DLRM(choose(SIZES, size))


def example_batch(
    batch_size: int | None = None, *, size: str = DEFAULT_SIZE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense features [batch_size, dense_width] and row indices [batch_size, tables, bag], zeros."""
    chosen = choose(SIZES, size)
    batch = batch_size or chosen.batch_size
    bags = torch.zeros(batch, chosen.tables, chosen.bag, dtype=torch.long)
    return torch.zeros(batch, chosen.dense_width), bags
