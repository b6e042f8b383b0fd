"""Recomputation: blocks whose forward pass runs again in the backward pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from torch_topoopt.profile.tracing.records import multiplies_stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan.layout import Recompute

_ATEN = torch.ops.aten
# Matrix products and attention, whose outputs `selective` keeps: as CellCost.selective_bytes.
_KEPT = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.convolution.default,
        torch.ops._c10d_functional.all_to_all_single.default,  # tokens of experts
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
    }
)

# Marks of the profiler, whose number differs where a pass runs again.
_MARKS = frozenset(
    {
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
)

_FUNCTIONAL = torch.ops._c10d_functional
# What `selective` keeps of a tensor group, whose exchanges it does not repeat.
_KEPT_OF_GROUP = frozenset(
    {_FUNCTIONAL.all_gather_into_tensor.default, _FUNCTIONAL.reduce_scatter_tensor.default}
)


def drop_caches(module: torch.nn.Module, kind: Recompute) -> None:
    """Switches off the keys and values that transformers keep for generation: a pass that runs
    again would add to them. Call it before `module` is recorded."""
    for part in module.modules() if kind != "none" else ():
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False


def recompute(block: torch.nn.Module, kind: Recompute, tensor_ranks: Sequence[int]) -> None:
    """Makes `block` keep its input alone ("full"), or also what `_KEPT` computes and what the group
    of `tensor_ranks` exchanges ("selective").

    The forward method is wrapped, and no module, so names stay; hooks of the block run once.
    """
    if kind == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        SAC_IGNORED_OPS.update(_MARKS)
        policy = functools.partial(_policy, list(tensor_ranks))
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    forward = block.forward

    @functools.wraps(forward)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **options, **kwargs)

    block.forward = again


def _policy(
    ranks: list[int], context: Any, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    kept = (
        operation in _KEPT
        or multiplies_stacks(operation)
        # DTensor caches meshes: the group may be that of an earlier model with the same ranks.
        or (operation in _KEPT_OF_GROUP and _ranks_of(args[-1]) == ranks)
    )
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _ranks_of(group_name: str) -> list[int]:
    ranks: list[int] = dist.get_process_group_ranks(_resolve_process_group(group_name))
    return ranks
