"""A plan's AllReduce as custom collectives of ASTRA-sim 2.

Source: github.com/astra-sim/astra-sim, astraccl/custom_collectives and CollectiveImplLookup.cc.
Such a collective is a Chakra trace of each rank, of sends, receives and reductions with fixed
sizes. So every size of an AllReduce has traces of its own, and `per-node-custom-implementation`
names them for each node of the workload.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.profile.chakra_format import ChakraNode, ChakraTrace, NodeType
from torch_topoopt.tools.export import msccl
from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Plan
    from torch_topoopt.tools.export.msccl import Algorithm, MscclStep, ThreadBlock

_FIRST_NODE = 1 << 24  # numbers of nodes above those of other nodes
_FIRST_TAG = 1 << 24
_SENDS = ("s", "rcs", "rrs", "rrcs")
_RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
_REDUCES = ("rrs", "rrc", "rrcs", "re", "cpy")


class CustomCollectives(NamedTuple):
    """`workload` with a custom collective for each AllReduce of all servers.

    `traces` are those of ranks by the name of the collective, `nodes` its name by number of node.
    `missing` is the reason why there is none.
    """

    workload: tuple[ChakraTrace, ...]
    traces: dict[str, tuple[ChakraTrace, ...]]
    nodes: dict[int, str]
    missing: str = ""


def custom_collectives(plan: Plan, workload: Sequence[ChakraTrace]) -> CustomCollectives:
    """AllReduces on the rings of the plan; those of smaller groups stay ASTRA-sim's own."""
    try:
        rings = msccl.all_reduce(plan)
    except ExportError as error:
        return CustomCollectives(tuple(workload), {}, {}, str(error).removeprefix("msccl: "))
    traces: dict[str, tuple[ChakraTrace, ...]] = {}
    names: dict[int, str] = {}
    numbered = []
    for trace in workload:
        nodes = []
        number = _FIRST_NODE  # equal on all ranks, which have these nodes in one order
        for node in trace.nodes:
            if node.kind == NodeType.COMM_COLL and "pg_name" not in node.attributes:
                size = int(node.attributes["comm_size"])
                names[number] = f"all_reduce_{size}"
                if names[number] not in traces:
                    tag = _FIRST_TAG + len(traces) * msccl.MOST_CHANNELS
                    traces[names[number]] = chakra_of(rings, size, tag)
                node = replace(node, number=number)
                number += 1
            nodes.append(node)
        numbered.append(replace(trace, nodes=tuple(nodes)))
    return CustomCollectives(tuple(numbered), traces, names)


def chakra_of(algorithm: Algorithm, size_bytes: int, tag: int) -> tuple[ChakraTrace, ...]:
    """The algorithm on buffers of `size_bytes`: the trace of every rank.

    A message has the tag `tag` + its channel.
    """
    found = []
    for gpu in algorithm.gpus:
        nodes: list[ChakraNode] = []
        last: dict[tuple[int, int], int] = {}  # (thread block, step) -> its last node
        waits: list[tuple[int, tuple[int, int]]] = []
        for b, block in enumerate(gpu.blocks):
            first = len(nodes)
            for s, step in enumerate(block.steps):
                size = -(-size_bytes * step.count // gpu.inputs)
                if step.wait is not None:
                    waits.append((len(nodes), step.wait))
                for name, kind, values in _parts(block, step, size, tag):
                    number = len(nodes)
                    after = () if number == first else (number - 1,)
                    attributes = {"is_cpu_op": False, **values}
                    title = f"{name} {b}.{s}"
                    nodes.append(ChakraNode(number, title, kind, after, attributes=attributes))
                last[b, s] = len(nodes) - 1
        for waiting, awaited in waits:
            node = nodes[waiting]
            deps = tuple(sorted({*node.data_deps, last[awaited]}))
            nodes[waiting] = replace(node, data_deps=deps)
        found.append(ChakraTrace(tuple(nodes)))
    return tuple(found)


def _parts(
    block: ThreadBlock, step: MscclStep, size: int, tag: int
) -> list[tuple[str, NodeType, dict[str, int]]]:
    """The operations of a step, in their order."""
    message = {"comm_size": size, "comm_tag": tag + block.channel}
    parts: list[tuple[str, NodeType, dict[str, int]]] = []
    if step.kind in _RECEIVES:
        parts.append(("receive", NodeType.COMM_RECV, {**message, "comm_src": block.receive}))
    if step.kind in _REDUCES:
        parts.append(("reduce", NodeType.COMP, {"num_ops": size, "tensor_size": size}))
    if step.kind in _SENDS:
        parts.append(("send", NodeType.COMM_SEND, {**message, "comm_dst": block.send}))
    return parts
