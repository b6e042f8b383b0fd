"""DLRM (Naumov et al., 2019): embedding tables and a dense network.

List 1 gives the sizes. Its simulations join the two by concatenation; "dot" also gives the products
of all pairs of embeddings to the layers above, as DLRM does by default. As in the simulations that
the paper released, the dense input is as wide as the dense layers, and every table sums a bag of
100 rows per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from torch_topoopt.models.dense import dense_layers
from torch_topoopt.models.sizes import choose, with_alias


@dataclass(frozen=True)
class DLRMSize:
    """`tables` of `rows` x `width`; `dense` layers below the interaction, `top` layers above it.

    `bag` is the number of rows that a sample looks up in each table, `batch_size` List 1's batch
    per accelerator. With the interaction "dot", the bottom layers end in one of `width` outputs,
    which takes part in it like a table.
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
    interaction: Literal["cat", "dot"] = "cat"


SIZES = with_alias(
    {
        "paper-5.3": DLRMSize(8, 2048, 16, 4096, 64, 10**7, 128, 100, 128),
        "paper-5.4": DLRMSize(8, 2048, 16, 4096, 128, 10**7, 128, 100, 128),
        "paper-5.6": DLRMSize(8, 1024, 16, 2048, 16, 10**7, 256, 100, 256),
        "paper-6": DLRMSize(4, 1024, 8, 2048, 12, 10**5, 32768, 100, 64),
        "tiny": DLRMSize(2, 8, 2, 16, 3, 50, 4, 5, 4),
    }
)
SIZES["paper-5.3-dot"] = replace(SIZES["paper-5.3"], interaction="dot")
SIZES["tiny-dot"] = replace(SIZES["tiny"], interaction="dot")
DEFAULT_SIZE = "paper"


class PairProducts(nn.Module):
    """[batch, count, width] to the products of all pairs, [batch, count (count - 1) / 2]."""

    def __init__(self, count: int) -> None:
        super().__init__()
        pairs = torch.tril_indices(count, count, offset=-1)
        self.register_buffer("pairs", pairs[0] * count + pairs[1], persistent=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, self.pairs)


class DLRM(nn.Module):
    """Dense features [batch, dense_width] and bags [batch, tables, bag] to logits [batch, 1]."""

    def __init__(self, size: DLRMSize) -> None:
        super().__init__()
        bottom = dense_layers(size.dense_width, size.dense_width, size.dense)
        self.pairs = None
        below = size.dense_width
        joined = size.dense_width + size.tables * size.width
        if size.interaction == "dot":
            below = size.width
            bottom[-2] = nn.Linear(size.dense_width, below)
            self.pairs = PairProducts(size.tables + 1)
            joined = below + size.tables * (size.tables + 1) // 2
        self.bottom = nn.Sequential(*bottom)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(size.rows, size.width, mode="sum") for _ in range(size.tables)
        )
        self.top = nn.Sequential(
            *dense_layers(joined, size.top_width, size.top), nn.Linear(size.top_width, 1)
        )

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        looked_up = [table(bags[:, i]) for i, table in enumerate(self.tables)]
        below = self.bottom(dense)
        if self.pairs is None:
            return self.top(torch.cat([below, *looked_up], dim=1))
        products = self.pairs(torch.stack([below, *looked_up], dim=1))
        return self.top(torch.cat([below, products], dim=1))


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
