"""A model that is divided as a layout says, and called like DistributedDataParallel."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule

from torch_topoopt.parallel.gradient_norm import clip_gradients, holders_of
from torch_topoopt.parallel.module import broadcast_values
from torch_topoopt.parallel.sharded.distribute import Division, begin_micro_batch, distribute
from torch_topoopt.parallel.sharded.divided_state import DividedState
from torch_topoopt.parallel.sharded.mesh import LayoutMesh
from torch_topoopt.parallel.sharded.recompute import drop_caches
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch_topoopt.plan.layout import Layout


class ShardedModel(torch.nn.Module):  # type: ignore[misc]
    """This rank's part of a model under a layout without stages.

    `replicas` copies share the samples of a batch, and this rank is part of copy `replica`. All
    ranks of a copy are called with its samples. `module` has the user's own names, and parameters
    that are DTensors: its state_dict() holds this rank's shares.
    """

    def __init__(self, module: torch.nn.Module, division: Division) -> None:
        """Divides `module`, in place; a collective call."""
        super().__init__()
        broadcast_values(module)
        self._state = DividedState(module, division.sections(module))
        distribute(module, division)
        self.module = module
        self.layout = division.layout
        self.replica, self.replicas = division.mesh.replica, division.layout.data

    @classmethod
    def of(
        cls,
        module: torch.nn.Module,
        example_batch: Any,
        layout: Layout,
        precision: torch.dtype | None,
    ) -> ShardedModel:
        """Divides `module`, which is called with batches like `example_batch`."""
        drop_caches(module, layout.recompute)
        op_graph = profile(module, example_batch, name=type(module).__name__)
        device_type = next(module.parameters()).device.type
        return cls(module, Division(op_graph, LayoutMesh.of(layout, device_type), precision))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result for this copy's samples."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes within stay on this rank until the next one after it."""
        if not isinstance(self.module, FSDPModule):
            yield
            return
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around the passes of a micro-batch, which is the `last` of an iteration or not."""
        begin_micro_batch(self.module, self.layout, last=last)
        return contextlib.nullcontext()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients of the whole model to a norm of at most `max_norm`, as
        torch.nn.utils.clip_grad_norm_ does those of one process; returns the norm before."""
        return clip_gradients(self.parameters(), max_norm, holders_of(self.layout))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the whole model in the form of the user's module; a collective call."""
        return self._state.gather([self.module])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads this rank's part of a state of the whole model, which is the same on every rank."""
        return self._state.load([self.module], state_dict, strict=strict)
