"""DOT, GraphML, NCCL's files and MLX's hostfile, read back."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from support.plans import make_ring_plan
from support.refusals import refused

from torch_topoopt.comparison.cabling import sheets
from torch_topoopt.fabric.cluster_file.mlx_hostfile import cluster_of_hostfile
from torch_topoopt.plan import Cluster, Group, Plan, Ring
from torch_topoopt.tools.export.errors import ExportError
from torch_topoopt.tools.export.graphs import dot, graphml
from torch_topoopt.tools.export.host_order import mlx_hostfile, nccl_files, rank_order
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


def plan_and_file(
    servers: int, degree: int, interfaces: tuple[str, ...] = ()
) -> tuple[Plan, ClusterFile]:
    cluster = Cluster(servers, degree, 10.0, parallel_links=degree > servers - 1).validate()
    demand = default_demand(servers)
    plan = Plan.of_network(cluster, find_network(cluster, demand), demand, model="")
    names = sheets.Names(tuple(f"box{i}" for i in range(servers)), interfaces)
    cables = sheets.cables_of(cluster, plan.network, names)
    return plan, sheets.cluster_file(cluster, cables, names, "lab")


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_graphml_is_read_back_by_networkx(ports: str) -> None:
    plan = make_ring_plan(4, ports=ports)
    graph = nx.parse_graphml(graphml(plan), force_multigraph=True)
    links = len(plan.network.links)
    assert graph.number_of_edges() == (links // 2 if ports == "duplex" else links)
    assert graph.is_directed() == (ports == "simplex")
    assert {data["label"] for _, data in graph.nodes(data=True)} == {
        f"server {i}" for i in range(4)
    }
    assert {data["gbps"] for *_, data in graph.edges(data=True)} == {1.0}


def test_dot_has_every_cable_with_its_ports() -> None:
    plan, file = plan_and_file(4, 3)
    text = dot(plan, [server.name for server in file.servers])
    assert text.startswith("graph topoopt {")
    assert len(re.findall(r"^  \d -- \d \[taillabel=", text, re.MULTILINE)) == 6
    assert '0 [label="box0"' in text
    assert r'label="a\"b\\"' in dot(plan, ['a"b\\', "b", "c", "d"])


@pytest.mark.parametrize(("servers", "degree"), [(2, 1), (2, 3), (3, 2), (4, 2), (6, 2), (5, 4)])
def test_mlx_reads_the_ring_that_was_written(servers: int, degree: int) -> None:
    plan, file = plan_and_file(servers, degree)
    hosts = json.loads(mlx_hostfile(plan, file))
    order = rank_order(plan)
    assert [host["ssh"] for host in hosts] == [f"box{server}" for server in order]
    again = cluster_of_hostfile(hosts, "lab")
    there = {frozenset(file.ports[end][1].ip for end in cable) for cable in file.cables}
    found = {frozenset(again.ports[end][1].ip for end in cable) for cable in again.cables}
    assert found <= there
    assert len(found) >= (servers if servers > 2 else degree)


def test_mlx_needs_the_machines() -> None:
    with refused(ExportError, "--cluster"):
        mlx_hostfile(make_ring_plan(4), None)


def test_ranks_follow_a_ring_of_cables() -> None:
    plan = make_ring_plan(4)
    rings = (Ring((0, 2, 1, 3), 0.5), Ring((0, 3, 2, 1), 0.5))
    group = Group(plan.network.groups[0].servers, rings)
    assert rank_order(replace(plan, network=replace(plan.network, groups=(group,)))) == (0, 3, 2, 1)
    without = Group(group.servers, rings[:1])
    with refused(ExportError, "ring", "cable"):
        rank_order(replace(plan, network=replace(plan.network, groups=(without,))))


def test_nccl_gets_interfaces_order_and_limits() -> None:
    plan, file = plan_and_file(4, 2, ("eth1", "eth2"))
    files = nccl_files(plan, file)
    variables = dict(
        line.split("=", 1) for line in files["nccl.env"].splitlines() if not line.startswith("#")
    )
    assert variables["NCCL_SOCKET_IFNAME"] == "=eth1,eth2"
    assert variables["NCCL_ALGO"] == "Ring"
    assert files["hosts.txt"].split()[::2] == [f"box{server}" for server in rank_order(plan)]
    assert "2 of 6 pairs of hosts have no cable" in files["limits.txt"]
    assert "different rings" not in files["limits.txt"]


def test_nccl_is_told_which_rings_it_cannot_have() -> None:
    plan, file = plan_and_file(5, 4)
    text = nccl_files(plan, file)["limits.txt"]
    assert "2 different rings" in text
    assert "5 of 10 pairs of hosts with a cable carry no AllReduce" in text
    assert "forwarding" not in text


def test_without_a_cluster_file_nccl_has_no_interfaces() -> None:
    assert (
        "# NCCL_SOCKET_IFNAME: name a --cluster" in nccl_files(make_ring_plan(4), None)["nccl.env"]
    )
    assert io.StringIO(nccl_files(make_ring_plan(4), None)["hosts.txt"]).readline() == (
        "server0 slots=1\n"
    )
