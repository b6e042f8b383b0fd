"""Chakra traces: the bytes are the schema's, and an iteration moves the plan's demand."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from support.refusals import refused
from support.small_op_graphs import chain, random_graph, random_hybrid_strategy

from torch_topoopt.plan import Cluster, Plan
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.chakra_format import (
    ChakraNode,
    ChakraTrace,
    CollectiveType,
    NodeType,
    decode,
    encode,
)
from torch_topoopt.profile.chakra_import import op_graph_of
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.tools.export import astra_sim
from torch_topoopt.tools.export.chakra import group_names, traces
from torch_topoopt.tools.export.custom_collectives import CustomCollectives
from torch_topoopt.tools.export.errors import ExportError
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.strategies import Strategy


def plan_for(graph: OpGraph, strategy: Strategy, servers: int, degree: int = 2) -> Plan:
    cluster = Cluster(servers, max(1, min(degree, servers - 1)), 10.0).validate()
    asked = demand(graph, strategy, servers)
    network = find_network(cluster, asked)
    plan = Plan.of_network(cluster, network, asked, model=graph.model)
    return replace(plan, batch_size=graph.batch_size, strategy=strategy).validate()


def random_case(seed: int) -> tuple[Plan, OpGraph]:
    rng = random.Random(seed)
    graph = random_graph(rng, 9, splits=True)
    return plan_for(graph, random_hybrid_strategy(rng, graph, 4), 4), graph


@pytest.mark.parametrize("seed", range(6))
def test_traces_move_the_demand_of_the_plan(seed: int) -> None:
    plan, graph = random_case(seed)
    found = traces(plan, graph)
    names = group_names(plan)
    reduced: Counter[str] = Counter()
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for server, trace in enumerate(found):
        for node in trace.nodes:
            what = node.attributes
            if node.kind == NodeType.COMM_COLL:
                assert what["comm_type"] == CollectiveType.ALL_REDUCE
                members = next(s for s, name in names.items() if name == what["pg_name"])
                assert server in members
                if server == members[0]:
                    reduced[str(what["pg_name"])] += int(what["comm_size"])
            elif node.kind == NodeType.COMM_SEND:
                assert what["comm_src"] == server
                sent[server, int(what["comm_dst"])] += int(what["comm_size"])
    asked = {names[group.servers]: group.size_bytes for group in plan.demand.groups}
    assert reduced == asked
    pairs = {(pair.source, pair.target): pair.size_bytes for pair in plan.demand.pairs}
    assert sent.keys() == pairs.keys()
    messages = max(1, max(len(trace.nodes) for trace in found))
    assert all(abs(sent[pair] - size) <= messages for pair, size in pairs.items())  # rounded each


@pytest.mark.parametrize("seed", range(6))
def test_traces_can_be_run_to_their_end(seed: int) -> None:
    """No node waits for itself in a circle, across ranks; each send has its receive; all ranks of
    a group have its AllReduces in one order."""
    plan, graph = random_case(seed)
    found = traces(plan, graph)
    order: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    ends: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    reduces: dict[tuple[str, int], list[str]] = defaultdict(list)
    for server, trace in enumerate(found):
        assert [node.number for node in trace.nodes] == list(range(len(trace.nodes)))
        for node in trace.nodes:
            order.add_node((server, node.number))
            order.add_edges_from(((server, d), (server, node.number)) for d in node.data_deps)
            what = node.attributes
            if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                message = tuple(what[n] for n in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                ends[message].append((server, node.number))
            if node.kind == NodeType.COMM_COLL:
                reduces[str(what["pg_name"]), server].append(node.name)
    for places in ends.values():
        (a, b) = places
        order.add_edge(*((a, b) if found[a[0]].nodes[a[1]].kind == NodeType.COMM_SEND else (b, a)))
    assert nx.is_directed_acyclic_graph(order)
    for name in {name for name, _ in reduces}:
        assert len({tuple(v) for (n, _), v in reduces.items() if n == name}) == 1


def test_a_data_parallel_chain_computes_forward_then_backward() -> None:
    graph = chain(3)
    strategy = data_parallel(graph, 4)
    trace = traces(plan_for(graph, strategy, 4), graph)[0]
    assert [node.name.split()[0] for node in trace.nodes] == [
        *("forward",) * 3,
        *("backward", "all_reduce") * 3,
    ]
    compute = [node for node in trace.nodes if node.kind == NodeType.COMP]
    assert [node.attributes["num_ops"] for node in compute[:3]] == [10**9 // 4] * 3
    assert all(node.duration_us > 0 for node in compute)


def test_a_pipeline_is_refused() -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, 2), 2)
    with refused(ExportError, 2, "micro-batches"):
        traces(replace(plan, micro_batches=2), graph)


NODE = ChakraNode(
    7, "comm", NodeType.COMM_COLL, (1, 300), (2,), 5, 6,
    {"comm_size": -(1 << 40), "is_cpu_op": False, "share": 0.5, "pg_name": "0"},
)  # fmt: skip


def test_what_is_written_is_read() -> None:
    trace = ChakraTrace((NODE, replace(NODE, number=8, attributes={})), attributes={"rank": 3})
    assert decode(encode(trace)) == trace
    assert decode(gzip.compress(encode(trace))) == trace


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def of_field(number: int, value: int | bytes | float) -> bytes:
    """A field on the wire, after protobuf's encoding page."""
    if isinstance(value, float):
        return varint(number * 8 + 1) + struct.pack("<d", value)
    if isinstance(value, bytes):
        return varint(number * 8 + 2) + varint(len(value)) + value
    return varint(number * 8) + varint(value % 2**64)


