"""Context parallelism: each rank of a group has a part of the positions of every sample.

Rank r of c has the parts r and 2c - 1 - r of 2c, so that causal attention is the same work on every
rank. Attention gathers keys and values, in the backward pass again, and sums their gradients.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from torch_topoopt.parallel.sharded.blocks import path_of
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.plan.layout import Layout
from torch_topoopt.search.accelerators import class_of
from torch_topoopt.search.layouts.divisible import attention_length, why_not_divided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from torch_topoopt.op_graph import Operator, OpGraph

# Before torch 2.15, all_gather_tensor_autograd, which warns since.
_all_gather = getattr(functional, "all_gather_single_autograd", None) or (
    functional.all_gather_tensor_autograd
)
_HEADS = 4  # dimensions of a tensor with heads: samples, heads, positions, features


def context_parallel(
    module: nn.Module,
    op_graph: OpGraph,
    mesh: DeviceMesh,
    *,
    recomputed: Iterable[str] = (),
    last: bool = True,
) -> None:
    """Makes `module`, the model of `op_graph` or a stage of it, work on this rank's positions.

    It is called with whole samples, and the `last` stage returns whole results. The forward passes
    of the blocks at `recomputed` run again; elsewhere, attention gathers again by itself. Raises
    StrategyError for a model whose positions cannot be divided.
    """
    part = ContextPart.of(op_graph, mesh)
    modules = dict(module.named_modules())
    for leaf in modules.values():
        if not any(True for _ in leaf.children()):
            leaf.register_forward_pre_hook(part.own_indices, with_kwargs=True, prepend=True)
    lifted: set[str] = set()
    again = tuple(f"{path}." if path else "" for path in recomputed)
    for operator in op_graph.operators:
        path = path_of(operator)
        inner, around = modules.get(path), path.rpartition(".")[0]
        if class_of(operator) == "attention":
            if around in modules:
                inside = f"{around}.".startswith(again)
                _replace_attention(modules[around], part, recomputed=inside)
        elif inner is not None and _makes_positions(operator) and path not in lifted:
            lifted.add(path)
            inner.forward = functools.partial(part.in_place, inner.forward)
    _refuse_own_positions(module, part)
    if last:
        module.register_forward_hook(part.whole_results)


class ContextPart:
    """The positions of this rank among `length`."""

    def __init__(self, length: int, rank: int, group: Any) -> None:
        ranks = group.size()
        self.length, self.ranks, self.group = length, ranks, group
        self.half = length // (2 * ranks)
        whole = torch.arange(length)
        halves = whole.split(self.half)
        orders = [(halves[r], halves[2 * ranks - 1 - r]) for r in range(ranks)]
        self.positions = torch.cat(orders[rank])
        self.order = torch.cat([half for pair in orders for half in pair]).argsort()
        # Made here, for the modes of selective recomputation admit no new subclass of Tensor.
        untils = [(part + 1) * self.half for part in (rank, 2 * ranks - 1 - rank)]
        self._causal = [(until, causal_lower_right(self.half, until)) for until in untils]

    @classmethod
    def of(cls, op_graph: OpGraph, mesh: DeviceMesh) -> ContextPart:
        """The part of this rank of the group `mesh`."""
        operators, parts = op_graph.operators, mesh.size()
        why = why_not_divided(operators, [None] * len(operators), Layout(context=parts))
        if why:
            raise StrategyError(f"layout: {why}")
        return cls(attention_length(operators), mesh.get_local_rank(), mesh.get_group())

    def own_indices(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """Indices of all positions become those of this rank's, as do numbers of positions."""
        with torch._C.DisableTorchFunction():
            return tree_map_only(torch.Tensor, self._own, (args, kwargs))

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() or tensor.dtype == torch.bool or not tensor.dim():
            return tensor
        own = self.positions.to(tensor.device)
        if tensor.shape[-1] == self.length:
            return tensor.index_select(-1, own)
        counted = torch.arange(len(own), device=tensor.device)
        if tensor.shape[-1] == len(own) and bool((tensor == counted).all()):
            return own.to(tensor.dtype).expand_as(tensor)
        return tensor

    def in_place(self, forward: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor:
        """`forward`, which counts the positions of `tensor` itself, for those of this rank."""
        own = self.positions.to(tensor.device)
        at = -2 if tensor.shape[-2] == len(own) else 1
        shape = list(tensor.shape)
        shape[at] = self.length
        placed = tensor.new_zeros(shape).index_copy(at, own, tensor)
        with torch._C.DisableTorchFunction():
            made: torch.Tensor = forward(placed).index_select(at, own)
        return made

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        is_causal: bool,
        **options: Any,
    ) -> torch.Tensor:
        """Attention of this rank's queries to all keys and values."""
        joint = torch.cat((key, value), dim=-1)
        gathered = _all_gather(joint, joint.dim() - 2, self.group)
        whole = gathered.index_select(-2, self.order.to(gathered.device))
        keys, values = whole.split((key.shape[-1], value.shape[-1]), dim=-1)
        if not is_causal:
            return scaled_dot_product_attention(query, keys, values, **options)
        made = []
        for queries, (until, mask) in zip(
            query.split(self.half, dim=-2), self._causal, strict=True
        ):
            made.append(
                scaled_dot_product_attention(
                    queries,
                    keys[..., :until, :],
                    values[..., :until, :],
                    attn_mask=mask,
                    **options,
                )
            )
        return torch.cat(made, dim=-2)

    def whole_results(self, module: nn.Module, _: Any, results: Any) -> Any:
        """Results of all positions, from all ranks."""
        count = 0

        def gather(tensor: Any) -> Any:
            nonlocal count
            if tensor.dim() < 2 or tensor.shape[1] != len(self.positions):
                return tensor
            count += 1
            return _WholeResult.apply(tensor, self)

        whole = tree_map_only(torch.Tensor, gather, results)
        if not count:
            raise StrategyError(
                f"layout: context: {self.ranks}: {type(module).__name__} returns no tensor of all "
                f"{self.length} positions"
            )
        return whole


