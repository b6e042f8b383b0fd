"""Execution traces of PyTorch (ExecutionTraceObserver), alone or linked with a Kineto trace.

A node has the id of its parent in `ctrl_deps`, and ids grow in the order of starts. Tensors have
identities, so operators have the operands of the model. There are no times: they come from the
Kineto trace of the same run, whose operations have the same record function id (`rf_id`), or from
estimates. Chakra's `chakra_trace_link` writes such times into the nodes (`inclusive_dur`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch_topoopt.plan.file_kinds import EXECUTION_TRACE
from torch_topoopt.profile.kineto import read_events
from torch_topoopt.profile.profiling import ProfileError
from torch_topoopt.profile.recorded_events import (
    BACKWARD,
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
    from collections.abc import Iterator

    from torch_topoopt.op_graph import OpGraph

_USER_SCOPE = 7  # at::RecordScope: record_function, steps, threads
_BACKWARD_SCOPE = 1
_LIST, _TENSOR = "GenericList[", "Tensor("
_KERNEL = "kernel"


def load_execution_trace(
    path: str | os.PathLike[str], batch_size: int, kineto: str | os.PathLike[str] | None = None
) -> OpGraph:
    """The OpGraph of an execution trace of training with `batch_size` samples on one accelerator.

    Of several steps (profiler.step()) the last counts. Operators have times if `kineto` is the
    Kineto trace of the same run, or if the nodes have them. Raises ProfileError, OSError.
    """
    nodes = read_trace(path, EXECUTION_TRACE, "nodes")
    try:
        recorded = [_Node.of(raw) for raw in sorted(nodes, key=lambda raw: raw["id"])]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ProfileError(
            f"{path}: not a {EXECUTION_TRACE} of schema 1.0.2 or newer: a node without {error}"
        ) from None
    outermost = _nested(recorded)
    timed = kineto is not None or all(event.seconds for event in outermost)
    try:
        if kineto is not None:
            _link(recorded, kineto)
        return graph_of_events(outermost, trace_name(path), batch_size, measured=timed)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


class _Node(NamedTuple):
    """A node: its event, and what relates it to other nodes."""

    number: int
    parent: int
    scope: int
    record_id: int
    is_kernel: bool
    event: RecordedEvent

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        values = {entry["name"]: entry["value"] for entry in raw["attrs"]}
        number = values["seq_id"]
        event = RecordedEvent(
            raw["name"],
            raw["id"],
            number if number >= 0 else None,
            list(_tensors(raw["inputs"])),
            list(_tensors(raw["outputs"])),
            seconds=raw.get("inclusive_dur", 0) / 1e6,
        )
        kernel = raw.get("cat") == _KERNEL
        return cls(raw["id"], raw["ctrl_deps"], values["scope"], values["rf_id"], kernel, event)


def _nested(nodes: list[_Node]) -> list[RecordedEvent]:
    """The outermost operations of the last step; all operations contain their nested ones."""
    starts = [node.number for node in nodes if node.event.name.startswith(STEP)]
    passes = [node.number for node in nodes if node.event.name.startswith(BACKWARD)]
    begin = max((start for start in starts if passes and start < passes[-1]), default=-1)
    end = min((start for start in starts if start > begin), default=math.inf)
    operations = {node.number: node for node in nodes if node.scope != _USER_SCOPE}
    outermost = []
    for node in operations.values():
        parent = operations.get(node.parent)
        if node.is_kernel:
            if parent is not None:
                parent.event.kernel_s += node.event.seconds
        elif parent is None:
            if begin < node.number < end:
                outermost.append(node.event)
        else:
            parent.event.inside.append(node.event)
            if node.scope == _BACKWARD_SCOPE and parent.event.name.startswith(BACKWARD):
                parent.event.number = node.event.number
    return outermost


def _link(nodes: list[_Node], kineto: str | os.PathLike[str]) -> None:
    """Gives operations the times of a Kineto trace. Raises ProfileError, OSError."""
    _, by_id = read_events(kineto)
    for node in nodes:
        if node.scope == _USER_SCOPE:
            continue
        timed = by_id.get(node.record_id)
        if timed is None or timed.name != node.event.name:
            found = "missing" if timed is None else timed.name
            raise ProfileError(
                f"operation {node.record_id} is {node.event.name}, but {found} in {kineto}; both "
                "files must be of one run (profile(execution_trace_observer=...))"
            )
        node.event.seconds, node.event.kernel_s = timed.seconds, timed.kernel_s


def _tensors(values: dict[str, Any]) -> Iterator[RecordedTensor]:
    """The tensors of a node, also those in lists."""
    for value, shape, kind in zip(values["values"], values["shapes"], values["types"], strict=True):
        yield from _of_type(value, shape, kind)


def _of_type(value: Any, shape: Any, kind: str) -> Iterator[RecordedTensor]:
    if kind.startswith(_LIST):
        kinds = kind[len(_LIST) : -1].split(",")
        for inner in zip(value, shape, kinds, strict=False):
            yield from _of_type(*inner)
    elif kind.startswith(_TENSOR) and (item := kind[len(_TENSOR) : -1]) in ITEM_BYTES:
        yield RecordedTensor(tuple(shape), item, value[0], value[1])
