"""Operations along the first dimension, where a sample's result depends on the other samples.

Their results grow with the batch as those of others do. But the parts that several servers compute
of their own samples do not add up to the result of all samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_ALONG = frozenset(
    {
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "topk", "flip", "roll"),
        *("_softmax", "_log_softmax", "gather", "cat"),
        *("index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
        *("scatter", "scatter_add", "scatter_reduce"),
    }
)
# dimensions without an argument for them; none: all, as if they were one
_DEFAULTS: dict[str, Any] = {"sort": -1, "topk": -1, "cat": 0, "roll": []}


def mixes_samples(func: Any, args: Any, kwargs: Any, is_computed: Callable[[Any], bool]) -> bool:
    """Whether an ATen operation works along the first dimension of a tensor that `is_computed`."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    if "batch_norm" in name:
        return bool(given.get("training") or given.get("train"))
    if name not in _ALONG and name not in ("index", "index_put", "repeat"):
        return False
    values = (given.get(key) for key in ("self", "src", "source", "values"))
    changed = [t for t in (*values, *given.get("tensors", ())) if isinstance(t, torch.Tensor)]
    if not any(is_computed(tensor) for tensor in changed):
        return False
    if name.startswith("index") and "indices" in given:
        return bool(given["indices"][0] is not None)
    rank = max(1, *(tensor.dim() for tensor in changed))
    if name == "repeat":
        return len(given["repeats"]) == rank and bool(given["repeats"][0] > 1)
    dims = given.get("dims", given.get("dim", _DEFAULTS.get(name)))
    dims = dims if isinstance(dims, list | tuple) else [dims]
    return not dims or any(dimension % rank == 0 for dimension in dims)
