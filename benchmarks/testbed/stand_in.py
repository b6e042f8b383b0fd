"""A model that waits as long as a workload computes, and sums and exchanges its bytes for real.

Every stage has one parameter, in a bucket of DistributedDataParallel of its own, so that its
AllReduce begins when its backward pass has ended. Tables are exchanged by two all-to-alls, in a
process group of their own. Values are such that a wrong sum or a wrong piece is found.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from testbed.workload import Stage, Workload

_RATE = 2.0**-10  # of the optimizer: sums stay exact
_ITEM_BYTES = 4


class _Wait(torch.autograd.Function):
    """A stage; its gradient is 1 + the rank, everywhere."""

    @staticmethod
    def forward(ctx: Any, below: torch.Tensor, weight: torch.Tensor, stage: Stage) -> torch.Tensor:
        time.sleep(stage.forward_s)
        ctx.stage, ctx.size = stage, weight.numel()
        return below.clone()

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(ctx.stage.backward_s)
        return above, torch.full((ctx.size,), 1.0 + dist.get_rank()), None


class _Exchange(torch.autograd.Function):
    """Rows of this rank's table to every rank, their rows here; gradients the other way."""

    @staticmethod
    def forward(ctx: Any, below: torch.Tensor, tables: _Tables) -> torch.Tensor:
        time.sleep(tables.seconds[0])
        ctx.tables = tables
        tables.exchange()
        return below.clone()

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.tables.exchange()
        time.sleep(ctx.tables.seconds[1])
        return above, None


class _Tables:
    def __init__(self, workload: Workload) -> None:
        self.seconds = workload.table_s
        self.part = workload.exchanged_bytes // _ITEM_BYTES
        self.group = dist.new_group()
        self.wrong = 0

    def exchange(self) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sent = (torch.arange(ranks, dtype=torch.float32) + ranks * rank).repeat_interleave(
            self.part
        )
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        expected = (ranks * torch.arange(ranks, dtype=torch.float32) + rank).repeat_interleave(
            self.part
        )
        self.wrong += int(not torch.equal(received, expected))


class _Stages(nn.Module):
    def __init__(self, stages: tuple[Stage, ...]) -> None:
        super().__init__()
        self.stages = stages
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(stage.gradient_bytes // _ITEM_BYTES)) for stage in stages
        )

    def forward(self, below: torch.Tensor) -> torch.Tensor:
        for stage, weight in zip(self.stages, self.weights, strict=True):
            below = _Wait.apply(below, weight, stage)
        return below


class StandIn:
    """One rank's replica of a workload. `wrong` counts the results that were not as they should."""

    def __init__(self, workload: Workload) -> None:
        self._tables = _Tables(workload) if workload.exchanged_bytes else None
        self._stages = _Stages(workload.stages)
        self._parallel = nn.parallel.DistributedDataParallel(self._stages, bucket_cap_mb=1e-6)
        self._optimizer = torch.optim.SGD(self._stages.parameters(), lr=_RATE)
        self._done = 0

    def step(self) -> None:
        """One iteration: forward, backward, all sums, optimizer."""
        below = torch.zeros(1, requires_grad=True)
        if self._tables is not None:
            below = _Exchange.apply(below, self._tables)
        self._parallel(below).sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._done += 1

    @property
    def wrong(self) -> int:
        mean = (1 + dist.get_world_size()) / 2
        expected = -_RATE * mean * self._done
        wrong = sum(
            int(not torch.allclose(weight, torch.full_like(weight, expected), rtol=1e-4))
            for weight in self._stages.weights
        )
        return wrong + (self._tables.wrong if self._tables is not None else 0)
