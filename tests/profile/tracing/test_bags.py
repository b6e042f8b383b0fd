"""Batches of indices and offsets: how many samples they are for, and bags of another size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torch_topoopt.profile.profiling import own_batch_size, profile, trace_batches
from torch_topoopt.profile.tracing import Trace

SAMPLES, EACH = 12, 10


class Recommender(nn.Module):
    """Dense features beside two tables."""

    def __init__(self, ended: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(100, 16, mode="sum", include_last_offset=ended) for _ in range(2)
        )
        self.dense = nn.Linear(5, 16)
        self.out = nn.Linear(48, 1)

    def forward(self, indices: Any, offsets: Any, dense: torch.Tensor) -> torch.Tensor:
        found = [table(indices[i], offsets[i]) for i, table in enumerate(self.tables)]
        return self.out(torch.cat([self.dense(dense), *found], 1))


def batch_of(ended: bool, together: bool) -> tuple[Any, Any, torch.Tensor]:
    """Indices and offsets of each table, or (`together`) of both in a tensor."""
    indices = [torch.zeros(SAMPLES * EACH, dtype=torch.long) for _ in range(2)]
    offsets = [torch.arange(SAMPLES + ended) * EACH for _ in range(2)]
    dense = torch.zeros(SAMPLES, 5)
    return (
        (torch.stack(indices), torch.stack(offsets), dense)
        if together
        else (indices, offsets, dense)
    )


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_the_batch_is_that_of_the_offsets_and_tables_can_be_split(
    ended: bool, together: bool
) -> None:
    model, batch = Recommender(ended), batch_of(ended, together)
    made = profile(model, batch, name="bags")
    assert made.batch_size == own_batch_size(model, batch) == SAMPLES
    for operator in made.operators:
        assert operator.splittable
        if operator.kind == "EmbeddingBag":
            assert {split.dimension for split in operator.splits} == {"columns", "rows"}
            assert operator.output_bytes == SAMPLES * 16 * 4


def test_other_sizes_have_indices_in_proportion() -> None:
    traces = trace_batches(Recommender(), batch_of(False, False), [3, 24], Trace)
    for trace, size in zip(traces, (3, 24), strict=True):
        table = next(o for o in trace.operators if o.kind == "EmbeddingBag")
        assert table.shapes[0] == (size, 16)
        rows_bytes = max(read.touched_bytes for read in table.reads.values() if read.touched_bytes)
        assert rows_bytes == size * EACH * 16 * 4


def test_weights_of_samples_are_as_many_as_indices() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(100, 16, mode="sum")

        def forward(
            self, indices: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            return self.table(indices, offsets, per_sample_weights=weights)

    indices, offsets = torch.zeros(SAMPLES * EACH, dtype=torch.long), torch.arange(SAMPLES) * EACH
    made = profile(Weighted(), (indices, offsets, torch.ones(SAMPLES * EACH)), name="weighted")
    assert made.batch_size == SAMPLES
    assert all(operator.splittable for operator in made.operators)
