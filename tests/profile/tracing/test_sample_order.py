"""Operators in which a sample's result depends on other samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from torch_topoopt.profile.profiling import trace_calls

if TYPE_CHECKING:
    from collections.abc import Callable


class Applied(nn.Module):
    """A linear layer, then a function of its result [samples, 6] and of indices [samples]."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.function = function

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.function(self.first(x), rows)


ALONG = {
    "cumsum": lambda x, _: x.cumsum(0),
    "softmax": lambda x, _: x.softmax(0),
    "sort": lambda x, _: x.sort(0).values,
    "sort of one dimension": lambda x, _: x[:, 0].sort().values,
    "topk": lambda x, _: x.topk(4, dim=0).values,
    "flip": lambda x, _: x.flip(0),
    "roll": lambda x, _: x.roll(1, 0),
    "roll of all": lambda x, _: x.roll(1),
    "index": lambda x, rows: x[rows],
    "index_select": lambda x, rows: x.index_select(0, rows),
    "scatter": lambda x, rows: torch.zeros_like(x).scatter_add(0, rows[:, None].expand(-1, 6), x),
    "index_copy": lambda x, rows: torch.zeros_like(x).index_copy_(0, rows, x),
    "index_put": lambda x, rows: torch.zeros_like(x).index_put((rows,), x),
    "cat": lambda x, _: torch.cat([x, x]),
    "repeat": lambda x, _: x.repeat(2, 1),
    "batch norm": lambda x, _: nn.functional.batch_norm(x, None, None, training=True),
}
INSIDE = {
    "cumsum": lambda x, _: x.cumsum(1),
    "softmax": lambda x, _: x.softmax(-1),
    "topk": lambda x, _: x.topk(2).values,
    "roll": lambda x, _: x.roll(1, -1),
    "index of features": lambda x, _: x[:, torch.tensor([1, 0], device="meta")],
    "row of a table": lambda x, rows: x + torch.zeros(9, 6)[rows],
    "cat": lambda x, _: torch.cat([x, x], 1),
    "repeat": lambda x, _: x.repeat(1, 2),
    "layer norm": lambda x, _: nn.functional.layer_norm(x, (6,)),
    "batch norm of given statistics": lambda x, _: nn.functional.batch_norm(
        x, torch.zeros(6), torch.ones(6)
    ),
}


def mixing(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> set[str]:
    batch = torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)
    return trace_calls(Applied(function), batch).once.mixing


@pytest.mark.parametrize("name", ALONG)
def test_operations_along_the_samples_mix_them(name: str) -> None:
    assert len(mixing(ALONG[name])) == 1


@pytest.mark.parametrize("name", INSIDE)
def test_operations_inside_a_sample_do_not(name: str) -> None:
    assert mixing(INSIDE[name]) == set()
