"""DOT, NCCL's, ASTRA-sim's and MLX's files as readers of each format take them.

DOT is parsed by pydot. The other readers here are written from what the formats' own programs say:
NCCL's user guide (environment variables, configuration file), Open MPI's hostfiles, ASTRA-sim 2
(Sys.cc, the analytical network's and ns-3's parsers, CommunicatorGroup) and mlx.launch.
"""

from __future__ import annotations

import ipaddress
import json
import math
import random
import re
from typing import Any

import networkx as nx
import pydot
import pytest
import yaml
from support.plans import make_ring_plan
from support.small_op_graphs import random_graph, random_hybrid_strategy
from test_chakra import plan_for
from test_other_formats import plan_and_file

from torch_topoopt.plan.units import parse_gbps
from torch_topoopt.profile.chakra_format import NodeType, decode
from torch_topoopt.tools.export import astra_sim
from torch_topoopt.tools.export.custom_collectives import CustomCollectives
from torch_topoopt.tools.export.formats import FORMATS, Exported
from torch_topoopt.tools.export.graphs import dot
from torch_topoopt.tools.export.host_order import mlx_hostfile, nccl_files

SHAPES = [(3, 2), (4, 2), (4, 3), (6, 4)]


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_pydot_reads_every_server_and_cable(ports: str) -> None:
    plan = make_ring_plan(5, ports=ports)
    names = ["plain", 'a"b\\', "node", "ü", "graph"]
    (graph,) = pydot.graph_from_dot_data(dot(plan, names)) or ()
    assert graph.get_type() == ("graph" if ports == "duplex" else "digraph")
    labels = {node.get_name(): node.get("label") for node in graph.get_nodes()}
    shown = [json.loads(labels[str(i)]) for i in range(5)]  # a DOT string, as JSON quotes it
    assert shown == names
    ends = {(e.get_source(), e.get_destination()) for e in graph.get_edges()}
    links = {(str(k.source), str(k.target)) for k in plan.network.links}
    assert ends <= links
    assert len(graph.get_edges()) == len(plan.network.links) // (2 if ports == "duplex" else 1)
    for edge in graph.get_edges():
        assert re.fullmatch(r'"p\d"', edge.get("taillabel"))
        assert edge.get("label") == '"1 Gb/s"'


# ---- NCCL

# Of NCCL's user guide: name -> what its value looks like.
NCCL_VARIABLES = {
    "NCCL_ALGO": r"[\^]?(Tree|Ring|CollnetDirect|CollnetChain|NVLS|NVLSTree|PAT)(,\w+)*",
    "NCCL_CROSS_NIC": r"[012]",
    "NCCL_SOCKET_IFNAME": r"(\^|=|\^=)?[\w.-]+(:\d+)?(,[\w.-]+(:\d+)?)*",
    "NCCL_IB_SUBNET_AWARE_ROUTING": r"[01]",
    "NCCL_IB_SUBNET_PREFIX_LEN": r"\d{1,3}",
}


def read_nccl_conf(text: str) -> dict[str, str]:
    """NAME=VALUE on a line each, as /etc/nccl.conf; what follows # is a comment."""
    found = {}
    for line in text.splitlines():
        code = line.partition("#")[0].strip()
        if code:
            name, equals, value = code.partition("=")
            assert equals
            assert name not in found
            found[name] = value
    return found


def read_hostfile(text: str) -> dict[str, int]:
    """Host -> slots, of Open MPI's `mpirun --hostfile`."""
    lines = [re.fullmatch(r"([\w.-]+) slots=(\d+)", line) for line in text.splitlines()]
    return {line[1]: int(line[2]) for line in lines if line is not None or pytest.fail(text)}


