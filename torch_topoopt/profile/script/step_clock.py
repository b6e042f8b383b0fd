"""Measures a script's steps inside one rank: forward pass, backward pass, and the rest.

A step ends with the optimizer's step (of several, the first that ever stepped), as in measured
iterations.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch_topoopt.profile.script.rank_time import Reading, read_clocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.profile.script.step_events import EventLog

LEFT_OUT = 2  # warm-up steps: they allocate memory and build buckets
LEAST, MOST = 4, 24  # further steps that are timed
ENOUGH_S = 4.0  # after these seconds no more than LEAST


class StepClock:
    """Watches modules and optimizers of this process from `install` on.

    After enough steps it calls `finish` with them, each as its phases: "forward", "backward" (and
    loss) and "rest"; and with the bucket sizes given to DistributedDataParallel, as (first,
    further) bytes, None where no module is wrapped in it. `log` gets the ends of the steps.
    """

    def __init__(
        self,
        finish: Callable[[list[dict[str, Reading]], tuple[int, int] | None], None],
        read: Callable[[], Reading] = read_clocks,
        log: EventLog | None = None,
    ) -> None:
        self._finish = finish
        self._read = read
        self._log = log
        self._optimizer: Any = None
        self._depth = 0  # of modules that call each other
        self._replicas: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ends = 0
        self._timing_since = 0.0
        self._last = Reading(0.0, 0.0)  # when the last phase ended
        self._step: dict[str, Reading] = {}
        self._steps: list[dict[str, Reading]] = []
        self._buckets: tuple[int, int] | None = None

    def install(self) -> None:
        """Hooks that stay for as long as this process lives."""
        register_module_forward_pre_hook(self.forward_begins)
        register_module_forward_hook(self.forward_ends, always_call=True)
        register_optimizer_step_pre_hook(self.optimizer_begins)
        register_optimizer_step_post_hook(self.optimizer_ends)

    def forward_begins(self, module: Any, *_: Any) -> None:
        """Between two forward passes of one step a backward pass may have been."""
        if not torch.is_grad_enabled():
            return
        if isinstance(module, DistributedDataParallel):
            self._replicas.add(module)
        self._depth += 1
        if self._depth == 1:
            self._phase("backward" if "forward" in self._step else "rest")

    def forward_ends(self, module: Any, *_: Any) -> None:
        """The outermost module's call is the forward pass."""
        if not torch.is_grad_enabled() or self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            self._phase("forward")

    def optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """Counts the time since the forward pass as the backward pass."""
        self._phase("backward" if "forward" in self._step else "rest")

    def optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        """The end of a step, if it is the optimizer that counts."""
        self._phase("rest")
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._ends += 1
        if self._log is not None:
            self._log.end_step(keep=self._ends > LEFT_OUT)
        if self._ends > LEFT_OUT:
            self._steps.append(self._step)
        else:
            self._timing_since = time.monotonic()
        self._step, self._depth = {}, 0
        enough = time.monotonic() - self._timing_since >= ENOUGH_S and len(self._steps) >= LEAST
        if self._ends == LEFT_OUT:  # at the script's end its modules may be gone
            self._buckets = self._bucket_bytes()
        if enough or len(self._steps) == MOST:
            self._finish(self._steps, self._buckets)

    def script_ended(self) -> None:
        """Handles the script's end; its timed steps suffice if they are not too few."""
        if len(self._steps) >= LEAST:
            self._finish(self._steps, self._buckets)

    def _phase(self, name: str) -> None:
        now = self._read()
        passed = now.since(self._last)
        self._last = now
        self._step[name] = self._step[name].plus(passed) if name in self._step else passed

    def _bucket_bytes(self) -> tuple[int, int] | None:
        for replica in self._replicas:
            further = int(replica.bucket_bytes_cap)
            first = int(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)
            return (first if replica.bucket_bytes_cap_default else further), further
        return None
