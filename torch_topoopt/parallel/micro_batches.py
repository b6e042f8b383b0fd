"""Training of a model in micro-batches: steps of one process's loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.parallel.walk import Flat, call_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Loss = Callable[[Any, Any], torch.Tensor]
    Accumulating = Callable[[bool], contextlib.AbstractContextManager[None]]


class Pipeline:
    """A model that is trained step by step. This class has no stages: every rank has all of it.

    `replicas` copies share the samples of a batch; this rank is part of copy `replica` and of
    stage `stage` (from 0) of `stages`. `module` is this rank's part of the user's module.
    """

    stage, stages = 0, 1

    def __init__(
        self,
        wrapped: torch.nn.Module,
        module: torch.nn.Module,
        loss: Loss,
        micro_batches: int,
        replica: int,
        replicas: int,
        accumulating: Accumulating | None = None,
    ) -> None:
        """`accumulating` is what `wrapped` does around the passes of a micro-batch that is the last
        or not; by default, only the last sums gradients."""
        self.module = module
        self.micro_batches = micro_batches
        self.replica, self.replicas = replica, replicas
        self._wrapped = wrapped
        self._loss = loss
        self._accumulating = accumulating or self._summing_last

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters on this rank, for an optimizer."""
        yield from self._wrapped.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole model in the form of the user's module; a collective call."""
        state: dict[str, Any] = self._wrapped.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads this rank's part of a state of the whole model: see ModelState.load."""
        return self._wrapped.load_state_dict(state_dict, strict=strict)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients of the whole model to a norm of at most `max_norm`, as
        torch.nn.utils.clip_grad_norm_ in one process; returns the norm before. A collective call.
        """
        norm: torch.Tensor = self._wrapped.clip_grad_norm_(max_norm)
        return norm

    def step(self, batch: Any, target: torch.Tensor) -> torch.Tensor | None:
        """Forward and backward pass of this copy's share of a batch; leaves mean gradients.

        `batch` is the input of the module, `target` that of the loss; their first dimension is a
        multiple of `micro_batches`. Returns the mean loss of the share on the ranks of the last
        stage, and None on the others.
        """
        args, kwargs = call_arguments(batch)
        losses = []
        parts = micro_batches_of(args, kwargs, target, self.micro_batches)
        for number, (some, named, wanted) in enumerate(parts, 1):
            with self._accumulating(number == self.micro_batches):
                losses.append(self._part(some, named, wanted))
        return torch.stack(losses).sum()

    def _summing_last(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if last else self._wrapped.no_sync()

    def _part(self, args: Any, kwargs: Any, target: Any) -> torch.Tensor:
        loss = self._loss(self._wrapped(*args, **kwargs), target) / self.micro_batches
        loss.backward()
        return loss.detach()

    def evaluate(self, batch: Any) -> Any:
        """The output for this copy's share of a batch on the last stage's ranks; else None."""
        args, kwargs = call_arguments(batch)
        with torch.no_grad():
            return self._wrapped(*args, **kwargs)


def micro_batches_of(args: Any, kwargs: Any, target: torch.Tensor, count: int) -> Iterator[Any]:
    """The arguments and target of every micro-batch."""
    flat = Flat(args, kwargs)
    check_samples(target, count)
    tensors = [tensor.chunk(count) for tensor in flat.tensors]
    for number, wanted in enumerate(target.chunk(count)):
        for i, chunks in enumerate(tensors):
            flat.replace(i, chunks[number])
        yield *flat.arguments(), wanted


def check_samples(target: torch.Tensor, count: int) -> None:
    if target.shape[0] % count:
        raise ValueError(
            f"target: its first dimension, {target.shape[0]}, is not a multiple of the "
            f"{count} micro-batches"
        )
