"""An OpGraph of a Kineto trace, as written by torch.profiler's export_chrome_trace.

Events of category cpu_op are nested by time on a thread. Those with autograd have a sequence
number, and a backward node, "autograd::engine::evaluate_function: ...", has the number of its
forward operation. An operator is an outermost forward operation with all backward nodes of its
numbers; a gradient of parameters ("torch::autograd::AccumulateGrad") belongs to the operator of the
last backward node before it. Times are those of the operations, or of their GPU kernels if the
trace has any.

A trace has no data flow, so operators form a chain. Shapes need record_shapes=True.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.op_graph import MeasuredCost, Operand, Operator, OpGraph
from torch_topoopt.plan.file_kinds import GZIP_FILE, KINETO_TRACE, wrong_content, wrong_kind
from torch_topoopt.profile.profiling import ProfileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

_BACKWARD = "autograd::engine::evaluate_function: "
_GRADIENT = "torch::autograd::AccumulateGrad"
_STEP = "ProfilerStep#"
_ITEM_BYTES = {
    "double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
_MATRIX_PRODUCTS = ("aten::linear", "aten::addmm", "aten::mm", "aten::matmul", "aten::bmm")


@dataclass
class _TraceEvent:
    """A cpu_op; seconds, and the arguments of the trace."""

    name: str
    thread: object
    start_s: float
    end_s: float
    arguments: dict[str, Any]
    inside: list[_TraceEvent] = field(default_factory=list)

    def everything(self) -> Iterable[_TraceEvent]:
        """This event and all nested ones."""
        yield self
        for event in self.inside:
            yield from event.everything()

    @property
    def number(self) -> int | None:
        """Autograd's sequence number."""
        return self.arguments.get("Sequence number")

    @property
    def inputs(self) -> list[tuple[tuple[int, ...], int]]:
        """Shape and bytes of every tensor that is read."""
        shapes = self.arguments.get("Input Dims", [])
        types = self.arguments.get("Input type", [])
        return [
            (tuple(shape), math.prod(shape) * _ITEM_BYTES[kind])
            for shape, kind in zip(shapes, types, strict=False)
            if kind in _ITEM_BYTES and all(isinstance(size, int) for size in shape)
        ]


