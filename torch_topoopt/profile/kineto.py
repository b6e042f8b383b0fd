"""Kineto traces, as written by torch.profiler's export_chrome_trace.

Events of category cpu_op are nested by time on a thread. Those with autograd have a sequence
number, and a backward node, "autograd::engine::evaluate_function: ...", has the number of its
forward operation. Times are those of the operations, and of their GPU kernels.

A trace has no data flow, so operators form a chain. Shapes need record_shapes=True.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.file_kinds import KINETO_TRACE
from torch_topoopt.profile.profiling import ProfileError
from torch_topoopt.profile.recorded_events import (
    ITEM_BYTES,
    STEP,
    RecordedEvent,
    RecordedTensor,
    graph_of_events,
    read_trace,
    trace_name,
)

if TYPE_CHECKING:
    import os

    from torch_topoopt.op_graph import OpGraph


def load_trace(path: str | os.PathLike[str], batch_size: int) -> OpGraph:
    """The OpGraph of a trace of training with `batch_size` samples in an iteration, on one
    accelerator; of several steps (profiler.step()) that of the last.

    Measured times stand in each operator, on one whole batch. Raises ProfileError for a file that
    is not such a trace, or has no backward pass; OSError as `open`.
    """
    outermost, _ = read_events(path, last_step=True)
    try:
        return graph_of_events(outermost, trace_name(path), batch_size, measured=True)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def read_events(
    path: str | os.PathLike[str], *, last_step: bool = False
) -> tuple[list[RecordedEvent], dict[int, RecordedEvent]]:
    """The outermost operations of a trace, and all of them by their record function id.

    Raises ProfileError, OSError.
    """
    events = read_trace(path, KINETO_TRACE, "traceEvents")
    try:
        return _nested([event for event in events if event.get("ph") == "X"], last_step)
    except (KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path}: not a Kineto trace: an event without {error}") from None


def _nested(
    complete: list[dict[str, Any]], last_step: bool
) -> tuple[list[RecordedEvent], dict[int, RecordedEvent]]:
    kernels: dict[int, float] = {}
    for raw in complete:
        if raw.get("cat") == "kernel":
            started_by = raw["args"].get("External id")
            kernels[started_by] = kernels.get(started_by, 0.0) + raw["dur"] / 1e6
    steps = [e for e in complete if str(e.get("name")).startswith(STEP)]
    if steps and last_step:
        last = max(steps, key=lambda e: e["ts"])
        begin, end = last["ts"], last["ts"] + last["dur"]
        complete = [e for e in complete if begin <= e["ts"] < end]
    operations = [e for e in complete if e.get("cat") == "cpu_op"]
    outermost: list[RecordedEvent] = []
    by_id: dict[int, RecordedEvent] = {}
    open_on: dict[object, list[tuple[float, RecordedEvent]]] = {}
    for raw in sorted(operations, key=lambda e: (e["ts"], -e["dur"])):
        arguments = raw.get("args", {})
        event = RecordedEvent(
            raw["name"],
            raw["ts"],
            arguments.get("Sequence number"),
            _tensors(arguments),
            seconds=raw["dur"] / 1e6,
            kernel_s=kernels.get(arguments.get("External id"), 0.0),
        )
        stack = open_on.setdefault((raw.get("pid"), raw.get("tid")), [])
        while stack and stack[-1][0] <= raw["ts"]:
            stack.pop()
        (stack[-1][1].inside if stack else outermost).append(event)
        stack.append((raw["ts"] + raw["dur"], event))
        by_id[arguments.get("Record function id", 0)] = event
    return outermost, by_id


def _tensors(arguments: dict[str, Any]) -> list[RecordedTensor]:
    """Every tensor that an operation reads."""
    shapes, types = arguments.get("Input Dims", []), arguments.get("Input type", [])
    return [
        RecordedTensor(tuple(shape), kind)
        for shape, kind in zip(shapes, types, strict=False)
        if kind in ITEM_BYTES and all(isinstance(size, int) for size in shape)
    ]
