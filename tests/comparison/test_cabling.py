"""The cabling advisor: what plugs where, and times that the flow simulator confirms."""

from __future__ import annotations

import csv
import io
import ipaddress
import xml.etree.ElementTree as ET
from collections import Counter

import networkx as nx
import pytest
from support.refusals import refused

from figures.papers.traffic_patterns import ring_all_reduce
from torch_topoopt.architectures import topoopt
from torch_topoopt.comparison.cabling import sheets
from torch_topoopt.comparison.cabling.advice import (
    cluster_for,
    disconnecting_pairs,
    on_cables,
    on_switch,
    one_switch,
    times_on_cables,
    wire,
)
from torch_topoopt.comparison.cabling.drawing import draw_svg
from torch_topoopt.comparison.cabling.page import page_of
from torch_topoopt.comparison.cost import parts_of
from torch_topoopt.fabric.cluster.static_plan import network_of, place
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.launcher.plan.cabling_text import draw_text
from torch_topoopt.plan import Cluster, Network, Plan, cables
from torch_topoopt.sim.flows import run_program
from torch_topoopt.topology.best.network_search import DEFAULT_SEARCH
from torch_topoopt.topology.measures.figures import default_demand

SHAPES = [(2, 1), (2, 4), (3, 2), (4, 2), (4, 3), (4, 5), (5, 3), (6, 2), (16, 3)]
SVG = "{http://www.w3.org/2000/svg}"


def wired(servers: int, ports: int, gbps: float = 200.0) -> tuple[Cluster, Network]:
    cluster = cluster_for(servers, ports, gbps)
    return cluster, wire(cluster, "paper", DEFAULT_SEARCH)


def names(servers: int) -> sheets.Names:
    return sheets.Names(tuple(f"box{i}" for i in range(servers)))


@pytest.mark.parametrize(("servers", "ports"), SHAPES)
def test_every_sheet_names_every_cable_and_each_port_once(servers: int, ports: int) -> None:
    cluster, network = wired(servers, ports)
    found = sheets.cables_of(cluster, network, names(servers))
    ends = [end.place for cable in found for end in cable.ends]
    assert len(found) == len(network.links) // 2 == (servers * ports) // 2
    assert len(set(ends)) == len(ends)
    assert max(Counter(end.partition(":")[0] for end in ends).values()) <= ports
    addresses = [ipaddress.IPv4Interface(end.address) for cable in found for end in cable.ends]
    assert len({a.ip for a in addresses}) == len(ends)
    assert len({a.network for a in addresses}) == len(found)
    labels = list(csv.DictReader(io.StringIO(sheets.labels_csv(found))))
    assert sorted(row["this_end"] for row in labels) == sorted(ends)
    there = {row["this_end"]: row["other_end"] for row in labels}
    assert all(there[there[end]] == end != there[end] for end in ends)
    assert len(list(csv.DictReader(io.StringIO(sheets.cables_csv(found))))) == len(found)


@pytest.mark.parametrize(("servers", "ports"), SHAPES)
def test_the_cluster_file_carries_the_plan(servers: int, ports: int) -> None:
    """Read back, it has the same cables, and `topoopt run --plan --cluster` finds each of them."""
    cluster, network = wired(servers, ports)
    found = sheets.cables_of(cluster, network, names(servers))
    written = sheets.cluster_file(cluster, found, names(servers), "lab").to_yaml()
    file = ClusterFile.from_yaml(written)
    plan = Plan.of_network(cluster, network, default_demand(servers), model="")
    place(plan, file)
    again = network_of(file)
    ends = [Counter((k.source, k.target) for k in one.links) for one in (network, again)]
    assert ends[0] == ends[1]


def test_interfaces_are_in_the_cluster_file() -> None:
    cluster, network = wired(3, 2)
    named = sheets.Names(("a", "b", "c"), ("eth1", "eth2"))
    found = sheets.cables_of(cluster, network, named)
    file = sheets.cluster_file(cluster, found, named, "lab")
    assert [[port.interface for port in s.ports] for s in file.servers] == [["eth1", "eth2"]] * 3


def test_a_subnet_that_is_too_small_is_refused() -> None:
    cluster, network = wired(6, 2)
    with refused(ValueError, "subnet", "10.0.0.0/28", 4, 6):
        sheets.cables_of(cluster, network, names(6), ipaddress.IPv4Network("10.0.0.0/28"))


