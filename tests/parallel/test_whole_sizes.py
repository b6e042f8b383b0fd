"""Views by numbers of whole layers, of tensors that have a part of the features."""

from __future__ import annotations

import pytest
import torch
from support.refusals import refused
from torch import nn

from torch_topoopt.parallel import StrategyError
from torch_topoopt.parallel.sharded.whole_sizes import LayerNumbers, WholeSizes

# queries of 8 heads, keys and values of 2, each head with 4 features, on 2 ranks
NUMBERS = LayerNumbers(
    2,
    frozenset({32, 8, 48}),
    frozenset({(32, 8, 8)}),
    (frozenset({8, 2}), frozenset({4, 1})),
)
EQUAL = LayerNumbers(2, frozenset({32, 96}), frozenset({(32, 32, 32)}), (frozenset(), frozenset()))


@pytest.mark.parametrize(
    ("numbers", "shape", "wanted", "found"),
    [
        (NUMBERS, (3, 5, 16), (3, 5, 4, 8), (3, 5, 4, 4)),  # heads are those of the part
        (NUMBERS, (3, 5, 16), (3, 5, 8, 4), (3, 5, 4, 4)),  # and of the whole
        (NUMBERS, (3, 5, 4), (3, 5, 1, 8), (3, 5, 1, 4)),
        (NUMBERS, (3, 5, 4), (-1, 5, 2, 4), (-1, 5, 1, 4)),
        (NUMBERS, (3, 5, 4, 4), (3, 5, 32), (3, 5, 16)),
        (NUMBERS, (3, 5, 4, 4), (3, -1, 32), (3, -1, 16)),
        (NUMBERS, (3, 5, 4, 4), (15, 32), (15, 16)),
        (NUMBERS, (3, 5, 16), (3, 5, 4, 4), (3, 5, 4, 4)),  # of the part already
        (NUMBERS, (3, 5, 16), (3, 5, -1, 4), (3, 5, -1, 4)),
        (NUMBERS, (3, 5, 32), (3, 5, 8, 4), (3, 5, 8, 4)),  # a whole tensor
        (NUMBERS, (3, 5, 16), (5, 3, 4, 4), (5, 3, 4, 4)),
        (NUMBERS, (3, 5, 10), (3, 5, 2, 10), (3, 5, 2, 10)),  # 20 features are of no layer
        (EQUAL, (3, 5, 48), (3, 5, 3, 8, 4), (3, 5, 3, 4, 4)),
        (EQUAL, (3, 5, 48), (3, 5, 3, 32), (3, 5, 3, 16)),
        (EQUAL, (3, 5, 48), (3, 5, 8, 12), (3, 5, 4, 12)),
    ],
)
def test_a_view_counts_the_features_of_the_part_or_of_the_whole(
    numbers: LayerNumbers, shape: tuple[int, ...], wanted: tuple[int, ...], found: tuple[int, ...]
) -> None:
    assert numbers.of_view(shape, wanted) == found


def test_a_view_whose_heads_have_no_parts_is_refused() -> None:
    odd = EQUAL._replace(sizes=frozenset({24}))
    with refused(StrategyError, "tensor: 2", "24 features", "3 x 8"):
        odd.of_view((5, 12), (5, 3, 8))
    both = NUMBERS._replace(heads=(frozenset({8, 4}), frozenset({4, 2})))
    with refused(StrategyError, "tensor: 2", "32 features", "4 x 8"):
        both.of_view((3, 16), (3, 4, 8))


@pytest.mark.parametrize(
    ("numbers", "size", "wanted", "found"),
    [
        (EQUAL, 48, 32, 16),
        (EQUAL, 48, 16, 16),
        (EQUAL, 48, (32, 32, 32), (16, 16, 16)),
        (EQUAL, 96, 32, 32),
        (NUMBERS, 24, (32, 8, 8), (16, 4, 4)),
        (NUMBERS, 24, (16, 4, 4), (16, 4, 4)),
        (NUMBERS, 24, 8, 8),
    ],
)
def test_sections_have_sizes_of_the_part_or_of_the_whole(
    numbers: LayerNumbers,
    size: int,
    wanted: int | tuple[int, ...],
    found: int | tuple[int, ...],
) -> None:
    assert numbers.of_split(size, wanted) == found


class Viewing(nn.Module):
    """All kinds of calls."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        samples, length, _ = x.shape
        views = [
            x.view(samples, length, 8, 12),
            x.view((samples, length, 8, 12)),
            x.view(size=(samples, length, 8, 6)),
            x.reshape(samples, length, 3, 8, 4),
            torch.reshape(x, (samples * length, 96)),
            x.view(torch.int32),
        ]
        splits = (x.split(32, dim=2), x.split([32] * 3, -1), torch.split(x, 32, dim=-1))
        other = x.split(1)  # of the samples
        return [*views, *(part for parts in splits for part in parts), *other]


def test_forward_methods_call_views_and_splits_in_any_way() -> None:
    module = Viewing()
    WholeSizes.around(module, EQUAL)
    shapes = [tuple(made.shape) for made in module(torch.zeros(2, 5, 48))]
    views = [(2, 5, 4, 12), (2, 5, 4, 12), (2, 5, 8, 6), (2, 5, 3, 4, 4), (10, 48), (2, 5, 48)]
    assert shapes == [*views, *[(2, 5, 16)] * 9, *[(1, 5, 48)] * 2]
