"""The step time and loss of a job in its metrics.jsonl, about once a second, written by rank 0.

The script need not change: an iteration ends with its optimizer's step (see IterationMeter), and
the loss is the scalar on the CPU whose backward() it calls. A loss on another device is not read,
since that would wait for the device, and end a capture of a CUDA graph. Such a script can log its
loss with `torch_topoopt.log(loss=...)`.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import torch

from torch_topoopt.runtime.meters.backward_watch import watch_backward

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S = 1.0

log = logging.getLogger("torch_topoopt")


class StepLog:
    """Writes "step" events: the finished `iteration`, mean `step_s` since the event before, and
    `loss` of the iteration, or None."""

    def __init__(
        self, write: Callable[..., None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._write = write
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._loss: torch.Tensor | None = None

    def seen(self, loss: torch.Tensor) -> None:
        """backward() is called of `loss`, whose value is only read if an event is written."""
        self._loss = loss

    def ended(self, iteration: int) -> None:
        """Iteration `iteration` has ended."""
        now = self._clock()
        if self._last is None:
            self._last = (now, iteration)
            return
        before, first = self._last
        if now - before < _INTERVAL_S or iteration <= first:
            return
        self._last = (now, iteration)
        loss = self._loss.item() if self._loss is not None else math.nan
        try:
            self._write(
                "step",
                iteration=iteration,
                step_s=(now - before) / (iteration - first),
                loss=loss if math.isfinite(loss) else None,
            )
        except OSError as error:  # the launcher warns, and training continues
            log.info("the time of a step cannot be noted: %s", error)

    def watch_backward(self) -> Callable[[], None]:
        """Notes the loss at every backward() of a CPU scalar; returns the function that ends it."""
        end_watch = watch_backward(self._begins)

        def end() -> None:
            end_watch()
            self._loss = None

        return end

    def _begins(self, tensor: torch.Tensor) -> None:
        if _is_loss(tensor):
            self.seen(tensor.detach())


def _is_loss(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu"
    return plain and tensor.numel() == 1 and not tensor.is_complex()
