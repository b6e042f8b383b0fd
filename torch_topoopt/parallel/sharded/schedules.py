"""Schedules of torch.distributed.pipelining for the chunks of a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from torch_topoopt.parallel.sharded.distribute import (
    begin_micro_batch,
    end_backward,
    sum_at_the_end,
)
from torch_topoopt.parallel.stages import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.parallel.sharded.chunks import ModelChunk
    from torch_topoopt.plan.layout import Layout


class ChunkRunner(torch.nn.Module):  # type: ignore[misc]
    """A chunk as a schedule calls it: micro-batch after micro-batch, the last chunk with the loss.

    A schedule would sum gradients of FSDP modules by rules of its own; it does not see the chunk's.
    """

    def __init__(self, chunk: ModelChunk, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.chunk = chunk
        self.module = chunk.module
        self._loss = loss
        self._loss_dtype = loss_dtype(chunk.module)
        self._parts: Sequence[tuple[Any, Any, Any]] = ()
        self._next = 0

    def begin(self, parts: Sequence[tuple[Any, Any, Any]]) -> None:
        """Begins an iteration of these micro-batches: args, kwargs and target of each."""
        self._parts, self._next = parts, 0

    def forward(self, *received: torch.Tensor) -> Any:
        """The chunk's tensors for the next one, or the micro-batch's part of the mean loss."""
        args, kwargs, target = self._parts[self._next]
        self._next += 1
        self.chunk.batch = args, kwargs
        made = self.chunk(*(received if self.chunk.takes else ()))
        if not self.chunk.is_last:
            return made
        loss = self._loss(made, target) / len(self._parts)
        return loss.to(self._loss_dtype)


def loss_dtype(module: torch.nn.Module) -> torch.dtype:
    """The type in which losses are summed."""
    of_parameters = (p.dtype for p in module.parameters() if p.is_floating_point())
    return torch.promote_types(torch.float32, next(of_parameters, torch.float32))


class ChunkStage(PipelineStage):  # type: ignore[misc]
    """A PipelineStage that sums gradients when the layout does."""

    def __init__(self, runner: ChunkRunner, layout: Layout, *args: Any, **kwargs: Any) -> None:
        super().__init__(runner, *args, **kwargs)
        self._module, self._layout = runner.module, layout
        self._later = layout.schedule == "zero-bubble"  # gradients of weights
        self._done = 0
        if self._later:
            sum_at_the_end(self._module)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """As PipelineStage's."""
        last = bwd_chunk_id == self._layout.micro_batches - 1 and not self._later
        begin_micro_batch(self._module, self._layout, last=last)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if kwargs.get("full_backward", True):
            self._finish()

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """As PipelineStage's."""
        super().backward_weight_one_chunk(*args, **kwargs)
        self._finish()

    def _finish(self) -> None:
        """Counts a micro-batch. After the last one, sums gradients that the passes have not."""
        self._done = (self._done + 1) % self._layout.micro_batches
        if self._later and not self._done:
            begin_micro_batch(self._module, self._layout, last=True)
            end_backward(self._module)


def check_schedule(layout: Layout) -> None:
    """Raises StrategyError if `layout` has a schedule that cannot be executed."""
    schedule = layout.schedule
    if layout.pipeline == 1:
        return
    if layout.interleave > 1 and schedule in ("gpipe", "1f1b"):
        raise StrategyError(
            f"layout: interleave: {schedule} has one chunk a stage, not {layout.interleave}; use "
            "schedule interleaved or zero-bubble"
        )
    if schedule == "zero-bubble" and layout.why_no_zero_bubble:
        raise StrategyError(f"layout: schedule zero-bubble: {layout.why_no_zero_bubble}")


def schedule_of(layout: Layout, stages: Sequence[ChunkStage]) -> Any:
    """The schedule of the layout for this rank's chunks; their runners return losses."""
    options: dict[str, Any] = {"loss_fn": lambda loss, _: loss, "scale_grads": False}
    count = layout.micro_batches
    if layout.schedule == "zero-bubble":
        return ScheduleInterleavedZeroBubble(list(stages), count, **options)
    if layout.interleave > 1:
        return ScheduleInterleaved1F1B(list(stages), count, **options)
    fills = count < layout.pipeline or layout.schedule == "gpipe"
    return (ScheduleGPipe if fills else Schedule1F1B)(stages[0], count, **options)
