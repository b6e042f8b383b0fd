"""Following a program while the user's module runs: its next call, and that call's result.

Leaf modules are intercepted at `forward`, functions between them by a torch function mode, as in
the trace of the program. All other user code runs unchanged.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from torch_topoopt.profile.tracing import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.parallel.program import Argument, Program, Step


class Walk:
    """One forward pass through a program. Subclasses execute the steps.

    The model's own code sees every tensor in the shape of this rank's samples of the batch, `own`,
    also if other servers have it, or if this one has more samples of it.
    """

    def __init__(self, steps: Sequence[Step], own: int) -> None:
        self.inside = False
        self.own = own
        self._steps = steps
        self._position = 0

    def call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """The model's input of its next call; `name` is empty for a leaf module."""
        self.inside = True
        try:
            if name and not Flat(args, kwargs).tensors:
                made = function(*args, **kwargs)
                if Flat(made, None).tensors:  # else it is none of the steps
                    self._next(name)
                return made
            index = self._next(name)
            return self.take(index, self._steps[index], function, args, kwargs)
        finally:
            self.inside = False

    def take(
        self, index: int, step: Step, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Does one step."""
        raise NotImplementedError

    def samples_of(self, argument: Argument) -> int:
        """The number of samples that this rank has of an operator's result; 0 if it has none."""
        raise NotImplementedError

    def absent(self, step: Step, inputs: Sequence[torch.Tensor]) -> Any:
        """The result of a step on other servers."""
        return filled(step, [empty_of(output) for output in step.outputs])

    def between(self, step: Step, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Does a step without an operator: it makes views or constants, or reads a shape.

        A view is made where the tensor is; all else on every rank, for its own samples.
        """
        if not step.outputs:
            return self._sized(step, self.own, function, args, kwargs)
        needed = [self._samples_of(output) for output in step.outputs]
        made = {
            samples: self._sized(step, samples, function, args, kwargs)
            if samples
            else self.absent(step, Flat(args, kwargs).tensors)
            for samples in dict.fromkeys(needed)
        }
        if len(made) == 1:
            return made[needed[0]]
        tensors = {samples: Flat(result, None).tensors for samples, result in made.items()}
        return filled(step, [tensors[samples][i] for i, samples in enumerate(needed)])

    def _samples_of(self, argument: Argument) -> int:
        return self.samples_of(argument) if argument.origin else self.own

    def _sized(
        self, step: Step, samples: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Calls the function for that many samples.

        Of inputs with other samples, it reads the shape only; so they are replaced.
        """
        flat = Flat(args, kwargs)
        flat.resize(step, samples)
        for i, argument in enumerate(step.inputs):
            if any(argument.multiples) and self._samples_of(argument) != samples:
                flat.replace(i, flat.tensors[i].new_empty(argument.sized(samples)))
        args, kwargs = flat.arguments()
        return function(*args, **kwargs)

    def end(self) -> None:
        """Call it when the model has returned; raises RuntimeError if calls are missing."""
        if self._position != len(self._steps):
            self._next("return")

    def _next(self, name: str) -> int:
        step = self._steps[self._position] if self._position < len(self._steps) else None
        if step is None or (not step.leaf if not name else step.leaf or step.name != name):
            wanted = repr(step.name) if step else "its end"
            raise RuntimeError(
                f"topoopt: the model called {name or 'a module'!r} where it came to {wanted} with "
                "the example batch; what it calls must not depend on the batch or on the step"
            )
        self._position += 1
        return self._position - 1


class FollowsCalls(Protocol):
    """A walk; `inside` says that a call is running."""

    @property
    def inside(self) -> bool: ...

    def call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any: ...


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Shows each outermost call of a PyTorch function to a walk."""

    def __init__(self, walk: FollowsCalls) -> None:
        super().__init__()
        self._walk = walk

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._walk.inside:
            return func(*args, **(kwargs or {}))
        kind = getattr(func, "__name__", type(func).__name__).strip("_")
        return self._walk.call(func, kind, args, kwargs or {})


def call_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module: a tensor, a tuple or list of them, or a dict of keywords."""
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(batch), {}
    return (batch,), {}


class Flat:
    """The arguments of a call, taken apart: `tensors[i]` is the i-th tensor among them."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._leaves, self._shape = tree_flatten((args, kwargs))
        self._places = [i for i, v in enumerate(self._leaves) if isinstance(v, torch.Tensor)]

    def resize(self, step: Step, samples: int) -> None:
        """Scales numbers that grow with the batch to `samples` samples."""
        for i, multiple in step.sizes.items():
            self._leaves[i] = multiple * samples

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self._leaves[place] for place in self._places]

    def replace(self, index: int, tensor: torch.Tensor) -> None:
        """Replaces the i-th tensor."""
        self._leaves[self._places[index]] = tensor

    def arguments(self) -> tuple[Any, Any]:
        """Positional and keyword arguments."""
        args, kwargs = tree_unflatten(self._leaves, self._shape)
        return args, kwargs


def empty_of(result: Argument) -> torch.Tensor:
    """`result` without samples."""
    return torch.empty(result.empty, dtype=result.dtype)


def filled(step: Step, tensors: Sequence[torch.Tensor]) -> Any:
    """The result of `step`, with these tensors in it."""
    return tree_map_only(Slot, lambda slot: tensors[slot.index], step.structure)


def catch_leaves(
    module: torch.nn.Module, program: Program, walk: Callable[[], Walk | None]
) -> Callable[[], None]:
    """Routes calls of the program's leaf modules through the walk, while there is one.

    Returns a function that undoes it.
    """

    def leaf_call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        current = walk()
        if current is None or current.inside:
            return forward(*args, **kwargs)
        return current.call(forward, "", args, kwargs)

    for path in program.leaves:
        leaf = module.get_submodule(path)
        leaf.forward = functools.partial(leaf_call, leaf.forward)

    def undo() -> None:
        for path in program.leaves:
            del module.get_submodule(path).forward

    return undo


def drop(module: torch.nn.Module, names: Sequence[str]) -> None:
    """Frees the memory of parameters on other servers.

    Each keeps its shape, for code that only passes it on.
    """
    for name in names:
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        shape = owner._parameters.pop(last)
        if shape is not None:
            owner.__dict__[last] = torch.empty(shape.shape, dtype=shape.dtype, device="meta")
