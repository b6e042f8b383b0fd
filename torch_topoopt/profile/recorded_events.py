"""An OpGraph of the operations that PyTorch recorded in one iteration of training.

Operations are nested. An operator is an outermost forward operation with all backward nodes of its
autograd numbers. A gradient of parameters ("torch::autograd::AccumulateGrad") belongs to the
operator of the last numbered backward node before it.

If tensors have identities, operands follow them, and a view is part of the operation that reads it.
Otherwise operators form a chain.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_topoopt.op_graph import MeasuredCost, Operand, Operator, OpGraph
from torch_topoopt.plan.file_kinds import GZIP_FILE, wrong_content, wrong_kind
from torch_topoopt.profile.profiling import ProfileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

BACKWARD = "autograd::engine::evaluate_function: "
STEP = "ProfilerStep#"
ITEM_BYTES = {
    "double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_GRADIENT = "torch::autograd::AccumulateGrad"
_FLOATING = ("double", "float", "c10::")
_MATRIX_PRODUCTS = ("aten::linear", "aten::addmm", "aten::mm", "aten::matmul", "aten::bmm")
_ATTENTION = "aten::scaled_dot_product_attention"
_CONVOLUTION = "aten::convolution"


class RecordedTensor(NamedTuple):
    """A tensor that an operation reads or writes; `identity` is 0 if it is unknown."""

    shape: tuple[int, ...]
    kind: str
    identity: int = 0
    storage: int = 0

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.kind]


@dataclass
class RecordedEvent:
    """An operation: `start` orders events, `number` is autograd's sequence number.

    `kernel_s` is the time of the GPU kernels that it started itself, without nested operations.
    """

    name: str
    start: float
    number: int | None
    inputs: list[RecordedTensor]
    outputs: list[RecordedTensor] = field(default_factory=list)
    seconds: float = 0.0
    kernel_s: float = 0.0
    inside: list[RecordedEvent] = field(default_factory=list)

    def everything(self) -> Iterable[RecordedEvent]:
        """This event and all nested ones."""
        yield self
        for event in self.inside:
            yield from event.everything()

    @property
    def numbers(self) -> set[int]:
        """The numbers of this event and of all nested ones."""
        return {event.number for event in self.everything() if event.number is not None}

    @property
    def is_view(self) -> bool:
        """Whether it computes nothing: its results are in the storage of its inputs."""
        storages = {tensor.storage for tensor in self.inputs}
        return (
            bool(self.outputs)
            and not self.name.endswith("_")
            and all(tensor.identity and tensor.storage in storages for tensor in self.outputs)
        )


def read_trace(path: str | os.PathLike[str], kind: str, field: str) -> list[dict[str, Any]]:
    """The list `field` of a JSON file, gzipped or not. Raises ProfileError; OSError as `open`."""
    data = Path(path).read_bytes()
    try:
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        document = json.loads(text)
    except (OSError, EOFError, ValueError) as error:
        problem = wrong_kind(path, kind, GZIP_FILE) or f"not a {kind}: {error}"
        raise ProfileError(f"{path}: {problem}") from None
    found = document.get(field) if isinstance(document, dict) else None
    if not isinstance(found, list):
        problem = wrong_content(text, kind) or f"not a {kind}: it has no list {field}"
        raise ProfileError(f"{path}: {problem}")
    return found


def trace_name(path: str | os.PathLike[str]) -> str:
    """The name of the model in a trace, which has none: that of the file."""
    return Path(path).name.partition(".")[0]


def graph_of_events(
    outermost: list[RecordedEvent], model: str, batch_size: int, *, measured: bool
) -> OpGraph:
    """The OpGraph of outermost events in the order of their starts.

    With `measured`, operators have the times of their events, or of their kernels if there are any.
    """
    passes = [event for event in outermost if event.name.startswith(BACKWARD)]
    forward = [event for event in outermost if not event.name.startswith(BACKWARD)]
    backward = _backward_of(forward, passes)
    flow = _DataFlow(batch_size, linked=any(event.outputs for event in outermost))
    made: list[Operator] = []
    gradients = _gradients(passes)
    on_gpu = any(inner.kernel_s for event in outermost for inner in event.everything())
    for event in forward:
        if not backward[id(event)]:
            flow.skip(event)
            continue
        if event.is_view:
            flow.view(event)
            continue
        parts = flow.parts(event)
        back = [node for part in parts for node in backward[id(part)]]
        operator = flow.operator(event, len(made))
        parameters = sum(gradients.get(node.number, 0) for node in back if node.number is not None)
        times = MeasuredCost(1.0, _seconds(parts, on_gpu), _seconds(back, on_gpu, but=_GRADIENT))
        made.append(
            replace(
                operator,
                parameter_bytes=parameters,
                parameter_gradient_bytes=parameters,
                measured=(times,) if measured else (),
            )
        )
    _check(made, batch_size)
    number_format = _number_format(outermost)
    graph = OpGraph(OpGraph.VERSION, model, batch_size, flow.finished(made))
    return replace(graph, number_format=number_format).validate()


def _backward_of(
    forward: list[RecordedEvent], passes: list[RecordedEvent]
) -> dict[int, list[RecordedEvent]]:
    """id of a forward event -> its backward nodes.

    An operation has the next number, and only a node uses it up. So the last one with a number made
    the node; others before it have no gradient, such as the count of batches of BatchNorm.
    """
    of_number: dict[int, list[RecordedEvent]] = {}
    for event in passes:
        if event.number is not None:
            of_number.setdefault(event.number, []).append(event)
    return {
        id(event): [n for number in sorted(event.numbers) for n in of_number.pop(number, ())]
        for event in reversed(forward)
    }


def _check(made: list[Operator], batch_size: int) -> None:
    if not made:
        raise ProfileError(
            "no operation with a backward pass; profile forward and backward of an iteration"
        )
    if not any(operator.splittable for operator in made):
        raise ProfileError(
            f"batch-size: no operation reads a tensor whose first dimension is {batch_size}; "
            "give the samples of the recorded iteration, and record shapes (record_shapes=True)"
        )


def _number_format(events: list[RecordedEvent]) -> Any:
    """That of most bytes of the parameters' gradients."""
    sizes: Counter[str] = Counter()
    for event in events:
        for node in event.everything():
            if node.name == _GRADIENT and node.inputs:
                kind = node.inputs[0].kind
                sizes["bf16" if ITEM_BYTES[kind] == 2 else "fp32"] += node.inputs[0].size_bytes
    return max(sizes, key=sizes.__getitem__, default="fp32")


