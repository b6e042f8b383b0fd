"""The calls of a traced forward pass, in order, so that an executor can identify its operators.

Unlike in a Trace, the batch and the output are operators ("input", "output"), so that operators
away from the samples or the loss have the costs of transfers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_topoopt.profile.tracing.records import (
    Read,
    TracedOperator,
    region_of,
    storage_of,
    tensors,
)
from torch_topoopt.profile.tracing.sample_order import mixes_samples
from torch_topoopt.profile.tracing.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Source = Literal["operator", "batch", "parameter", "buffer", "constant"]

INPUT = "input"
OUTPUT = "output"


@dataclass
class CallTensor:
    """A tensor that a call reads or returns; its memory was written by `producer`, or comes from
    elsewhere: see `source`. `mutated` says that the call writes it in place. Two of the same
    `number` are the same view of the same memory, and gradients flow through both or none."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    source: Source
    producer: TracedOperator | None
    requires_grad: bool
    storage: int
    number: int
    mutated: bool = False


@dataclass(frozen=True)
class Slot:
    """Stands for the tensor of that index in the structure that a call returns."""

    index: int


@dataclass
class Call:
    """A leaf module (its path) or a function between leaf modules (its name) that was called.

    Functions that neither take nor return tensors are left out.
    `operator` is None if it only made views or constants. `numbers[i]` is the i-th of the flat
    arguments (`torch.utils._pytree`), where that is a number or a slice; `inputs` and `outputs` are
    their tensors, in order, and `structure` is what was returned, with Slots in place of them. An
    `opaque` call has tensors inside other objects.
    """

    name: str
    operator: TracedOperator | None
    leaf: bool
    inputs: list[CallTensor]
    outputs: list[CallTensor]
    numbers: dict[int, Any]
    opaque: bool
    structure: Any = None


