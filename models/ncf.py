"""Neural collaborative filtering (He et al., WWW 2017, NeuMF): matrix factorisation and an MLP.

Users and items have several indices each, one per embedding table (List 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from torch_topoopt.models.sizes import choose, with_alias


@dataclass(frozen=True)
class NCFSize:
    """`tables` of `rows` rows for users and as many for items, for each of the two halves.

    `batch_size` is List 1's batch per accelerator.
    """

    dense: int
    dense_width: int
    tables: int
    rows: int
    mf_width: int
    mlp_width: int
    batch_size: int


SIZES = with_alias(
    {
        "paper-5.3": NCFSize(8, 4096, 32, 10**6, 64, 128, 128),
        "tiny": NCFSize(2, 16, 2, 20, 4, 8, 4),
    }
)
DEFAULT_SIZE = "paper"


class Tables(nn.Module):
    """Indices [batch, tables] to their embeddings side by side, [batch, tables * width]."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.cat([table(indices[:, i]) for i, table in enumerate(self.tables)], dim=1)


class NCF(nn.Module):
    """Indices of users and items, [batch, tables] each, to logits [batch, 1]."""

    def __init__(self, size: NCFSize) -> None:
        super().__init__()
        self.mf_users = Tables(size.tables, size.rows, size.mf_width)
        self.mf_items = Tables(size.tables, size.rows, size.mf_width)
        self.mlp_users = Tables(size.tables, size.rows, size.mlp_width)
        self.mlp_items = Tables(size.tables, size.rows, size.mlp_width)
        layers: list[nn.Module] = []
        inputs = 2 * size.tables * size.mlp_width
        for _ in range(size.dense):
            layers += [nn.Linear(inputs, size.dense_width), nn.ReLU()]
            inputs = size.dense_width
        self.mlp = nn.Sequential(*layers)
        self.prediction = nn.Linear(size.tables * size.mf_width + size.dense_width, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        factors = self.mf_users(users) * self.mf_items(items)
        hidden = self.mlp(torch.cat([self.mlp_users(users), self.mlp_items(items)], dim=1))
        return self.prediction(torch.cat([factors, hidden], dim=1))


def build(size: str = DEFAULT_SIZE) -> NCF:
    """The network of one of SIZES; raises ValueError for another name."""
    return NCF(choose(SIZES, size))


def example_batch(
    batch_size: int | None = None, *, size: str = DEFAULT_SIZE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero indices of users and of items, [batch_size, tables] each."""
    chosen = choose(SIZES, size)
    shape = (batch_size or chosen.batch_size, chosen.tables)
    return torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