@pytest.mark.parametrize(("servers", "degree"), SHAPES)
def test_nccl_knows_every_variable_and_its_values(servers: int, degree: int) -> None:
    interfaces = tuple(f"enp{i}s0f0np0" for i in range(degree))
    plan, file = plan_and_file(servers, degree, interfaces)
    files = nccl_files(plan, file)
    variables = read_nccl_conf(files["nccl.env"])
    assert {"NCCL_ALGO", "NCCL_CROSS_NIC", "NCCL_SOCKET_IFNAME"} <= variables.keys()
    for name, value in variables.items():
        assert re.fullmatch(NCCL_VARIABLES[name], value), (name, value)
    assert set(variables["NCCL_SOCKET_IFNAME"].removeprefix("=").split(",")) <= set(interfaces)
    hosts = read_hostfile(files["hosts.txt"])
    assert set(hosts) == {server.name for server in file.servers}
    assert sum(hosts.values()) == servers


# ---- MLX


@pytest.mark.parametrize(("servers", "degree"), SHAPES)
def test_mlx_s_hostfile_is_a_list_of_hosts_with_addresses(servers: int, degree: int) -> None:
    plan, file = plan_and_file(servers, degree)
    hosts = json.loads(mlx_hostfile(plan, file))
    assert isinstance(hosts, list)
    for host in hosts:
        assert host.keys() == {"ssh", "ips"}
        assert isinstance(host["ssh"], str)
        assert len({ipaddress.ip_address(ip) for ip in host["ips"]}) == len(host["ips"]) >= 1
    assert len({len(host["ips"]) for host in hosts}) == 1, (
        "the ring has as many connections per hop"
    )


# ---- ASTRA-sim

IMPLEMENTATIONS = r"oneRing|ring|(oneH|h)alvingDoubling|doubleBinaryTree|(direct|oneDirect)\d*"
# Keys of system files that Sys.cc, or an example of ASTRA-sim, has.
SYSTEM: dict[str, Any] = {
    "scheduling-policy": lambda v: v in ("LIFO", "FIFO", "EXPLICIT"),
    "collective-optimization": lambda v: v in ("baseline", "localBWAware"),
    "endpoint-delay": lambda v: isinstance(v, int) and v >= 0,
    "active-chunks-per-dimension": lambda v: isinstance(v, int) and v >= 1,
    "preferred-dataset-splits": lambda v: isinstance(v, int) and v >= 1,
    "local-mem-bw": lambda v: v > 0,
    "boost-mode": lambda v: v in (0, 1),
    "roofline-enabled": lambda v: v in (0, 1),
    "per-node-custom-implementation": lambda v: isinstance(v, str),
    **{
        f"{name}-implementation": lambda v: all(re.fullmatch(IMPLEMENTATIONS, one) for one in v)
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    },
}

NEEDED = {
    NodeType.COMP: {"is_cpu_op", "num_ops", "tensor_size"},
    NodeType.COMM_COLL: {"is_cpu_op", "comm_type", "comm_size"},
    NodeType.COMM_SEND: {"is_cpu_op", "comm_src", "comm_dst", "comm_size", "comm_tag"},
    NodeType.COMM_RECV: {"is_cpu_op", "comm_src", "comm_dst", "comm_size", "comm_tag"},
}


def read_ns3_topology(text: str) -> nx.Graph[int]:
    """Nodes, switches and links; the numbers of the switches; "a b rate delay error" a link."""
    head, switches, *lines = text.splitlines()
    nodes, switch_count, links = map(int, head.split())
    assert len(switches.split()) == switch_count
    assert len(lines) == links
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(nodes), switch=False)
    graph.add_nodes_from(map(int, switches.split()), switch=True)
    for line in lines:
        a, b, rate, delay, error = line.split()
        assert 0 <= int(a) != int(b) < nodes
        assert re.fullmatch(r"\d+(\.\d+)?[MGT]bps", rate)
        assert re.fullmatch(r"\d+(\.\d+)?(e-\d+)?(ms|us|ns)", delay)
        assert 0 <= float(error) < 1
        assert not graph.has_edge(int(a), int(b)), "ns-3 keeps one link of two nodes"
        graph.add_edge(int(a), int(b), gbps=parse_gbps(rate))
    return graph


