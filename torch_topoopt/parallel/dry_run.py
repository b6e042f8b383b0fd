"""A forward pass on meta tensors as on a server that has only the pinned operators of a program.

It finds code of the model that does not work there before anything is planned or moved.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.parallel.program import Program
from torch_topoopt.parallel.walk import Functions, Walk, catch_leaves, filled
from torch_topoopt.profile.profiling import explaining, on_meta, own_batch_size
from torch_topoopt.profile.tracing import as_on_cpu, positional_and_keyword

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.parallel.program import Argument, Step


def checked_program(model: Any, example_batch: Any) -> Program:
    """`Program.of`; also raises ProfileError, which names the module, if the model fails on servers
    without its operators, or makes other calls there."""
    if not isinstance(model, torch.nn.Module):
        with torch.device("meta"):
            model = model()
    program = Program.of(model, example_batch)
    _dry_run(program, on_meta(model), example_batch)
    return program


def _dry_run(program: Program, network: torch.nn.Module, example_batch: Any) -> None:
    calling: list[tuple[str, Any]] = []
    walk = _DryRun(program, own_batch_size(network, example_batch))
    args, kwargs = positional_and_keyword(example_batch)
    with ExitStack() as stack, explaining("on servers without its operators: ", calling):
        for path, module in network.named_modules():
            stack.callback(module.register_forward_pre_hook(_enter(calling, path)).remove)
            stack.callback(module.register_forward_hook(_leave(calling), prepend=True).remove)
        stack.callback(catch_leaves(network, program, lambda: walk))
        with torch.device("meta"), Functions(walk), program.flags():
            network(*args, **kwargs)
        walk.end()


def _enter(calling: list[tuple[str, Any]], path: str) -> Callable[..., None]:
    return lambda module, _: calling.append((path, module))


def _leave(calling: list[tuple[str, Any]]) -> Callable[..., None]:
    return lambda *_: calling.__delitem__(-1)


class _DryRun(Walk):
    def __init__(self, program: Program, samples: int) -> None:
        super().__init__(program.steps, samples)
        self._here = program.pinned.keys()

    def call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """See Walk.call; the model sees tensors of a CPU, as in its trace."""
        function, args, kwargs = as_on_cpu(function, args, kwargs)
        return super().call(function, name, args, kwargs)

    def take(
        self, index: int, step: Step, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """See Walk.take; operators compute nothing."""
        if not step.operator:
            return self.between(step, function, args, kwargs)
        return self.absent(step, ())

    def absent(self, step: Step, inputs: Sequence[torch.Tensor]) -> Any:
        """See Walk.absent; results of pinned operators have samples."""
        made = [
            torch.empty(o.sized(self.samples_of(o)), dtype=o.dtype, requires_grad=o.gradient)
            for o in step.outputs
        ]
        return filled(step, made)

    def samples_of(self, argument: Argument) -> int:
        """See Walk.samples_of."""
        return self.own if argument.origin in self._here else 0
