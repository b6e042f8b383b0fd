"""Expert parallelism: each rank of a group has some of the experts, and tokens travel to them.

Two kinds of modules are divided, told apart by the tensors that they are called with: [experts,
places, features], or [tokens, features] with the experts of each token and their weights.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import Shard, distribute_tensor

from torch_topoopt.parallel.sharded.local_parts import local_parameters
from torch_topoopt.parallel.stages import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh

_STACK = 3  # dimensions of the matrices of all experts
_ROUTED = 3  # arguments: tokens, experts of each token, weights


def expert_paths(module: nn.Module) -> list[str]:
    """The modules that hold the matrices of all experts, stacked."""
    return [path for path, inner in module.named_modules() if _experts_in(inner)]


def _experts_in(module: nn.Module) -> int:
    """The number of experts whose parameters `module` itself holds; 0 if it holds none."""
    if type(module).__module__.startswith("torch."):
        return 0
    shapes = [parameter.shape for parameter in module.parameters(recurse=False)]
    counts = {shape[0] for shape in shapes if len(shape)}
    stacked = any(len(shape) == _STACK for shape in shapes)
    if not stacked or len(counts) > 1 or counts == {1}:  # 1: a table of positions for all samples
        return 0
    return int(counts.pop())


def expert_parallel(module: nn.Module, mesh: DeviceMesh, scale: float) -> None:
    """Leaves this rank's experts in `module`, of the group `mesh`.

    `scale` multiplies the gradients of experts, which have the tokens of all the group. Raises
    StrategyError for experts that cannot be divided.
    """
    for path in expert_paths(module):
        _divide(path, module.get_submodule(path), mesh, scale)


def _divide(path: str, experts: nn.Module, mesh: DeviceMesh, scale: float) -> None:
    count, ranks = _experts_in(experts), mesh.size()
    if count % ranks:
        raise StrategyError(
            f"layout: expert: {ranks} does not divide the {count} experts of {path!r}"
        )
    arguments = len(inspect.signature(experts.forward).parameters)
    if arguments not in (1, _ROUTED):
        raise StrategyError(
            f"layout: expert: {path!r} cannot be divided: it is called with {arguments} "
            "arguments, and neither with places alone nor with tokens, their experts and weights"
        )
    for name, parameter in experts.named_parameters(recurse=False):
        part = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=None)
        experts._parameters[name] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    for name, value in vars(experts).items():
        if "experts" in name and value == count:
            setattr(experts, name, count // ranks)
    forward, group = experts.forward, mesh.get_group()
    exchange = _of_places if arguments == 1 else _of_tokens

    def local_forward(*tensors: torch.Tensor) -> Any:
        with local_parameters(experts, mesh, scale=scale):
            return exchange(forward, group, count // ranks, *tensors)

    experts.forward = local_forward


def _of_places(
    forward: Callable[..., Any], group: Any, count: int, places: torch.Tensor
) -> torch.Tensor:
    """The places of `count` experts of all ranks, [count, ranks * places, features]."""
    ranks = group.size()
    received = _exchanged(places, group).unflatten(0, (ranks, count))
    worked = forward(received.transpose(0, 1).flatten(1, 2))
    back = worked.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 1)
    return _exchanged(back, group)


def _of_tokens(
    forward: Callable[..., Any],
    group: Any,
    count: int,
    tokens: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Each token goes to each of its experts, where it has this one alone."""
    ranks, top = group.size(), chosen.shape[-1]
    order = chosen.flatten().argsort(stable=True)
    sent = chosen.flatten().bincount(minlength=ranks * count)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    to = sent.view(ranks, count).sum(1).tolist()
    of = received.view(ranks, count).sum(1).tolist()
    rows = _exchanged(tokens[order // top], group, of, to)
    experts = torch.arange(count, device=tokens.device).repeat(ranks).repeat_interleave(received)
    if not len(rows):  # products of no rows are not supported everywhere
        rows, experts = rows.new_zeros(1, rows.shape[-1]) + rows.sum(), experts.new_zeros(1)
    ones = weights.new_ones(len(rows), 1)
    worked = forward(rows, experts[:, None].to(chosen.dtype), ones)[: sum(of)]
    back = _exchanged(worked, group, to, of)
    mine = torch.empty_like(order)
    mine[order] = torch.arange(len(order), device=order.device)
    by_choice = back[mine].unflatten(0, (-1, top)) * weights[..., None]
    return by_choice.sum(1).to(tokens.dtype)


def _exchanged(
    tensor: torch.Tensor, group: Any, of: list[int] | None = None, to: list[int] | None = None
) -> torch.Tensor:
    """All-to-all of rows: `to` each rank, `of` each rank; None: equally many."""
    if of is None or to is None:
        of = to = [len(tensor) // group.size()] * group.size()
    exchanged: torch.Tensor = all_to_all_single_autograd(tensor.contiguous(), of, to, group)
    return exchanged