class _WholeResult(torch.autograd.Function):  # type: ignore[misc]
    """The gradients of a loss of whole results are the same on every rank; all of them are
    averaged, so each rank counts its own positions for every rank."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, part: ContextPart) -> torch.Tensor:
        context.part = part
        parts = [torch.empty_like(tensor) for _ in range(part.ranks)]
        dist.all_gather(parts, tensor.contiguous(), group=part.group)
        return torch.cat(parts, dim=1).index_select(1, part.order.to(tensor.device))

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        part = context.part
        own = gradient.index_select(1, part.positions.to(gradient.device))
        return own * part.ranks, None


class _ContextAttention(TorchFunctionMode):  # type: ignore[misc]
    """Attention to the keys and values of all ranks, for that to those of this one."""

    def __init__(self, part: ContextPart, kind: str, *, recomputed: bool) -> None:
        super().__init__()
        self._part, self._kind, self._recomputed = part, kind, recomputed

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if given.pop("attn_mask", None) is not None:
            raise StrategyError(f"layout: context: attention in {self._kind} has a mask of its own")
        given.setdefault("is_causal", False)
        if self._recomputed:
            return self._part.attention(**given)
        return checkpoint(self._part.attention, use_reentrant=False, **given)


class _OwnPositions(TorchFunctionMode):  # type: ignore[misc]
    """Refuses positions that a forward method counts itself, and combines with other tensors: they
    would be those of the first positions on every rank.

    `made` has tensors of such positions: ranges, and the beginning of a table.
    """

    def __init__(self, module: nn.Module, part: ContextPart) -> None:
        super().__init__()
        self._kind, self._part = type(module).__name__, part
        self._buffers = {id(buffer) for buffer in module.buffers()}
        self._made: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [id(tensor) in self._made for tensor in given]
        if any(made) and not all(made):
            raise StrategyError(
                f"layout: context: {self._part.ranks}: a forward method of {self._kind} counts the "
                "positions itself; let a module without parameters do that, or pass their numbers "
                "to one"
            )
        result = function(*args, **kwargs)
        # Stages find shapes by whole modules on the meta device.
        if (
            isinstance(result, torch.Tensor)
            and not result.is_meta
            and ((given and all(made)) or self._counts(function, args, result))
        ):
            self._made[id(result)] = result
        return result

    def _counts(self, function: Any, args: Any, result: torch.Tensor) -> bool:
        own = len(self._part.positions)
        if function is torch.arange:
            return bool(result.numel() == own)
        if function is not torch.Tensor.__getitem__:
            return False
        table, at = args[0], args[1] if isinstance(args[1], tuple) else args[1:2]
        ends = [part.stop for part in at if isinstance(part, slice) and part.start in (None, 0)]
        is_table = isinstance(table, nn.Parameter) or id(table) in self._buffers
        return bool(is_table and own in ends)


def _refuse_own_positions(module: nn.Module, part: ContextPart) -> None:
    """The first call of `module` raises StrategyError as _OwnPositions; later calls are alike."""
    forward = module.forward

    @functools.wraps(forward)
    def first(*args: Any, **kwargs: Any) -> Any:
        module.forward = forward
        with _OwnPositions(module, part):
            return forward(*args, **kwargs)

    module.forward = first


def _replace_attention(around: nn.Module, part: ContextPart, *, recomputed: bool) -> None:
    if getattr(around.forward, "context_part", None) is part:
        return
    forward, kind = around.forward, type(around).__name__

    @functools.wraps(forward)
    def with_context(*args: Any, **kwargs: Any) -> Any:
        with _ContextAttention(part, kind, recomputed=recomputed):
            return forward(*args, **kwargs)

    with_context.context_part = part  # type: ignore[attr-defined]
    around.forward = with_context


def _makes_positions(operator: Operator) -> bool:
    """Whether a module may count the positions of the heads that it reads, as rotary ones do."""
    return not operator.parameter_bytes and operator.output_dimensions == _HEADS