class _DataFlow:
    """Operators, and which of them made which tensor."""

    def __init__(self, batch_size: int, *, linked: bool) -> None:
        self._batch_size, self._linked = batch_size, linked
        self._makers: dict[int, int] = {}  # identity of a tensor -> operator
        self._of_storage: dict[int, int] = {}
        self._views: dict[int, list[RecordedEvent]] = {}  # identity -> views not read yet
        self._reads: list[list[tuple[int, RecordedTensor]]] = []
        self._of_batch: list[bool] = []

    def skip(self, event: RecordedEvent) -> None:
        """Notes an operation without a backward pass."""
        read = {tensor.storage for tensor in event.inputs}
        for tensor in event.outputs:
            maker = self._of_storage.get(tensor.storage) if tensor.storage in read else None
            self._note(tensor, maker)

    def view(self, event: RecordedEvent) -> None:
        """Notes a view, which becomes part of the operator that reads it first."""
        maker = next((m for t in event.inputs if (m := self._maker(t)) is not None), None)
        parts = self.parts(event)
        for tensor in event.outputs:
            self._note(tensor, maker)
            self._views[tensor.identity] = parts

    def parts(self, event: RecordedEvent) -> list[RecordedEvent]:
        """The event, after the views that it is the first to read."""
        found = []
        for tensor in event.inputs:
            views = self._views.pop(tensor.identity, [])
            found += views
            views.clear()  # all results of one view share the list
        return [*found, event]

    def operator(self, event: RecordedEvent, index: int) -> Operator:
        """The operator of an event, without parameters and times."""
        read = [(maker, t) for t in event.inputs if (maker := self._maker(t)) is not None]
        self._reads.append(read)
        rows = self._batch_size
        self._of_batch.append(
            any(tensor.shape[:1] == (rows,) for tensor in event.inputs)
            or any(  # views join samples with their positions
                self._of_batch[maker] and tensor.shape and tensor.shape[0] % rows == 0
                for maker, tensor in read
            )
        )
        for tensor in event.outputs:
            self._note(tensor, index)
        flops = _flops(event)
        output = sum(tensor.size_bytes for tensor in event.outputs)
        return Operator(
            name=f"{event.name.removeprefix('aten::')}.{index}",
            kind=event.name,
            forward_flops=flops,
            backward_flops=2 * flops,
            parameter_bytes=0,
            parameter_gradient_bytes=0,
            output_bytes=output,
            saved_bytes=output,
            memory_bytes=output + sum(tensor.size_bytes for tensor in event.inputs),
            splittable=self._of_batch[-1],
            operands=() if self._linked else self._chained(event, index),
        )

    def finished(self, made: list[Operator]) -> tuple[Operator, ...]:
        """The operators with their operands."""
        if not self._linked:
            return _with_chained_outputs(made)
        readers = Counter(
            (maker, tensor.identity)
            for read in self._reads
            for maker, tensor in dict.fromkeys(read)
        )
        shared = {key: i + 1 for i, key in enumerate(k for k, n in readers.items() if n > 1)}
        return tuple(
            replace(
                operator,
                operands=tuple(
                    Operand(
                        maker,
                        tensor.size_bytes,
                        tensor.size_bytes if tensor.kind.startswith(_FLOATING) else 0,
                        shared.get((maker, tensor.identity), 0),
                    )
                    for maker, tensor in dict.fromkeys(read)
                ),
            )
            for operator, read in zip(made, self._reads, strict=True)
        )

    def _chained(self, event: RecordedEvent, index: int) -> tuple[Operand, ...]:
        """Without identities: the largest tensor of the batch is the previous operator's."""
        of_batch = [t.size_bytes for t in event.inputs if t.shape[:1] == (self._batch_size,)]
        read = max(of_batch, default=0)
        return (Operand(index - 1, read, read),) if index else ()

    def _maker(self, tensor: RecordedTensor) -> int | None:
        if not tensor.identity:
            return None
        return self._makers.get(tensor.identity, self._of_storage.get(tensor.storage))

    def _note(self, tensor: RecordedTensor, maker: int | None) -> None:
        """The tensor is `maker`'s from now on: PyTorch uses identities and storages again."""
        self._views.pop(tensor.identity, None)
        for known, key in ((self._makers, tensor.identity), (self._of_storage, tensor.storage)):
            known.pop(key, None)
            if maker is not None:
                known[key] = maker


