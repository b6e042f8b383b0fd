"""The calls of a model's forward pass, for cutting it into the chunks of a pipeline.

A part is a block, or a module beside the blocks that holds none. A call is that of a part, or of a
function between parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.profile.profiling import trace_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.parallel.sharded.blocks import ModelCell
    from torch_topoopt.profile.tracing import Call, CallTensor, CallTrace


class PassedTensor(NamedTuple):
    """A tensor between two chunks: the `slot`-th of the tensors that call number `call` returns.

    `gradient` says that a gradient flows back through it.
    """

    call: int
    slot: int
    gradient: bool


@dataclass(frozen=True)
class ModelCall:
    """A call of the part `name`, if it is a `leaf`, else of the function `name`.

    A `placed` call depends on parameters, so it runs in one chunk. The others run in every chunk.
    `parameters` are names of those that a function reads itself.
    """

    name: str
    leaf: bool
    placed: bool
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class ModelCalls:
    """A forward pass. `last_readers` has the last call that reads a tensor (the number of calls for
    the output), by the call that made it and its slot."""

    calls: tuple[ModelCall, ...]
    last_readers: dict[PassedTensor, int]

    @classmethod
    def of(cls, module: torch.nn.Module, example_batch: Any, blocks: Sequence[str]) -> ModelCalls:
        """Records `module`, whose blocks are at the paths `blocks`. Raises ProfileError."""
        trace = trace_modules(module, example_batch, [*_parts(module, frozenset(blocks))])
        return _recorded(module, trace)

    def bounds(self, cells: Sequence[ModelCell], chunks: Sequence[int]) -> tuple[int, ...]:
        """The first call of each chunk, and the number of calls; `chunks` counts cells of each."""
        at = {call.name: i for i, call in enumerate(self.calls) if call.leaf}
        bounds, first = [0], 0
        for count in chunks[:-1]:
            first += count
            before, after = cells[first - 1], cells[first]
            path = (before if before.block else after).paths[0]
            if path not in at:
                raise StrategyError(f"layout: pipeline: block {path!r} is not called by the model")
            bounds.append(at[path] + before.block)
        return (*bounds, len(self.calls))

    def passed(self, bound: int) -> tuple[PassedTensor, ...]:
        """The tensors that calls before number `bound` make, and later ones read."""
        return tuple(t for t, reader in self.last_readers.items() if t.call < bound <= reader)


def _parts(module: torch.nn.Module, blocks: frozenset[str], path: str = "") -> Iterator[str]:
    if path in blocks:
        yield path
        return
    holds = any(block.startswith(f"{path}." if path else "") for block in blocks)
    is_container = type(module).forward is torch.nn.Module.forward
    if not holds and not is_container:
        yield path
        return
    for name, child in module.named_children():
        yield from _parts(child, blocks, f"{path}.{name}" if path else name)


def _recorded(module: torch.nn.Module, trace: CallTrace) -> ModelCalls:
    by_storage: dict[int, list[str]] = {}
    for name, _ in module.named_parameters(remove_duplicate=False):
        by_storage.setdefault(trace.parameter_storage(name), []).append(name)
    depends: set[int] = set()  # ids of operators that depend on parameters
    calls: list[ModelCall] = []
    made: dict[int, PassedTensor] = {}
    readers: dict[PassedTensor, int] = {}

    def read(tensors: Sequence[CallTensor], reader: int) -> None:
        for tensor in tensors:
            passed = made.get(tensor.number)
            if passed is not None:
                readers[passed] = reader

    for number, call in enumerate(trace.calls):
        read(call.inputs, number)
        placed, storages = _dependence(module, call, depends, by_storage)
        names = () if call.leaf else tuple(n for s in storages for n in by_storage[s])
        calls.append(ModelCall(call.name, call.leaf, placed, names))
        for slot, tensor in enumerate(call.outputs):
            if id(tensor.producer) in depends:
                made[tensor.number] = PassedTensor(number, slot, tensor.requires_grad)
    read(trace.result, len(trace.calls))
    return ModelCalls(tuple(calls), readers)


def _dependence(
    module: torch.nn.Module, call: Call, depends: set[int], by_storage: dict[int, list[str]]
) -> tuple[bool, list[int]]:
    """Whether a call depends on parameters, and the storages of those that it reads itself."""
    operator = call.operator
    reads = [] if operator is None else list(operator.reads.items())
    storages = [s for (s, _, _), _ in reads if s in by_storage]
    storages += [t.storage for t in call.inputs if t.storage in by_storage]
    placed = bool(storages) or any(id(read.producer) in depends for _, read in reads)
    if call.leaf:
        placed |= any(True for _ in module.get_submodule(call.name).parameters())
    elif operator is None:  # views
        placed |= any(id(tensor.producer) in depends for tensor in call.inputs)
    if placed and operator is not None:
        depends.add(id(operator))
    return placed, list(dict.fromkeys(storages))
