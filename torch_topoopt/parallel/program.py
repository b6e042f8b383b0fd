"""The calls of a model, and the operators among them that may run away from their samples.

A program is recorded once on meta tensors, for two batch sizes: comparing them shows the dimensions
that grow with the batch. It is independent of servers.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.parallel.layouts import made_by, read_by
from torch_topoopt.parallel.splits import cuts_of
from torch_topoopt.profile.profiling import exporting, trace_calls
from torch_topoopt.profile.tracing import INPUT, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch_topoopt.parallel.layouts import TensorLayout
    from torch_topoopt.parallel.splits import Cut
    from torch_topoopt.plan import Placement
    from torch_topoopt.profile.profiling import TracedCalls
    from torch_topoopt.profile.tracing import Call, CallTensor, TracedOperator


@dataclass(frozen=True)
class TensorShape:
    """A tensor [rows x samples, *tail]: split along the first dimension as the batch is."""

    rows: int
    tail: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Argument:
    """One tensor of a call. `origin` names the operator that made it, "" if none did.

    `shape` is None if the first dimension does not grow with the batch; `empty` is the shape
    without samples, and `multiples` says how much of each dimension is one sample. `gradient` says
    that a gradient flows back through it. Equal `number` means the same tensor. It repeats its
    values along the dimensions `repeated`.
    """

    origin: str
    shape: TensorShape | None
    gradient: bool
    empty: tuple[int, ...]
    multiples: tuple[int, ...]
    dtype: Any
    number: int
    repeated: tuple[int, ...]

    def sized(self, samples: int) -> tuple[int, ...]:
        """The shape with that many samples."""
        return tuple(m * samples or e for m, e in zip(self.multiples, self.empty, strict=True))


@dataclass(frozen=True)
class Step:
    """One call, in the order of the forward pass; `operator` is "" for one that makes only views.

    `sizes[i]`: the i-th of the flat arguments is a number, that many times the samples. `structure`
    is its result, with a Slot for each of `outputs`. `changes` are the operators whose results it
    writes in place.
    """

    name: str
    leaf: bool
    operator: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    sizes: dict[int, int]
    structure: Any
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A model's forward pass. `pinned` maps operators that must run on all servers to the reason,
    `modules` operators to the paths of their leaf modules, `parameters` the parameters of an
    operator, and `cuts` its splits, by its name. `leaves` are the paths of all leaf modules that
    are called. `batch` and `results` are the input and output tensors. The model takes views of the
    results of operators in `viewed`. `exporting`: see TracedCalls."""

    steps: tuple[Step, ...]
    results: tuple[Argument, ...]
    batch: tuple[Argument, ...]
    operators: tuple[str, ...]
    pinned: dict[str, str]
    modules: dict[str, str]
    leaves: tuple[str, ...]
    parameters: dict[str, tuple[str, ...]]
    cuts: dict[str, dict[str, Cut]]
    viewed: frozenset[str]
    exporting: bool

    @classmethod
    def of(
        cls, model: torch.nn.Module | Callable[[], torch.nn.Module], example_batch: Any
    ) -> Program:
        """Records `model`, or the result of calling it on the meta device.

        Raises ProfileError if it cannot be traced.
        """
        if not isinstance(model, torch.nn.Module):
            with torch.device("meta"):
                model = model()
        return _Recorder(model, trace_calls(model, example_batch)).program()

    @property
    def boundary(self) -> frozenset[str]:
        """The operators that represent the batch and the output."""
        return frozenset(o for o in self.operators if o.split("#")[0] in (INPUT, OUTPUT))

    def flags(self) -> AbstractContextManager[None]:
        """The flags under which the model makes the calls of this program."""
        return exporting() if self.exporting else nullcontext()

    def why_not_placed(self, placement: Placement, everyone: int) -> str:
        """Why an operator cannot have that placement on some of `everyone`; empty if it can."""
        operator, kind, parts = placement.operator, placement.parameter_kind, placement.parameter
        if placement.attribute > 1 or kind == "experts":
            name = "sequence or context" if placement.attribute > 1 else "expert"
            return f"it is {name} parallel, which can be planned but not executed"
        if kind is None and placement.servers == tuple(range(everyone)):
            return ""
        if operator in self.pinned:
            return self.pinned[operator]
        if everyone % placement.sample:
            return f"{placement.sample} servers cannot share the samples of {everyone} evenly"
        return self._why_not_cut(operator, kind, parts) if kind else ""

    def _why_not_cut(self, operator: str, kind: str, parts: int) -> str:
        cut = self.cuts.get(operator, {}).get(kind)
        if cut is None:
            return f"splits of its {kind} can be planned but not executed"
        if cut.size % parts:
            return f"its {cut.size} {kind} cannot be cut into {parts} equal parts"
        if kind == "columns" and operator in self.viewed:
            return "the model takes views of its result, which need all columns"
        return ""

    def layouts(self, placement: Placement) -> tuple[TensorLayout, TensorLayout]:
        """The operand parts that a placement of an operator needs, and its result parts."""
        kind = placement.parameter_kind
        whole = kind is None or self.cuts[placement.operator][kind].whole
        return read_by(placement, whole=whole), made_by(placement)