def check_ns3(files: dict[str, str], servers: int) -> None:
    """Every host reaches every other one through switches alone, and each rate has thresholds."""
    config = {line.split()[0]: line.split()[1:] for line in files["config.txt"].splitlines()}
    graph = read_ns3_topology(files[config["TOPOLOGY_FILE"][0]])
    hosts = [node for node, of in graph.nodes.items() if not of["switch"]]
    assert hosts == list(range(servers))
    assert {graph.degree[host] for host in hosts} == {1}
    assert nx.is_connected(graph.subgraph(set(graph) - set(hosts)))
    rates = {round(gbps * 1e9) for _, _, gbps in graph.edges(data="gbps")}
    for name in ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP"):
        count, *pairs = config[name]
        assert len(pairs) == 2 * int(count)
        assert set(map(int, pairs[::2])) == rates
    assert all(files[config[name][0]] == "0\n" for name in ("FLOW_FILE", "TRACE_FILE"))


@pytest.mark.parametrize(("servers", "degree"), SHAPES)
def test_astra_sim_reads_its_configuration(servers: int, degree: int) -> None:
    plan, _ = plan_and_file(servers, degree)
    files = astra_sim.configuration(plan, CustomCollectives((), {}, {}))
    check_ns3(files, servers)
    system = json.loads(files["system.json"])
    assert system.keys() <= SYSTEM.keys()
    assert all(SYSTEM[name](value) for name, value in system.items())
    dimensions = json.loads(files["logical.json"])["logical-dims"]
    assert math.prod(map(int, dimensions)) == servers
    of_each = {len(v) for name, v in system.items() if name.endswith("-implementation")}
    assert of_each == {len(dimensions)}, "an implementation for each dimension"
    memory = json.loads(files["memory.json"])["memory-type"]
    assert memory in ("NO_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION",
                      "PER_NPU_MEMORY_EXPANSION", "MEMORY_POOL")  # fmt: skip
    if "network.yml" in files:
        network = yaml.safe_load(files["network.yml"])
        assert network.keys() == {"topology", "npus_count", "bandwidth", "latency"}
        assert {len(value) for value in network.values()} == {1}
        assert network["topology"][0] in ("Ring", "FullyConnected", "Switch")
        assert network["npus_count"] == [servers]
        assert network["bandwidth"][0] > 0
    paths = re.findall(r"--[\w-]+-configuration=([\w.]+)", files["run.txt"])
    assert set(paths) - {"workload"} <= files.keys()
    assert "system-rings.json" not in files["run.txt"]


@pytest.mark.parametrize("seed", range(3))
def test_astra_sim_knows_every_group_of_the_traces(seed: int) -> None:
    """A collective without a group is one of all ranks; others name a group that lists them.

    What Workload.cc reads of a node without a default has to be there.
    """
    rng = random.Random(seed)
    graph = random_graph(rng, 9, splits=True)
    plan = plan_for(graph, random_hybrid_strategy(rng, graph, 4), 4)
    groups = json.loads(astra_sim.configuration(plan, CustomCollectives((), {}, {}))["groups.json"])
    for name, members in groups.items():
        assert int(name) > 0, "CommunicatorGroup's numbers; 0 is nobody's"
        assert len(set(members)) == len(members) >= 2
        assert set(members) <= set(range(4))
    files = FORMATS["astra-sim"].files(Exported(plan, lambda: graph, lambda: graph))
    for rank in range(4):
        for node in decode(files[f"workload.{rank}.et"]).nodes:
            assert NEEDED[node.kind] <= node.attributes.keys()
            assert node.attributes["is_cpu_op"] is False
            if (group := node.attributes.get("pg_name")) is not None:
                assert rank in groups[group]
            elif node.kind == NodeType.COMM_COLL:
                members = [placement.servers for placement in plan.strategy]
                assert (0, 1, 2, 3) in [tuple(sorted(servers)) for servers in members]