def _with_chained_outputs(made: list[Operator]) -> tuple[Operator, ...]:
    """Operators of a chain: an output is the tensor that the next operator reads."""
    for i, reader in enumerate(made[1:]):
        size = reader.operands[0].size_bytes
        made[i] = replace(
            made[i],
            output_bytes=size,
            saved_bytes=size,
            memory_bytes=made[i].memory_bytes + size,
        )
    return tuple(made)


def _gradients(passes: list[RecordedEvent]) -> dict[int, int]:
    """Sequence number of a backward node -> bytes of the parameters' gradients made there."""
    numbered = [event for event in passes if event.number is not None]
    starts = [event.start for event in numbered]
    found: dict[int, int] = {}
    for event in passes:
        for node in event.everything():
            if node.name == _GRADIENT and node.inputs:
                place = bisect.bisect_right(starts, node.start) - 1
                number = numbered[place].number if place >= 0 else None
                if number is not None:
                    found[number] = found.get(number, 0) + node.inputs[0].size_bytes
    return found


def _seconds(events: list[RecordedEvent], on_gpu: bool, but: str = "") -> float:
    """The time of the events' kernels, or without any kernels in the trace, of the events."""
    if not on_gpu:
        return sum(event.seconds for event in events)
    return sum(
        inner.kernel_s for event in events for inner in event.everything() if inner.name != but
    )


def _flops(event: RecordedEvent) -> int:
    """FLOPs of matrix products, convolutions and attention by their shapes; others count 0."""
    shapes = [tensor.shape for tensor in event.inputs if len(tensor.shape) >= 2]
    if len(shapes) >= 2:
        a, b = shapes[0], shapes[1]
        if event.name in _MATRIX_PRODUCTS:
            if event.name == "aten::linear":
                return 2 * math.prod(a) * b[0]
            if event.name == "aten::addmm" and len(shapes) == 3:
                return 2 * math.prod(shapes[1]) * shapes[2][-1]
            return 2 * math.prod(a) * b[-1]
        if event.name == _ATTENTION and len(shapes) >= 3:
            return 2 * math.prod(a) * b[-2] + 2 * math.prod(a[:-1]) * math.prod(shapes[2][-2:])
        if event.name == _CONVOLUTION and event.outputs:
            return 2 * math.prod(event.outputs[0].shape) * math.prod(b[1:])
    return sum(_flops(inner) for inner in event.inside)
