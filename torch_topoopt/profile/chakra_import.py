"""An OpGraph of a Chakra trace of one rank.

A COMP node is a forward or a backward pass by its name: "forward X" and "backward X" in this
project's files, or "Backward" in PyTorch's names. The two passes of one X are one operator.
Backward nodes without a forward one become operators at the end, in reverse order, so that the
backward pass has the order of the trace. An AllReduce belongs to the operator whose backward node
it waits for. Operators form a chain with tensors of size 0, because such a trace has no sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.op_graph import MeasuredCost, Operand, Operator, OpGraph
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.chakra_format import CollectiveType, NodeType

if TYPE_CHECKING:
    from torch_topoopt.profile.chakra_format import ChakraNode, ChakraTrace


def op_graph_of(trace: ChakraTrace, model: str, batch_size: int) -> OpGraph:
    """The rank's operators for `batch_size` samples, with times from the trace.

    Raises DocumentError for a trace without computation.
    """
    nodes = [node for node in trace.nodes if node.kind == NodeType.COMP]
    if not nodes:
        raise DocumentError("Chakra: the trace has no COMP node")
    forward: dict[str, ChakraNode] = {}
    alone: list[ChakraNode] = []
    passes: dict[str, ChakraNode] = {}
    for node in nodes:
        if not _is_backward(node):
            forward[_unique(_title(node), forward)] = node
    for node in nodes:
        if _is_backward(node):
            title = _title(node)
            if title in forward and title not in passes:
                passes[title] = node
            else:
                alone.append(node)
    made = [_operator(title, node, passes.get(title)) for title, node in forward.items()]
    names = set(forward)
    owner = {passes[title].number: i for i, title in enumerate(forward) if title in passes}
    for node in reversed(alone):
        title = _unique(_title(node), names)
        names.add(title)
        owner[node.number] = len(made)
        made.append(_operator(title, None, node))
    for number, size in _reduced(trace).items():
        if number in owner:
            i = owner[number]
            made[i] = replace(made[i], parameter_bytes=size, parameter_gradient_bytes=size)
    chained = (
        replace(operator, operands=(Operand(i - 1, 0, 0),) if i else ())
        for i, operator in enumerate(made)
    )
    return OpGraph(OpGraph.VERSION, model, batch_size, tuple(chained)).validate()


def _is_backward(node: ChakraNode) -> bool:
    return node.name.startswith("backward ") or "Backward" in node.name


def _title(node: ChakraNode) -> str:
    """The name of its operator."""
    return node.name.removeprefix("forward ").removeprefix("backward ") or f"node {node.number}"


def _unique(name: str, taken: set[str] | dict[str, ChakraNode]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}.{number}"
    return unique


def _operator(name: str, forward: ChakraNode | None, backward: ChakraNode | None) -> Operator:
    flops = [_number(node, "num_ops") for node in (forward, backward)]
    seconds = [0.0 if node is None else node.duration_us / 1e6 for node in (forward, backward)]
    return Operator(
        name=name,
        kind="chakra",
        forward_flops=flops[0],
        backward_flops=flops[1],
        parameter_bytes=0,
        parameter_gradient_bytes=0,
        output_bytes=0,
        saved_bytes=0,
        memory_bytes=_number(forward or backward, "tensor_size"),
        splittable=True,
        operands=(),
        measured=(MeasuredCost(1.0, seconds[0], seconds[1]),) if any(seconds) else (),
    )


def _number(node: ChakraNode | None, name: str) -> int:
    return 0 if node is None else int(node.attributes.get(name, 0))


def _reduced(trace: ChakraTrace) -> dict[int, int]:
    """Node -> bytes of the AllReduces that wait for it."""
    found: dict[int, int] = {}
    for node in trace.nodes:
        what = node.attributes
        if node.kind == NodeType.COMM_COLL and what.get("comm_type") == CollectiveType.ALL_REDUCE:
            for before in node.data_deps[-1:]:
                found[before] = found.get(before, 0) + int(what.get("comm_size", 0))
    return found
