"""Answers from the table equal the results that PyTorch would have returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torch_topoopt.profile import profiling
from torch_topoopt.profile.tracing import ShapeCache

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device.type
    return [form(item) for item in value] if isinstance(value, list | tuple) else value


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "product": (aten.mm.default, (meta(3, 4), meta(4, 5))),
    "transposed": (aten.mm.default, (meta(4, 3).t(), meta(4, 5))),
    "several results": (aten.native_layer_norm.default, (meta(2, 6), [6], None, None, 1e-5)),
    "integers": (aten.add.Tensor, (meta(3, dtype=torch.long), meta(3, 1))),
    "list of tensors": (aten.cat.default, ([meta(2, 3), meta(2, 5)], 1)),
    "statistics": (
        aten.native_batch_norm.default,
        (meta(4, 3, 2, 2), meta(3), meta(3), meta(3), meta(3), True, 0.1, 1e-5),
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_second_call_is_answered_alike(case: str) -> None:
    func, args = CALLS[case]
    shapes = ShapeCache()
    first, second = shapes.call(func, args, {}), shapes.call(func, args, {})
    assert (shapes.misses, shapes.hits) == (1, 1)
    assert form(first) == form(second) == form(func(*args))
    made = [
        t for result in (first, second) for t in ([result] if torch.is_tensor(result) else result)
    ]
    assert len({t.untyped_storage()._cdata for t in made}) == len(made)


def test_a_scalar_of_another_type_is_another_call() -> None:
    shapes = ShapeCache()
    whole = shapes.call(aten.add.Scalar, (meta(2, dtype=torch.long), 1), {})
    real = shapes.call(aten.add.Scalar, (meta(2, dtype=torch.long), 1.0), {})
    assert (whole.dtype, real.dtype) == (torch.long, torch.float32)


def test_views_share_memory_and_in_place_results_are_their_input() -> None:
    shapes = ShapeCache()
    for _ in range(2):
        x = meta(4, 6)
        assert shapes.call(aten.relu_.default, (x,), {}) is x
        for view in (
            shapes.call(aten.view.default, (x, [6, 4]), {}),
            shapes.call(aten._unsafe_view.default, (x, [24]), {}),
        ):
            assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        turned = shapes.call(aten.t_.default, (meta(2, 3),), {})
        assert turned.shape == (3, 2)
    assert shapes.hits == 1


@pytest.mark.parametrize(
    "layer", [lambda: nn.Linear(8, 8), lambda: nn.TransformerEncoderLayer(8, 2)]
)
def test_ten_equal_layers_need_no_more_shape_arithmetic_than_two(
    layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ShapeCache] = []

    class Watched(ShapeCache):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(profiling, "ShapeCache", Watched)

    def known(count: int) -> int:
        network = lambda: nn.Sequential(*(layer() for _ in range(count)))  # noqa: E731
        graph = profiling.profile(network, torch.zeros(4, 5, 8), name="x")
        assert len(graph.operators) % count == 0
        assert made[-1].hits > 0
        return len(made[-1]._results)

    assert known(10) == known(2)
