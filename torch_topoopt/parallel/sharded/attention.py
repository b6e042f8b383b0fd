"""nn.MultiheadAttention with some of its heads on each rank."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.functional import linear, scaled_dot_product_attention

from torch_topoopt.parallel.sharded.local_parts import gathered, plain
from torch_topoopt.parallel.sharded.sections import (
    Sections,
    added_once,
    divide,
    local_layer,
    summed,
    whole_input,
)
from torch_topoopt.parallel.stages import StrategyError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

# of nn.MultiheadAttention.forward, in their order
_ARGUMENTS = (
    *("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask"),
    *("average_attn_weights", "is_causal"),
)


def sections_of_attention(module: nn.MultiheadAttention) -> dict[str, Sections]:
    """Those of its parameters that hold queries, keys and values, by name."""
    sizes = (module.embed_dim,) * 3
    return {
        name: Sections(0, sizes)
        for name in ("in_proj_weight", "in_proj_bias")
        if module._parameters.get(name) is not None
    }


class AttentionHeads(ParallelStyle):  # type: ignore[misc]
    """Some of the heads of `path`, an nn.MultiheadAttention, for whole queries, keys and values.

    The sum over the heads is divided as `result` says.
    """

    def __init__(self, path: str, result: Placement) -> None:
        super().__init__()
        self.path, self.result = path, result

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        sections = sections_of_attention(module)
        for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", *sections):
            if module._parameters.get(name) is not None:
                divide(module, device_mesh, 0, name, sections.get(name))
        out = module.out_proj
        divide(out, device_mesh, 1, "weight", None)
        if out.bias is not None:
            bias = distribute_tensor(out.bias.data, device_mesh, [Replicate()], src_data_rank=None)
            out._parameters["bias"] = nn.Parameter(bias, out.bias.requires_grad)
        module.forward = partial(_forward, self, module, sections, device_mesh)
        # The layers of nn.Transformer have a kernel that reads whole parameters, but not of these.
        module._qkv_same_embed_dim = False
        return module


def _forward(
    style: AttentionHeads,
    module: Any,
    sections: dict[str, Sections],
    mesh: DeviceMesh,
    *read: Any,
    **options: Any,
) -> tuple[Any, None]:
    """As nn.MultiheadAttention.forward, with its arguments."""
    given = dict(zip(_ARGUMENTS, read, strict=False)) | options
    if given.get("need_weights", True):
        raise StrategyError(
            f"layout: tensor: {style.path!r} cannot be divided by heads: it is called with "
            "need_weights=True, and each rank has the weights of its own heads"
        )
    operands = {id(given[name]): given[name] for name in _ARGUMENTS[:3]}
    whole = {number: whole_input(tensor, mesh) for number, tensor in operands.items()}
    padding, mask = plain(gathered((given.get("key_padding_mask"), given.get("attn_mask"))))
    causal = given.get("is_causal", False) and padding is None
    with local_layer(module, mesh, sections):
        heads = _projected(module, [whole[id(given[name])] for name in _ARGUMENTS[:3]])
        query, key, value = heads
        made = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if causal else _mask(padding, mask, query, mesh),
            dropout_p=module.dropout if module.training else 0.0,
            is_causal=causal,
        )
        out = module.out_proj
        part = linear(made.transpose(1, 2).flatten(-2), out.weight, added_once(out.bias, mesh))
    return summed(part, mesh, style.result), None


def _projected(module: Any, read: list[torch.Tensor]) -> list[torch.Tensor]:
    """Queries, keys and values of the heads that `module` has parameters of."""
    weights = [module._parameters.get(f"{name}_proj_weight") for name in "qkv"]
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [
        linear(tensor, weight, bias).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
        for tensor, weight, bias in zip(read, weights, biases, strict=True)
    ]


def _mask(
    padding: torch.Tensor | None,
    mask: torch.Tensor | None,
    queries: torch.Tensor,
    mesh: DeviceMesh,
) -> torch.Tensor | None:
    """Both masks of nn.MultiheadAttention as one tensor, which is added to the scores of
    `queries`."""
    added = []
    if padding is not None:
        added.append(_numbers(padding, queries.dtype)[:, None, None])
    if mask is not None and mask.dim() == 3:  # [samples * heads, queries, keys]
        by_head = _numbers(mask, queries.dtype).unflatten(0, (len(queries), -1))
        added.append(by_head.chunk(mesh.size(), 1)[mesh.get_local_rank()])
    elif mask is not None:
        added.append(_numbers(mask, queries.dtype))
    return sum(added[1:], added[0]) if added else None


def _numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Zeros, and minus infinity where a mask of truth values hides a key."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
