"""A chunk of a model: the user's forward method, without the modules of other chunks.

Every chunk runs the user's code from its beginning. Modules of earlier chunks return zeros, or the
tensors that have come from the chunk before. After its last call, a chunk leaves the user's code.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from torch_topoopt.parallel.walk import Functions
from torch_topoopt.profile.profiling import on_meta, result_on_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from torch_topoopt.parallel.sharded.module_calls import ModelCalls, PassedTensor


class _ChunkEndError(BaseException):
    """Leaves the user's forward method; user code that catches Exception does not see it."""


class Sent(NamedTuple):
    """The form of a tensor between chunks: shape and type on one rank. `parts` (placements, shape,
    stride) describe the DTensor that it is part of, if it is; its mesh is that of tensor groups."""

    shape: torch.Size
    dtype: torch.dtype
    parts: tuple[Any, Any, Any] | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sent:
        """The form in which `tensor` is sent."""
        if not isinstance(tensor, DTensor):
            return cls(tensor.shape, tensor.dtype, None)
        parts = tensor.placements, tensor.shape, tensor.stride()
        return cls(tensor.to_local().shape, tensor.dtype, parts)

    def received(self, tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """`tensor` as it was in the chunk that sent it."""
        if self.parts is None:
            return tensor
        placements, shape, stride = self.parts
        return DTensor.from_local(
            tensor, mesh, placements, run_check=False, shape=shape, stride=stride
        )


class ModelChunk:
    """Calls begin..end - 1 of `model`, in place: other modules and parameters are removed.

    Set `batch` (args, kwargs of the model), then call it with the tensors `takes` of the chunk
    before, in the forms `received_as`. It returns the tensors `gives` for the next chunk, and notes
    their forms in `sent_as`; from the last chunk, the output of the model. `module` is what is
    called, and has the model's children and parameters, by name. `precision` is the type in which
    modules compute (None: that of their parameters).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        calls: ModelCalls,
        begin: int,
        end: int,
        tensor_group: DeviceMesh,
        precision: torch.dtype | None = None,
    ) -> None:
        self.is_last = end == len(calls.calls)
        self.takes = calls.passed(begin)
        self.gives = () if self.is_last else calls.passed(end)
        self.batch: tuple[Any, Any] = ((), {})
        self.received_as: tuple[Sent, ...] = ()
        self.sent_as: tuple[Sent, ...] = ()
        self.model = model
        self._tensor_group = tensor_group
        self._calls, self._end = calls, end
        self._walk: _ChunkWalk | None = None
        _remove_others(model, calls, range(begin, end), precision)
        self.module = _Front(model, self._run)

    def follow(self) -> None:
        """Watches the calls of modules; call it once, after all other hooks are registered."""
        for path in dict.fromkeys(call.name for call in self._calls.calls if call.leaf):
            part = self.model.get_submodule(path)
            part.register_forward_pre_hook(self._entering(path), prepend=True)
            part.register_forward_hook(self._left)

    def __call__(self, *received: torch.Tensor) -> Any:
        """Runs the chunk for the samples of `batch`."""
        return self.module(*received)

    def _run(self, *received: torch.Tensor) -> Any:
        args, kwargs = self.batch
        forms = zip(self.received_as, received, strict=True)
        whole = (form.received(tensor, self._tensor_group) for form, tensor in forms)
        taken = dict(zip(self.takes, whole, strict=True))
        self._walk = walk = _ChunkWalk(self._calls, taken, frozenset(self.gives), self._end)
        passed = (*self.takes, *self.gives)
        by_function = any(not self._calls.calls[tensor.call].leaf for tensor in passed)
        output = None
        try:
            with Functions(walk) if by_function else nullcontext():
                output = self.model(*args, **kwargs)
        except _ChunkEndError:
            pass
        finally:
            self._walk = None
        if self.is_last:
            return output
        given = [walk.given[tensor] for tensor in self.gives]
        self.sent_as = tuple(map(Sent.of, given))
        return tuple(map(_sendable, given))

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            if self._walk is not None:
                self._walk.enter(path)

        return enter

    def _left(self, _module: Any, _args: Any, output: Any) -> Any:
        return None if self._walk is None else self._walk.leave(output)


class _Front(torch.nn.Module):  # type: ignore[misc]
    """Has the children and parameters of `model`, and runs `forward`.

    It has no other attributes, because they would hide children of the same name.
    """

    def __init__(self, model: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        for field in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[field] = model.__dict__[field]
        self.__dict__["forward"] = forward


def shared_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of `module` with the same parameters and buffers."""
    held = [*module.parameters(), *module.buffers()]
    copied: torch.nn.Module = copy.deepcopy(module, {id(tensor): tensor for tensor in held})
    return copied


class JoinedChunks(torch.nn.Module):  # type: ignore[misc]
    """What several chunks of one model have, under the names of the model; for its state."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.__dict__["_chunks"] = tuple(chunks)  # no children
        for chunk in reversed(chunks):
            self._parameters.update(chunk._parameters)
            self._buffers.update(chunk._buffers)
            self._non_persistent_buffers_set |= chunk._non_persistent_buffers_set
        for name in dict.fromkeys(name for chunk in chunks for name in chunk._modules):
            its = [chunk._modules[name] for chunk in chunks if name in chunk._modules]
            there = [one for one in its if one is not None and not isinstance(one, AbsentModule)]
            if there:
                self._modules[name] = there[0] if len(there) == 1 else JoinedChunks(there)

    def train(self, mode: bool = True) -> Self:
        """As Module.train, for all chunks."""
        for chunk in self._chunks:
            chunk.train(mode)
        super().train(mode)
        return self


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of `tensor`, or a copy if a schedule cannot detach it from its graph."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.clone() if tensor.is_leaf or tensor._is_view() else tensor


def kept_parameters(module: torch.nn.Module, calls: ModelCalls, here: range) -> set[str]:
    """The names of the parameters that a chunk of the calls `here` has.

    Those that no call needs at all are in the first chunk.
    """
    inside = {call.name: f"{call.name}." for call in calls.calls if call.leaf}
    mine = tuple(inside[calls.calls[i].name] for i in here if calls.calls[i].leaf)
    every = tuple(inside.values())
    here_read = {name for i in here for name in calls.calls[i].parameters}
    read = {name for call in calls.calls for name in call.parameters}
    return {
        name
        for name, _ in module.named_parameters(remove_duplicate=False)
        if name in here_read
        or name.startswith(mine)
        or (here.start == 0 and name not in read and not name.startswith(every))
    }


def _remove_others(
    module: torch.nn.Module, calls: ModelCalls, here: range, precision: torch.dtype | None
) -> None:
    """Removes the modules and parameters that no call of `here` needs."""
    kept = kept_parameters(module, calls, here)
    needed = {calls.calls[i].name for i in here}
    modules = dict(module.named_modules())
    absent = {
        id(modules[call.name]): AbsentModule(modules[call.name], precision)
        for call in calls.calls
        if call.leaf and call.placed and call.name not in needed
    }
    for path, one in modules.items():
        if id(one) in absent and any(name.startswith(f"{path}.") for name in kept):
            one.forward = absent.pop(id(one)).forward  # it holds what a function of `here` reads
    for owner in list(module.modules()):
        for name, child in owner._modules.items():
            owner._modules[name] = absent.get(id(child), child)
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if name not in kept:
            path, _, last = name.rpartition(".")
            owner = module.get_submodule(path)
            del owner._parameters[last]
            owner.__dict__[last] = parameter.detach().new_zeros(()).expand(parameter.shape)


class AbsentModule(torch.nn.Module):  # type: ignore[misc]
    """A module of another chunk: it has no parameters and returns zeros. It has the attributes of
    the module.

    FSDP casts the parameters and arguments of modules to `precision`. Here, the arguments are
    results of other modules of both types, and attention needs one.
    """

    def __init__(self, module: torch.nn.Module, precision: torch.dtype | None) -> None:
        super().__init__()
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self._precision = precision
        self.__dict__["_original"] = original = on_meta(module)  # no child
        for parameter in original.parameters():
            parameter.data = self._on_meta(parameter.data)
        self._results: dict[object, Any] = {}  # on the meta device, by the shapes of arguments

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Zeros of the shapes that the module returns for such arguments."""
        leaves, structure = tree_flatten((args, kwargs))
        key = tuple(map(_shape_key, leaves)), str(structure)
        if key not in self._results:
            metas = tree_map_only(torch.Tensor, self._on_meta, (args, kwargs))
            self._results[key] = result_on_meta(self._original, *metas)
        return tree_map_only(torch.Tensor, self._zeros, self._results[key])

    def _on_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        casts = self._precision is not None and tensor.is_floating_point()
        return tensor.detach().to("meta", self._precision if casts else tensor.dtype)

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros(like.shape, dtype=like.dtype, device=self._device)


def _shape_key(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype
    return leaf if isinstance(leaf, int | float | str | None) else type(leaf)


class _ChunkWalk:
    """One forward pass of a chunk, which ends before call number `end`."""

    def __init__(
        self,
        calls: ModelCalls,
        taken: dict[PassedTensor, torch.Tensor],
        gives: frozenset[PassedTensor],
        end: int,
    ) -> None:
        self.given: dict[PassedTensor, torch.Tensor] = {}
        self._calls, self._end = calls, end
        self._open: list[int] = []  # the calls that are running; only the first is followed
        self._position = 0
        self._taken: dict[int, list[PassedTensor]] = defaultdict(list)
        self._gives: dict[int, list[PassedTensor]] = defaultdict(list)
        self._received = taken
        for tensor in taken:
            self._taken[tensor.call].append(tensor)
        for tensor in gives:
            self._gives[tensor.call].append(tensor)

    @property
    def inside(self) -> bool:
        """Whether a call is running."""
        return bool(self._open)

    def enter(self, path: str) -> None:
        """Begins the call of the module at `path`."""
        number = -1 if self.inside else self._next_of(path)
        if number >= self._end:
            raise _ChunkEndError
        self._open.append(number)
        self._position = max(self._position, number + 1)

    def leave(self, output: Any) -> Any:
        """Ends it; returns its result in this chunk, None if that is `output`."""
        number = self._open.pop()
        if self.inside:
            return None
        return self._made(number, output)

    def call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """Calls a function between modules."""
        number = self._position
        if number >= self._end:
            raise _ChunkEndError
        call = self._calls.calls[number]
        if call.leaf or call.name != name:
            raise RuntimeError(
                f"topoopt: the model called {name!r} where it came to {call.name!r} with the "
                "example batch; what it calls must not depend on the batch or on the step"
            )
        self._position += 1
        self._open.append(number)
        try:
            output = function(*args, **kwargs)
        finally:
            self._open.pop()
        replaced = self._made(number, output)
        return output if replaced is None else replaced

    def _next_of(self, path: str) -> int:
        for number in range(self._position, len(self._calls.calls)):
            call = self._calls.calls[number]
            if call.leaf and call.name == path:
                return number
        raise RuntimeError(
            f"topoopt: the model called {path!r} more often than with the example batch; what it "
            "calls must not depend on the batch or on the step"
        )

    def _made(self, number: int, output: Any) -> Any:
        replaced = None
        taken, gives = self._taken.get(number, ()), self._gives.get(number, ())
        if taken or gives:
            leaves, structure = tree_flatten(output)
            places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            for tensor in taken:
                leaves[places[tensor.slot]] = self._received[tensor]
            for tensor in gives:
                self.given[tensor] = leaves[places[tensor.slot]]
            if taken:
                replaced = tree_unflatten(leaves, structure)
        if number == self._end - 1 and self._end < len(self._calls.calls):
            raise _ChunkEndError
        return replaced