class CallTrace(Trace):
    """A Trace that notes all calls, and takes the batch and the output for operators.

    `mixing` are the operators in which a sample's result depends on other samples. `exporting`:
    torch.export's flags were set.
    """

    def __init__(self, model: Any, leaves: set[Any], *rest: Any) -> None:
        super().__init__(model, leaves, *rest)
        self.calls: list[Call] = []
        self.batch: list[CallTensor] = []  # the tensors of the batch, in order
        self.result: list[CallTensor] = []  # those of the output
        self.mixing: set[str] = set()
        self.exporting = torch.compiler.is_exporting()
        self._mixes = False
        self._storages = {
            name: storage_of(p) for name, p in model.named_parameters(remove_duplicate=False)
        }
        self._numbers: dict[object, int] = {}
        self._numbered: list[Any] = []  # kept, so that no other tensor gets the memory of one
        self._given: tuple[Any, Any] = ((), {})
        self._is_leaf = False
        self._looking = False
        self._call: Call | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """As Trace.run."""
        hooks = [
            module.register_forward_pre_hook(self._see_leaf, with_kwargs=True)
            for module in self._leaves
        ]
        try:
            super().run(args, kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    def _see_leaf(self, _: Any, args: Any, kwargs: Any) -> None:
        if self._operator is None and not self._backward:
            self._given, self._is_leaf = (args, kwargs), True

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self._looking:
            return function(*args, **kwargs)
        if self._operator is None and not self._backward:
            self._given, self._is_leaf = (args, kwargs), False
        return super().call(function, args, kwargs)

    def _record(self, operator: TracedOperator, func: Any, args: Any, kwargs: Any) -> Any:
        if mixes_samples(func, args, kwargs, lambda t: storage_of(t) in self._producers):
            self._mixes = True
        return super()._record(operator, func, args, kwargs)

    def _pack(self, tensor: Any) -> Any:
        with self._look():
            return super()._pack(tensor)

    @contextmanager
    def _look(self) -> Iterator[None]:
        """Excludes calls on tensors inside the block from the model's calls."""
        before, self._looking = self._looking, True
        try:
            yield
        finally:
            self._looking = before

    def _begin(self, name: str, kind: str) -> None:
        with self._look():
            self._begin_call(name, kind)

    def _end(self, output: Any) -> None:
        with self._look():
            self._end_call(output)

    def _begin_call(self, name: str, kind: str) -> None:
        super()._begin(name, kind)
        self._mixes = False
        leaves, _ = tree_flatten(self._given)
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._call = Call(
            name=name if self._is_leaf else kind,
            operator=None,
            leaf=self._is_leaf,
            inputs=[self._describe(tensor) for tensor in inputs],
            outputs=[],
            numbers={i: v for i, v in enumerate(leaves) if _is_number(v)},
            opaque=len(inputs) != len(list(tensors(self._given))),
        )
        self._given, self._is_leaf = ((), {}), False

    def _end_call(self, output: Any) -> None:
        operator, call = self._operator, self._call
        assert operator is not None
        super()._end(output)
        if call is None:
            return
        self._call = None
        if self.operators and self.operators[-1] is operator:
            call.operator = operator
            if self._mixes:
                self.mixing.add(operator.name)
            for tensor in call.inputs:
                tensor.mutated = tensor.storage in operator.writes
        leaves, shape = tree_flatten(output)
        made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        slots = iter(range(len(made)))
        call.outputs = [self._describe(tensor) for tensor in made]
        call.opaque |= len(made) != len(list(tensors(output)))
        if not (call.leaf or call.inputs or made):
            return  # such as torch.device(...)
        call.structure = tree_unflatten(
            [Slot(next(slots)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
            shape,
        )
        self.calls.append(call)

    def _describe(self, tensor: Any) -> CallTensor:
        storage = storage_of(tensor)
        producer = self._producers.get(storage)
        source: Source = "constant"
        if producer is not None:
            source = "batch" if producer.kind == INPUT else "operator"
        elif storage in self._parameters:
            source = "parameter"
        elif storage in self._buffers:
            source = "buffer"
        return CallTensor(
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            source,
            producer,
            bool(tensor.requires_grad),
            storage,
            self._number(tensor),
        )

    def _number(self, tensor: Any) -> int:
        geometry = (tuple(tensor.shape), tensor.stride(), bool(tensor.requires_grad))
        key = (storage_of(tensor), tensor.storage_offset(), *geometry)
        number = self._numbers.setdefault(key, len(self._numbered))
        if number == len(self._numbered):
            self._numbered.append(tensor)
        return number

    def _take_batch(self, batch: Iterable[Any]) -> None:
        for tensor in batch:
            if storage_of(tensor) not in self._producers:
                operator = self._add(INPUT)
                operator.shapes = (tuple(tensor.shape),)
                self._producers[storage_of(tensor)] = operator
            self.batch.append(self._describe(tensor))

    def parameter_storage(self, name: str) -> int:
        """The `storage` of a CallTensor that is the parameter of that name."""
        return self._storages[name]

    def _take_output(self, output: Any) -> None:
        with self._look():
            self._read_output(output)

    def _read_output(self, output: Any) -> None:
        result = list(tensors(output))
        self.result = [self._describe(tensor) for tensor in result]
        made = [t for t in result if self._producers.get(storage_of(t)) is not None]
        if not made:
            return
        operator = self._add(OUTPUT)
        operator.reached = True
        operator.shapes = tuple(tuple(tensor.shape) for tensor in made)
        for tensor in made:
            producer, region = self._producers[storage_of(tensor)], region_of(tensor)
            operator.reads[region] = Read(producer, region[2], 0, bool(tensor.requires_grad))

    def _add(self, kind: str) -> TracedOperator:
        """An operator that computes nothing, after those that there are."""
        count = self._names[kind] = self._names.get(kind, 0) + 1
        operator = TracedOperator(f"{kind}#{count}" if count > 1 else kind, kind)
        operator.index = len(self.operators)
        self.operators.append(operator)
        return operator


def _is_number(value: Any) -> bool:
    if type(value) is slice:
        return all(type(part) in (int, type(None)) for part in (value.start, value.stop))
    return type(value) in (int, float)
