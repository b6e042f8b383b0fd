"""Operators with a split: the dimensions, and the part of the parameters that a rank keeps.

Linear layers and embedding tables are split by columns (features of the result) and by rows (the
summed dimension). Elementwise operators have no parameters, but can continue on a part of the
features. So a linear layer by columns, an activation by columns and a linear layer by rows need no
transfer between them (Shoeybi et al., "Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from torch_topoopt.profile.tracing import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Placement
    from torch_topoopt.profile.tracing import Call


@dataclass(frozen=True)
class Cut:
    """`size` rows or columns are cut into equal parts; `whole`: every part of the operator reads
    all features of its operands, not only the corresponding ones."""

    size: int
    whole: bool


def cuts_of(call: Call) -> dict[str, Cut]:
    """The splits of the operator of `call`, by the name of the dimension in a Placement."""
    operator = call.operator
    if operator is None or len(call.outputs) != 1 or len(call.outputs[0].shape) < 2:
        return {}
    module: Any = operator.module if call.leaf else None
    kind = type(module)
    if kind in (nn.Linear, nn.Embedding, nn.EmbeddingBag):
        if {name for name, _ in module.named_parameters()} - {"weight", "bias"}:
            return {}  # the weight is computed from others
        if kind is nn.Linear:
            return {
                "columns": Cut(module.out_features, whole=True),
                "rows": Cut(module.in_features, whole=False),
            }
        return _table_cuts(module, call)
    if is_elementwise(operator):
        shape = call.outputs[0].shape
        if all(tensor.shape == shape for tensor in call.inputs):
            return {"columns": Cut(shape[-1], whole=False)}
    return {}


def _table_cuts(table: Any, call: Call) -> dict[str, Cut]:
    if not is_divisible(table):
        return {}
    cuts = {"columns": Cut(table.embedding_dim, whole=True)}
    is_bag = isinstance(table, nn.EmbeddingBag)
    if not is_bag or (table.mode != "max" and _bags_are_rows(call)):
        cuts["rows"] = Cut(table.num_embeddings, whole=True)
    return cuts


def is_divisible(table: Any) -> bool:
    """Whether the gradient of a row depends on that row alone, and is dense."""
    return not (table.sparse or table.scale_grad_by_freq or table.max_norm is not None)


def _bags_are_rows(call: Call) -> bool:
    """Whether the indices are [bags, indices of a bag], without offsets."""
    indices, *others = call.inputs
    return len(indices.shape) == 2 and all(tensor.dtype.is_floating_point for tensor in others)


def keep_part(leaf: nn.Module, placement: Placement, rank: int) -> None:
    """Reduces the parameters of `leaf` to the part of `rank`."""
    kind, parts = placement.parameter_kind, placement.parameter
    if kind is None or rank not in placement.servers:
        return
    part = placement.servers.index(rank) % parts
    parameters = leaf._parameters
    for name, parameter in list(parameters.items()):
        if parameter is None:
            continue
        if name == "bias" and kind == "rows":
            if part:  # else the sum would contain it several times
                parameters[name] = None
            continue
        piece = parameter.detach().chunk(parts, dimension_of(leaf, kind))[part].clone()
        parameters[name] = nn.Parameter(piece, requires_grad=parameter.requires_grad)
    if kind == "rows" and not isinstance(leaf, nn.Linear) and "weight" in parameters:
        weight: Any = parameters["weight"]
        leaf.forward = functools.partial(rows_of(leaf), leaf, part * weight.shape[0])


def rows_of(table: nn.Module) -> Callable[..., torch.Tensor]:
    """The forward method of `table`, (table, first row, indices, ...), for the rows that its weight
    has: a part of the sum."""
    return _bags if isinstance(table, nn.EmbeddingBag) else _vectors


def dimension_of(leaf: nn.Module, kind: str) -> int:
    """The split dimension of `leaf`'s weight; the same of a bias, if that is split at all."""
    return int((kind == "rows") == isinstance(leaf, nn.Linear))


def _inside(leaf: Any, first: int, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices relative to this part's first row, 0 for those of other parts; and a mask of
    this part's."""
    local = indices - first
    inside = (local >= 0) & (local < leaf.weight.shape[0])
    return local.where(inside, 0), inside


def _vectors(leaf: Any, first: int, indices: torch.Tensor) -> torch.Tensor:
    """The result of Embedding.forward for the rows of this rank."""
    local, inside = _inside(leaf, first, indices)
    padding = leaf.padding_idx
    if padding is not None:
        padding = padding - first if 0 <= padding - first < leaf.weight.shape[0] else None
    made = functional.embedding(local, leaf.weight, padding)
    return made * inside.unsqueeze(-1).to(made.dtype)


def _bags(
    leaf: Any,
    first: int,
    input: torch.Tensor,
    offsets: None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result of EmbeddingBag.forward for the rows of this rank."""
    local, inside = _inside(leaf, first, input)
    counted = torch.ones_like(inside) if leaf.padding_idx is None else input != leaf.padding_idx
    weights = (inside & counted).to(leaf.weight.dtype)
    if per_sample_weights is not None:
        weights = weights * per_sample_weights
    made = functional.embedding_bag(local, leaf.weight, mode="sum", per_sample_weights=weights)
    if leaf.mode == "mean":
        made = made / counted.sum(1, keepdim=True).clamp(min=1).to(made.dtype)
    return made
