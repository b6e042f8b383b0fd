"""Gradients of parameters: the mean over all ranks' losses, as with DistributedDataParallel.

An operator's parameters are on the ranks of its placement, which together hold all samples. So
their gradients are summed over that group alone, and divided by the number of all ranks. A bucket
is reduced together: parameters of one group, in the order of the backward pass. A group's buckets
start in that order on every rank, as soon as they are full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_topoopt.op_graph import GradientBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUCKETS = GradientBuckets(first_bytes=4 << 20, cap_bytes=4 << 20)


class LaterMeans:
    """DistributedDataParallel for a pipeline stage: the backward pass does not wait for the means.

    Buckets start during the pass, as usual; `finish` waits for them. Gradients are views of their
    buckets, so the sums need no copy. Gradients are sums over `micro_batches` and become means.
    """

    def __init__(self, group: Any, micro_batches: int) -> None:
        self._group = group
        self._divisor = group.size() * micro_batches
        self._works: list[Any] = []

    def wrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """`module` on one rank of the group; a collective call."""
        wrapped = DistributedDataParallel(
            module,
            process_group=self._group,
            bucket_cap_mb=BUCKETS.cap_bytes / 2**20,
            gradient_as_bucket_view=True,
        )
        # It refuses string annotations, such as those of a method here.
        wrapped.register_comm_hook(None, lambda state, bucket: self._start(bucket))
        return wrapped

    def finish(self) -> None:
        """Leaves the means in the gradients; raises the error of a failed sum."""
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def _start(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        summed = bucket.buffer().div_(self._divisor)
        self._works.append(dist.all_reduce(summed, group=self._group, async_op=True))
        started: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        started.set_result(summed)
        return started


@dataclass
class _Bucket:
    parameters: list[torch.nn.Parameter]
    full: set[int] = field(default_factory=set)  # parameters whose gradient is ready
    flat: torch.Tensor | None = None
    work: Any = None

    def start(self, group: Any) -> None:
        """Starts the sum over the group; a parameter without a gradient counts as zero."""
        parts = [
            torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1)
            for p in self.parameters
        ]
        self.flat = parts[0].clone() if len(parts) == 1 else torch.cat(parts)
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, members: int) -> None:
        """Waits, and copies the mean over the members into the gradients."""
        assert self.flat is not None
        self.work.wait()
        self.flat.div_(members)
        position = 0
        for parameter in self.parameters:
            part = self.flat[position : position + parameter.numel()].view_as(parameter)
            position += parameter.numel()
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)
        self.full.clear()
        self.flat = self.work = None


@dataclass
class _Group:
    members: int
    handle: Any
    buckets: list[_Bucket]
    started: int = 0

    def start_full(self, *, all_of_them: bool = False) -> None:
        """Starts buckets in order, as far as they are full."""
        while self.started < len(self.buckets):
            bucket = self.buckets[self.started]
            if len(bucket.full) < len(bucket.parameters) and not all_of_them:
                return
            bucket.start(self.handle)
            self.started += 1

    def finish(self) -> None:
        """Leaves the means in the gradients of all parameters."""
        self.start_full(all_of_them=True)
        for bucket in self.buckets:
            bucket.finish(self.members)
        self.started = 0


class GradientSums:
    """Sums gradients during the backward pass, and waits for the sums at its end."""

    def __init__(self, ranks: int, at_the_end: Callable[[], None]) -> None:
        self._ranks = ranks
        self._at_the_end = at_the_end
        self._groups: list[_Group] = []
        self._backward = False
        self.enabled = True  # False inside no_sync()

    def add(
        self, servers: Sequence[int], handle: Any, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        """Parameters on `servers`, in the order in which their gradients come.

        `handle` is the process group of these servers; None for a single one.
        """
        members = len(servers)
        if members < self._ranks:
            factor = members / self._ranks
            for parameter in parameters:
                parameter.register_hook(lambda gradient: gradient * factor)
        if members == 1:
            return
        group = _Group(members, handle, list(_buckets(parameters)))
        self._groups.append(group)
        for bucket in group.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(group, bucket))

    def _hook(self, group: _Group, bucket: _Bucket) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if not self.enabled:
                return
            self.backward_began()
            bucket.full.add(id(parameter))
            group.start_full()

        return ready

    def backward_began(self) -> None:
        """Call it within a backward pass: all sums are awaited at its end."""
        if not self._backward:
            self._backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._backward = False
        if self.enabled:
            for group in self._groups:
                group.finish()
        self._at_the_end()


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[_Bucket]:
    """By the rule of BUCKETS, and of one type each."""
    buckets: list[_Bucket] = []
    size = 0
    for parameter in parameters:
        last = buckets[-1].parameters if buckets else []
        full = size >= (BUCKETS.first_bytes if len(buckets) == 1 else BUCKETS.cap_bytes)
        if not last or full or last[0].dtype != parameter.dtype:
            buckets.append(_Bucket([]))
            size = 0
        buckets[-1].parameters.append(parameter)
        size += parameter.nbytes
    return buckets