def test_the_bytes_are_those_of_the_schema() -> None:
    """Field numbers of et_def.proto, encoded here by hand; one that is not known is skipped."""
    attributes = [
        of_field(1, b"comm_size") + of_field(9, -(1 << 40)),
        of_field(1, b"is_cpu_op") + of_field(27, 0),
        of_field(1, b"share") + of_field(3, 0.5),
        of_field(1, b"pg_name") + of_field(29, b"0"),
    ]
    node = b"".join([
        of_field(1, 7), of_field(2, b"comm"), of_field(3, 7), of_field(4, varint(2)),
        of_field(5, varint(1) + varint(300)), of_field(6, 6), of_field(7, 5),
        *(of_field(10, attribute) for attribute in attributes), of_field(11, b""),
    ])  # fmt: skip
    metadata = of_field(1, b"0.0.4")
    data = b"".join(varint(len(part)) + part for part in (metadata, node))
    assert decode(data) == ChakraTrace((NODE,), "0.0.4")
    assert encode(ChakraTrace((NODE,), "0.0.4")) == data[: len(metadata) + 1] + varint(
        len(node) - 2
    ) + node.removesuffix(of_field(11, b""))


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"", ("empty",)),
        (b"\x05ab", ("message", 5)),
        (b"\xff" * 9, ("length", "message")),
        (b"\x02\x0a\x05", ("message 0",)),
        (b"\x1f\x8bnonsense", ("broken", "gzip")),
        (encode(ChakraTrace(()))[:] + b"\x02\x18\x63", ("type 99",)),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        decode(data)


def configuration(plan: Plan) -> dict[str, str]:
    return astra_sim.configuration(plan, CustomCollectives((), {}, {}, "no rings here"))


def test_the_ns3_topology_has_a_switch_for_each_server_and_every_cable() -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, 6), 6)
    files = configuration(plan)
    head, switches, *lines = files["topology.txt"].splitlines()
    assert head == "12 6 12"
    assert switches == "6 7 8 9 10 11"
    words = [line.split() for line in lines]
    own, cables = words[:6], words[6:]
    assert [line[:3] for line in own] == [[str(i), str(6 + i), "20Gbps"] for i in range(6)]
    ends = {(int(a) - 6, int(b) - 6) for a, b, *_ in cables}
    assert ends == {(k.source, k.target) for k in plan.network.links if k.source < k.target}
    assert {tuple(line[2:]) for line in cables} == {("10Gbps", "0.001ms", "0")}
    assert "KMIN_MAP 2 10000000000 40 20000000000 80\n" in files["config.txt"]
    assert "topology: [ Ring ]\nnpus_count: [ 6 ]\nbandwidth: [ 1.25 ]" in files["network.yml"]
    for name in ("system.json", "memory.json", "logical.json", "groups.json"):
        assert isinstance(json.loads(files[name]), dict)


def test_networks_that_the_analytical_model_lacks_have_no_file_for_it() -> None:
    graph = chain(2)
    plan = plan_for(graph, data_parallel(graph, 6), 6)
    wide = replace(plan.cluster, degree=4)
    network = find_network(wide, plan.demand)
    files = configuration(replace(plan, cluster=wide, network=network))
    assert "network.yml" not in files
    assert "analytical backend does not have this network" in files["limits.txt"]
    assert "no rings here" in files["limits.txt"]
    full = replace(plan.cluster, degree=5)
    network = find_network(full, plan.demand)
    files = configuration(replace(plan, cluster=full, network=network))
    assert "FullyConnected" in files["network.yml"]
    assert "does not have" not in files["limits.txt"]


def test_a_trace_becomes_the_operators_of_its_rank() -> None:
    graph = chain(3)
    trace = traces(plan_for(graph, data_parallel(graph, 4), 4), graph)[1]
    again = op_graph_of(decode(encode(trace)), "again", graph.batch_size // 4)
    assert [o.name for o in again.operators] == [o.name for o in graph.operators]
    for found, original in zip(again.operators, graph.operators, strict=True):
        assert found.forward_flops == original.forward_flops // 4
        assert found.backward_flops == original.backward_flops // 4
        assert found.parameter_gradient_bytes == original.parameter_gradient_bytes
        assert found.measured[0].forward_s > 0


def test_backward_nodes_of_pytorch_keep_their_order() -> None:
    names = ["aten::linear", "aten::relu", "ReluBackward0", "AddmmBackward0", "AddmmBackward0"]
    nodes = [ChakraNode(i, name, NodeType.COMP, duration_us=10 + i) for i, name in enumerate(names)]
    reduce = {"comm_type": int(CollectiveType.ALL_REDUCE), "comm_size": 64}
    nodes.append(ChakraNode(9, "nccl", NodeType.COMM_COLL, (3,), attributes=reduce))
    graph = op_graph_of(ChakraTrace(tuple(nodes)), "foreign", 8)
    assert [o.name for o in graph.operators] == [
        *("aten::linear", "aten::relu", "AddmmBackward0", "AddmmBackward0.2", "ReluBackward0")
    ]
    backward_us = [round(o.measured[0].backward_s * 1e6) for o in reversed(graph.operators)]
    assert backward_us == [12, 13, 14, 0, 0]
    assert [o.parameter_gradient_bytes for o in graph.operators] == [0, 0, 0, 64, 0]


def test_a_trace_that_computes_nothing_is_refused() -> None:
    with refused(DocumentError, "COMP"):
        op_graph_of(ChakraTrace(()), "empty", 1)