# calls of these get sizes, which grow with the batch, but compute nothing with them
_COPIES = frozenset({"reshape", "view", "flatten", "unflatten", "expand"})


class _Recorder:
    def __init__(self, model: Any, traced: TracedCalls) -> None:
        self._once, self._twice, self._size = traced.once, traced.twice, traced.size
        self._exporting = traced.exporting
        self._made = {
            a.storage: (a, b) for a, b in zip(self._once.batch, self._twice.batch, strict=True)
        }
        self._pinned: dict[str, str] = {}
        self._parameters: dict[str, tuple[str, ...]] = {}
        self._paths = {path or type(m).__name__: path for path, m in model.named_modules()}
        self._model = model

    def program(self) -> Program:
        once, twice = self._once, self._twice
        for operator in once.operators:
            if operator.kind in (INPUT, OUTPUT):
                self._pin(operator.name, "every rank reads its own samples and has their results")
            if operator.name in once.mixing:
                self._pin(operator.name, "its results depend on the other samples of a batch")
        if [c.name for c in once.calls] != [c.name for c in twice.calls]:
            for operator in once.operators:
                self._pin(operator.name, "the model calls other functions for a larger batch")
        self._pin_recomputed()
        pairs = list(zip(once.calls, twice.calls, strict=False))
        self._pin_hidden([call for call, _ in pairs])
        self._pin_shared([call for call, _ in pairs])
        steps = tuple(self._step(call, twin) for call, twin in pairs)
        viewed = {a.origin for step in steps if not step.operator for a in step.inputs}
        results = tuple(
            self._result(tensor, twin)
            for tensor, twin in zip(once.result, twice.result, strict=False)
        )
        modules = {
            call.operator.name: self._paths[call.name]
            for call in once.calls
            if call.leaf and call.operator is not None
        }
        return Program(
            steps,
            results,
            tuple(self._argument(a, b, None) for a, b in zip(once.batch, twice.batch, strict=True)),
            tuple(operator.name for operator in once.operators),
            self._pinned,
            modules,
            tuple({self._paths[c.name]: None for c in once.calls if c.leaf}),
            self._parameters,
            {call.operator.name: cuts_of(call) for call, _ in pairs if call.operator is not None},
            frozenset(viewed),
            self._exporting,
        )

    def _pin(self, operator: str, why: str) -> None:
        self._pinned.setdefault(operator, why)

    def _pin_recomputed(self) -> None:
        """Pins operators that the backward pass may compute again: nothing is intercepted there.

        Checkpoints are in the modules that call those that are called again.
        """
        for operator in self._once.operators:
            if operator.function_node is not None:
                self._pin_with_producers(operator, "it runs inside an autograd.Function")
        again = self._once.recomputed or {""} if self._once.recomputes else set()
        called = {span.path for span in self._once.spans}
        callers = {next(p for p in _outwards(path) if p in called) for path in again}
        callers = {path for path in callers if path not in again} or callers
        for span in self._once.spans:
            if span.path in callers:
                for operator in self._once.operators[span.begin : span.end]:
                    self._pin_with_producers(
                        operator, "the backward pass may compute it again, or what reads it"
                    )

    def _pin_with_producers(self, operator: TracedOperator, why: str) -> None:
        self._pin(operator.name, why)
        for read in operator.reads.values():
            if read.producer is not None:
                self._pin(read.producer.name, why)

    def _pin_hidden(self, calls: list[Call]) -> None:
        """Pins operators without a call, which cannot be intercepted when the model runs."""
        seen = {call.operator.name for call in calls if call.operator is not None}
        for operator in self._once.operators:
            if operator.name not in seen:
                self._pin(operator.name, "it runs inside another call")

    def _pin_shared(self, calls: list[Call]) -> None:
        """Keeps parameters of two operators, or of a function, on every rank."""
        by_storage: dict[int, list[str]] = {}
        for name, _ in self._model.named_parameters(remove_duplicate=False):
            by_storage.setdefault(self._once.parameter_storage(name), []).append(name)
        users: dict[int, dict[str, None]] = {}
        for call in calls:
            if call.operator is None:
                continue
            operator = call.operator.name
            held = {t.storage: None for t in call.inputs if t.source == "parameter"}
            if held:
                self._pin(operator, "it reads a parameter that no leaf module holds")
            if call.leaf:
                path = self._paths[call.name]
                inner = self._model.get_submodule(path).named_parameters(path)
                held.update((self._once.parameter_storage(name), None) for name, _ in inner)
            self._parameters[operator] = tuple(n for s in held for n in by_storage[s])
            for storage in held:
                users.setdefault(storage, {})[operator] = None
        for names in users.values():
            for name in names if len(names) > 1 else ():
                other = next(n for n in names if n != name)
                self._pin(name, f"it shares a parameter with {other!r}")

    def _step(self, call: Call, twin: Call) -> Step:
        if call.operator is not None:
            self._judge(call.operator.name, call, twin)
        else:
            self._judge_views(call, twin)
        scales = call.operator is None or call.name in _COPIES
        sizes = {}
        for i, value in call.numbers.items():
            larger = twin.numbers.get(i)
            if larger == value:
                continue
            if scales and type(value) is int and larger == 2 * value and value % self._size == 0:
                sizes[i] = value // self._size
            else:
                self._pin_call(call, f"{call.name} gets numbers that grow with the batch")
        return Step(
            call.name,
            call.leaf,
            call.operator.name if call.operator is not None else "",
            tuple(
                self._argument(a, b, call) for a, b in zip(call.inputs, twin.inputs, strict=False)
            ),
            tuple(
                self._argument(a, b, None) for a, b in zip(call.outputs, twin.outputs, strict=False)
            ),
            sizes,
            call.structure,
            tuple(t.producer.name for t in call.inputs if t.mutated and t.producer is not None),
        )

    def _judge(self, operator: str, call: Call, twin: Call) -> None:
        """Pins `operator` and the producers of its operands where samples cannot be separated."""
        if call.opaque:
            self._pin_call(call, "its tensors are inside objects that cannot be taken apart")
        for tensor, larger in zip(call.inputs, twin.inputs, strict=False):
            grows = self._grows(tensor, larger)
            if tensor.mutated and tensor.producer is not None:
                self._pin_both(operator, tensor, "it changes a tensor of {} in place")
            elif tensor.producer is not None and not grows:
                self._pin_both(operator, tensor, "what it reads of {} is not split by samples")
            elif tensor.producer is None and tensor.shape != larger.shape:
                self._pin(operator, "it reads a constant that is as large as the batch")
        for tensor, larger in zip(call.outputs, twin.outputs, strict=False):
            if not self._grows(tensor, larger):
                self._pin(operator, "its result is not split by samples along the first dimension")

        for tensor, larger in zip(call.outputs, twin.outputs, strict=False):
            self._made[tensor.storage] = (tensor, larger)

    def _judge_views(self, call: Call, twin: Call) -> None:
        """Pins operators whose results are viewed with the samples in another order."""
        for tensor, larger in zip(call.outputs, twin.outputs, strict=False):
            viewed = self._made.get(tensor.storage)
            if tensor.producer is None or viewed is None:
                continue
            grow = self._grows(tensor, larger) and self._grows(*viewed)
            if grow and _order(tensor, larger) != _order(*viewed):
                self._pin(tensor.producer.name, "the model takes views of it that mix its samples")

    def _pin_both(self, operator: str, tensor: CallTensor, why: str) -> None:
        assert tensor.producer is not None
        self._pin(operator, why.format(repr(tensor.producer.name)))
        self._pin(
            tensor.producer.name,
            f"{operator!r} reads its result in a way that is not split by samples, or changes it",
        )

    def _pin_call(self, call: Call, why: str) -> None:
        if call.operator is not None:
            self._pin(call.operator.name, why)
        for tensor in call.inputs:
            if tensor.producer is not None:
                self._pin(tensor.producer.name, why)

    def _result(self, tensor: CallTensor, twin: CallTensor) -> Argument:
        if tensor.producer is not None and not self._grows(tensor, twin):
            self._pin(tensor.producer.name, "it makes an output that is not split by samples")
        return self._argument(tensor, twin, None)

    def _argument(self, tensor: CallTensor, twin: CallTensor, call: Call | None) -> Argument:
        shape = None
        if self._grows(tensor, twin):
            shape = TensorShape(tensor.shape[0] // self._size, tensor.shape[1:], tensor.dtype)
        reached = call is None or (call.operator is not None and call.operator.reached)
        origin = tensor.producer.name if tensor.producer is not None else ""
        grown = [b == 2 * a for a, b in zip(tensor.shape, twin.shape, strict=False)]
        empty = tuple(0 if grows else n for n, grows in zip(tensor.shape, grown, strict=False))
        each = tuple(n // self._size * g for n, g in zip(tensor.shape, grown, strict=False))
        gradient = tensor.requires_grad and reached
        inner = range(1, len(tensor.shape) - 1)
        repeated = tuple(i for i in inner if tensor.shape[i] > 1 and tensor.strides[i] == 0)
        number, dtype = tensor.number, tensor.dtype
        return Argument(origin, shape, gradient, empty, each, dtype, number, repeated)

    def _grows(self, tensor: CallTensor, twin: CallTensor) -> bool:
        """Whether the first dimension, and no other, is a multiple of the samples."""
        a, b = tensor.shape, twin.shape
        if len(a) != len(b) or not a or a[1:] != b[1:]:
            return False
        return b[0] == 2 * a[0] and a[0] % self._size == 0


def _outwards(path: str) -> Iterator[str]:
    """The modules around the module of that path, up to the model itself."""
    while path:
        path = path.rpartition(".")[0]
        yield path
    yield ""


def _order(tensor: CallTensor, twin: CallTensor) -> tuple[int, bool]:
    """The distance of samples in memory, and whether distances inside them grow with the batch.

    Views of one tensor have its samples in the same order if both are equal.
    """
    others = list(zip(tensor.shape, tensor.strides, twin.strides, strict=True))[1:]
    return tensor.shape[0] * twin.strides[0], any(n > 1 and a != b for n, a, b in others)