@pytest.mark.parametrize(
    ("servers", "ports", "tokens"),
    [
        (1, 2, ("servers", 2)),
        (3, 0, ("degree", 1)),
        (3, 1, ("degree", 1)),
    ],
)
def test_what_cannot_be_cabled_is_refused(
    servers: int, ports: int, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        cluster_for(servers, ports, 1.0)


@pytest.mark.parametrize(("servers", "ports"), [(2, 1), (3, 2), (4, 2), (4, 3), (6, 2)])
def test_all_reduce_takes_what_the_flow_simulator_says(servers: int, ports: int) -> None:
    cluster, network = wired(servers, ports)
    topology = topoopt.topology_of(cluster, network)
    size_bytes = 1e8
    orders = [ring.servers for ring in network.groups[0].rings]
    program = ring_all_reduce(topology, orders, size_bytes)
    simulated = run_program(program.program, level="flow").completion_s
    (predicted,) = times_on_cables(cluster, network, [size_bytes]).all_reduce_s
    assert predicted == pytest.approx(simulated, rel=1e-3)


def test_all_to_all_on_a_mesh_is_one_part_over_each_cable() -> None:
    cluster, network = wired(4, 3, gbps=8.0)  # 1 GB/s
    (seconds,) = times_on_cables(cluster, network, [4e9]).all_to_all_s
    assert seconds == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("servers", "ports"), SHAPES)
def test_a_cable_disconnects_where_the_graph_without_it_falls_apart(
    servers: int, ports: int
) -> None:
    cluster, network = wired(servers, ports)
    slow = set()
    for lost in cables(cluster, network):
        left = [k for i, k in enumerate(network.links) if i not in lost]
        graph: nx.Graph[int] = nx.Graph([(k.source, k.target) for k in left])
        graph.add_nodes_from(range(servers))
        if not nx.is_connected(graph):
            link = network.links[lost[0]]
            slow.add((min(link.source, link.target), max(link.source, link.target)))
    assert disconnecting_pairs(servers, network) == sorted(slow)
    assert bool(slow) == ((servers, ports) == (2, 1))


def test_a_switch_has_the_bandwidth_of_its_ports_and_costs_them() -> None:
    cluster, network = wired(4, 3)
    cabled = on_cables(cluster, network, [1e9])
    whole, single = on_switch(cluster, 3, [1e9]), on_switch(cluster, 1, [1e9])
    assert whole.times.all_reduce_s == pytest.approx(cabled.times.all_reduce_s, rel=1e-3)
    assert single.times.all_reduce_s[0] == pytest.approx(3 * whole.times.all_reduce_s[0], rel=1e-3)
    assert (whole.disconnecting, single.disconnecting) == (0, 4)
    parts = parts_of(one_switch(cluster))
    assert parts.switch_ports == {200.0: 12}
    assert parts.transceivers == {200.0: 24}
    assert whole.cost == parts.cost().total
    assert whole.cable_cost == pytest.approx(12 * (272 + 14280 / 64))


def test_more_ports_than_a_switch_has_are_priced_as_a_fat_tree() -> None:
    cluster, _ = wired(16, 3)
    assert on_switch(cluster, 4, [1e6]).name == "4 ports, switch"
    assert on_switch(cluster, 5, [1e6]).name == "5 ports, fat-tree"


@pytest.mark.parametrize("servers", [2, 6, 40])
def test_the_drawing_has_every_cable_and_server(servers: int) -> None:
    cluster, network = wired(servers, 2)
    found = sheets.cables_of(cluster, network, names(servers))
    root = ET.fromstring(draw_svg(names(servers).servers, found, "a < b"))
    assert len(root.findall(f"{SVG}path")) == len(found)
    texts = [element.text for element in root.findall(f"{SVG}text")]
    if servers <= 16:
        assert {c.label for c in found} | set(names(servers).servers) <= set(texts)
    else:
        assert {str(i) for i in range(servers)} <= set(texts)
    page = page_of("a < b", ["fact"], "<svg/>", found)
    assert page.count('class="label"') == 2 * len(found)
    assert "prefers-color-scheme: dark" in page
    named = page.count('data-name="one end"'), page.count('data-name="rate"')
    assert named == (len(found), len(found)), "names of the cells, where a phone shows no heading"
    assert "a &lt; b" in page


def test_the_terminal_shows_every_server_and_label_of_a_small_cabling() -> None:
    for servers, ports in ((2, 4), (3, 2), (4, 3), (6, 2), (8, 2)):
        cluster, network = wired(servers, ports)
        found = sheets.cables_of(cluster, network, names(servers))
        text = "\n".join(draw_text(names(servers).servers, found))
        shown = [cable.label for cable in found if cable.label in text]
        assert shown == [cable.label for cable in found]
        assert all(f"[box{i}]" in text for i in range(servers))
    assert draw_text(names(40).servers, ()) == []