def load_trace(path: str | os.PathLike[str], batch_size: int) -> OpGraph:
    """The OpGraph of a trace of training with `batch_size` samples in an iteration, on one
    accelerator; of several steps (profiler.step()) that of the last.

    Measured times stand in each operator, on one whole batch. Raises ProfileError for a file that
    is not such a trace, or has no backward pass; OSError as `open`.
    """
    data = Path(path).read_bytes()
    try:
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        document = json.loads(text)
    except (OSError, EOFError, ValueError) as error:
        problem = wrong_kind(path, KINETO_TRACE, GZIP_FILE) or f"not a Kineto trace: {error}"
        raise ProfileError(f"{path}: {problem}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        problem = wrong_content(text, KINETO_TRACE)
        raise ProfileError(f"{path}: {problem or 'not a Kineto trace: it has no list traceEvents'}")
    try:
        return _graph(events, Path(path).name.partition(".")[0], batch_size)
    except (KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path}: not a Kineto trace: an event without {error}") from None
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def _graph(events: list[dict[str, Any]], model: str, batch_size: int) -> OpGraph:
    complete = [event for event in events if event.get("ph") == "X"]
    steps = [e for e in complete if str(e.get("name")).startswith(_STEP)]
    if steps:
        last = max(steps, key=lambda e: e["ts"])
        begin, end = last["ts"], last["ts"] + last["dur"]
        complete = [e for e in complete if begin <= e["ts"] < end or e.get("cat") == "kernel"]
    outermost = _nested([e for e in complete if e.get("cat") == "cpu_op"])
    kernels: dict[int, float] = {}
    for raw in complete:
        if raw.get("cat") == "kernel":
            started_by = raw["args"].get("External id")
            kernels[started_by] = kernels.get(started_by, 0.0) + raw["dur"] / 1e6
    passes = [e for e in outermost if e.name.startswith(_BACKWARD)]
    of_number: dict[int, list[_TraceEvent]] = {}
    for event in passes:
        if event.number is not None:
            of_number.setdefault(event.number, []).append(event)
    forward = [
        e
        for e in outermost
        if not e.name.startswith(_BACKWARD)
        and any(i.number in of_number for i in e.everything() if i.number is not None)
    ]
    if not forward:
        raise ProfileError(
            "no operation with a backward pass; profile forward and backward of an iteration"
        )
    gradients = _gradients(passes)
    made: list[Operator] = []
    for event in forward:
        numbers = {i.number for i in event.everything() if i.number is not None}
        back = [node for number in sorted(numbers) for node in of_number.get(number, ())]
        made.append(_operator(made, event, back, gradients, kernels, batch_size))
    for i, reader in enumerate(made[1:]):  # an output is what the next operator reads
        size = reader.operands[0].size_bytes
        made[i] = replace(
            made[i],
            output_bytes=size,
            saved_bytes=size,
            memory_bytes=made[i].memory_bytes + size,
        )
    return OpGraph(OpGraph.VERSION, model, batch_size, tuple(made)).validate()


def _nested(events: list[dict[str, Any]]) -> list[_TraceEvent]:
    """The outermost events of all threads, in the order of their beginnings."""
    outermost: list[_TraceEvent] = []
    open_on: dict[object, list[_TraceEvent]] = {}
    for raw in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        start_s, thread = raw["ts"] / 1e6, (raw.get("pid"), raw.get("tid"))
        event = _TraceEvent(
            raw["name"], thread, start_s, start_s + raw["dur"] / 1e6, raw.get("args", {})
        )
        stack = open_on.setdefault(thread, [])
        while stack and stack[-1].end_s <= start_s:
            stack.pop()
        (stack[-1].inside if stack else outermost).append(event)
        stack.append(event)
    return outermost


def _gradients(passes: list[_TraceEvent]) -> dict[int, int]:
    """Sequence number of a backward node -> bytes of the parameters' gradients made there."""
    numbered = [event for event in passes if event.number is not None]
    starts = [event.start_s for event in numbered]
    found: dict[int, int] = {}
    for event in passes:
        for node in event.everything():
            if node.name == _GRADIENT and node.inputs:
                place = bisect.bisect_right(starts, node.start_s) - 1
                number = numbered[place].number if place >= 0 else None
                if number is not None:
                    found[number] = found.get(number, 0) + node.inputs[0][1]
    return found


# parameters: what the trace has about one operation, and what came before
def _operator(
    before: list[Operator],
    event: _TraceEvent,
    back: list[_TraceEvent],
    gradients: dict[int, int],
    kernels: dict[int, float],
    batch_size: int,
) -> Operator:
    """One operator, which reads the one before it."""
    parameters = sum(gradients.get(node.number, 0) for node in back if node.number is not None)
    of_batch = [size for shape, size in event.inputs if shape and shape[0] == batch_size]
    read = max(of_batch, default=0)
    flops = _flops(event)
    return Operator(
        name=f"{event.name.removeprefix('aten::')}.{len(before)}",
        kind=event.name,
        forward_flops=flops,
        backward_flops=2 * flops,
        parameter_bytes=parameters,
        parameter_gradient_bytes=parameters,
        output_bytes=0,
        saved_bytes=0,
        memory_bytes=sum(size for _, size in event.inputs),
        splittable=bool(of_batch),
        operands=(Operand(len(before) - 1, read, read),) if before else (),
        measured=(
            MeasuredCost(1.0, _seconds([event], kernels), _seconds(back, kernels, but=_GRADIENT)),
        ),
    )


def _seconds(events: list[_TraceEvent], kernels: dict[int, float], but: str = "") -> float:
    """The time of the events' kernels, or without any kernels, of the events."""
    if not kernels:
        return sum(event.end_s - event.start_s for event in events)
    started = {
        inner.arguments.get("External id")
        for event in events
        for inner in event.everything()
        if inner.name != but
    }
    return sum(kernels.get(number, 0.0) for number in started if number is not None)


def _flops(event: _TraceEvent) -> int:
    """FLOPs of matrix products, by their shapes; other operations count 0, but have times."""
    if event.name not in _MATRIX_PRODUCTS:
        return 0
    shapes = [shape for shape, _ in event.inputs if len(shape) >= 2]
    if len(shapes) < 2:
        return 0
    a, b = shapes[0], shapes[1]
    columns = b[0] if event.name == "aten::linear" else b[-1]
    return 2 * math.prod(a) * columns
