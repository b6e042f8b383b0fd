"""One contract for every architecture, and the closed forms of each."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support.refusals import refused

from torch_topoopt.architectures import (
    ARCHITECTURES,
    architecture,
    dragonfly,
    fat_tree,
    hyperx,
    leaf_spine,
    tapered_fat_tree,
    topoopt_tors,
    torus,
    xpander,
)
from torch_topoopt.architectures.routing import PairLoads, Routes, lower_topology, ring_hops
from torch_topoopt.architectures.topology import NodeLink, NodePath, Topology
from torch_topoopt.comparison.cable_cost import cable_parts
from torch_topoopt.comparison.cost import capital_cost, parts_of
from torch_topoopt.plan import BYTES_PER_GBPS, Cluster, Demand, GroupDemand, PairDemand, Ring
from torch_topoopt.plan.codec import DocumentError

SIZES = [(2, 1), (5, 4), (16, 4)]
HX_SIZES = {
    "hx1mesh": [(5, 4), (16, 4)],
    "hx2mesh": [(4, 4), (16, 4), (24, 8)],
    "hx4mesh": [(16, 4), (32, 8)],
    "hammingmesh": [(5, 4), (16, 4)],
}
CONTRACT = [(name, *size) for name in ARCHITECTURES for size in HX_SIZES.get(name, SIZES)]
GBPS = 100.0


def cluster_of(servers: int, degree: int = 4) -> Cluster:
    return Cluster(servers, degree, GBPS)


def some_demand(servers: int) -> Demand:
    pairs = [PairDemand(0, server, 10**6) for server in range(1, servers)]
    return Demand((GroupDemand(tuple(range(servers)), 10**9),), tuple(pairs))


def all_pairs(servers: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(servers) for b in range(servers) if a != b]


@functools.cache
def built(name: str, servers: int, degree: int) -> Topology:
    return ARCHITECTURES[name](cluster_of(servers, degree), some_demand(servers))


@functools.cache
def routed(name: str, servers: int, degree: int) -> tuple[Routes, PairLoads]:
    routes = Routes(built(name, servers, degree))
    return routes, routes.loads(all_pairs(servers))


@pytest.mark.parametrize(("name", "servers", "degree"), CONTRACT)
class TestContract:
    def test_it_is_valid_and_the_same_twice(self, name: str, servers: int, degree: int) -> None:
        topology = built(name, servers, degree)
        assert topology.validate() is topology
        assert topology.architecture == name
        assert topology.servers == servers
        assert topology == built.__wrapped__(name, servers, degree)

    def test_every_server_has_at_most_its_ports_and_bandwidth(
        self, name: str, servers: int, degree: int
    ) -> None:
        topology = built(name, servers, degree)
        assert topology.server_ports <= degree
        for server in range(servers):
            out = sum(link.gbps for link in topology.links if link.source == server)
            into = sum(link.gbps for link in topology.links if link.target == server)
            assert 0 < out <= degree * GBPS
            assert 0 < into <= degree * GBPS

    def test_every_byte_leaves_and_arrives_once_and_no_path_has_a_loop(
        self, name: str, servers: int, degree: int
    ) -> None:
        topology = built(name, servers, degree)
        routes, loads = routed(name, servers, degree)
        ends = {edge: pair for pair, edge in routes.index.items()}
        for i, (source, target) in enumerate(zip(loads.source, loads.target, strict=True)):
            used = slice(loads.begin[i], loads.begin[i + 1])
            net = [0.0] * topology.nodes
            entered = [0.0] * topology.nodes
            for edge, load in zip(
                loads.edge[used].tolist(), loads.load[used].tolist(), strict=True
            ):
                a, b = ends[edge]
                net[a] += load
                net[b] -= load
                entered[b] += load
            assert net[source] == pytest.approx(1)
            assert net[target] == pytest.approx(-1)
            assert all(
                abs(net[node]) < 1e-9
                for node in range(topology.nodes)
                if node not in (source, target)
            )
            assert max(entered) < 1 + 1e-9  # a loop would come by more than once
            assert entered[source] == 0

    def test_servers_relay_only_where_no_switch_is_on_the_way(
        self, name: str, servers: int, degree: int
    ) -> None:
        topology = built(name, servers, degree)
        routes, loads = routed(name, servers, degree)
        ends = {edge: pair for pair, edge in routes.index.items()}
        if topology.switches and name not in HX_SIZES:  # accelerators of a HammingMesh forward
            for i, source in enumerate(loads.source.tolist()):
                used = slice(loads.begin[i], loads.begin[i + 1])
                starts = {ends[edge][0] for edge in loads.edge[used].tolist()}
                assert {node for node in starts if node < servers} == {source}

    def test_folding_keeps_every_bound(self, name: str, servers: int, degree: int) -> None:
        """The load of the busiest link, for any sizes of the flows, is that of the full network."""
        routes, loads = routed(name, servers, degree)
        folded = lower_topology(routes, all_pairs(servers))
        size = np.random.default_rng(1).uniform(1, 2, len(loads.source))
        per_edge = np.zeros(len(routes.bytes_per_s))
        rows = np.repeat(np.arange(len(loads.source)), np.diff(loads.begin))
        np.add.at(per_edge, loads.edge, loads.load * size[rows])
        simulated = [0.0] * (1 + max(folded.representative))
        for edge, link in enumerate(folded.representative):
            if link >= 0:
                simulated[link] = per_edge[edge] / folded.ratio[edge]
        assert folded.edge_bytes(simulated) == pytest.approx(per_edge.tolist(), rel=1e-9)

    def test_rings_of_any_group_visit_it_once(self, name: str, servers: int, degree: int) -> None:
        topology = built(name, servers, degree)
        network = lower_topology(Routes(topology), ()).network
        for members in (range(servers), range(0, servers, 2), range(servers // 2 + 1)):
            group = list(members)
            if len(group) < 2:
                continue
            rings = network.rings(group)
            assert all(sorted(ring.servers) == group for ring in rings)
            assert sum(ring.share for ring in rings) == pytest.approx(1)
            assert len(ring_hops(network, group)) >= len(group)

    def test_its_ports_are_enough_and_its_cost_is_that_of_its_parts(
        self, name: str, servers: int, degree: int
    ) -> None:
        topology = built(name, servers, degree)
        ports = Counter(link.source for link in topology.links)
        for node, used in ports.items():
            assert used <= (topology.server_ports if node < servers else topology.switch_ports)
        price = capital_cost(topology, cluster_of(servers, degree))
        if price is not None and name != "ideal-switch":  # which is priced as a fat-tree
            assert price == parts_of(topology).cost()
            assert price.total == pytest.approx(sum(vars(price).values()))
        if topology.optics != "none" or not topology.duplex:
            with refused(ValueError, "price"):
                cable_parts(topology, GBPS)
            return
        parts = cable_parts(topology, GBPS)
        lanes = sum(math.ceil(link.gbps / GBPS - 1e-9) for link in topology.links)
        assert 2 * (parts.dacs + parts.aocs + parts.traces) == lanes
        assert parts.switches >= topology.switches
        assert parts.cost() == 14280 * parts.switches + 603 * parts.aocs + 272 * parts.dacs


def bisection_gbps(topology: Topology) -> float:
    """The rate at which the lower half of the servers can send to the upper half at once."""
    import networkx as nx

    graph = nx.DiGraph()
    for link in topology.links:
        rate = graph.get_edge_data(link.source, link.target, {"capacity": 0})["capacity"]
        graph.add_edge(link.source, link.target, capacity=rate + link.gbps)
    half = topology.servers // 2
    for server in range(topology.servers):  # no capacity: unlimited
        graph.add_edge("from", server) if server < half else graph.add_edge(server, "to")
    return float(nx.maximum_flow_value(graph, "from", "to"))


def hops(topology: Topology) -> int:
    """The longest of all shortest paths between servers, in links."""
    import networkx as nx

    graph = nx.DiGraph((link.source, link.target) for link in topology.links)
    return max(
        length
        for source in range(topology.servers)
        for target, length in nx.single_source_shortest_path_length(graph, source).items()
        if target < topology.servers
    )


@pytest.mark.parametrize("radix", [4, 6])
def test_a_full_fat_tree_has_its_closed_forms(radix: int) -> None:
    servers = radix**3 // 4
    tree = fat_tree.build(cluster_of(servers), radix=radix)
    assert tree.switches == 5 * radix**2 // 4
    assert len(tree.links) == 2 * 3 * servers
    assert hops(tree) == 6
    assert bisection_gbps(tree) == servers / 2 * 4 * GBPS


def test_the_papers_fat_tree_of_128_servers_has_80_switches_and_640_ports() -> None:
    tree = fat_tree.build(cluster_of(128))
    assert tree.switch_ports == 8
    assert tree.switches == 80
    assert tree.switches * tree.switch_ports == 640


@pytest.mark.parametrize("servers", [3, 10, 33, 50])
@pytest.mark.parametrize("kind", [fat_tree, leaf_spine])
def test_a_partial_tree_still_gives_every_server_its_bandwidth(kind: object, servers: int) -> None:
    tree = kind.build(cluster_of(servers))  # type: ignore[attr-defined]
    assert bisection_gbps(tree) == servers // 2 * 4 * GBPS
    _assert_all_to_all_is_only_bound_by_servers(tree)


def _assert_all_to_all_is_only_bound_by_servers(topology: Topology) -> None:
    routes = Routes(topology)
    loads = routes.loads(all_pairs(topology.servers))
    per_edge = np.zeros(len(routes.bytes_per_s))
    np.add.at(per_edge, loads.edge, loads.load)
    server_gbps = max(link.gbps for link in topology.links if link.source == 0)
    least = (topology.servers - 1) / (server_gbps * BYTES_PER_GBPS)
    assert float((per_edge / routes.bytes_per_s).max()) == pytest.approx(least)


@pytest.mark.parametrize("servers", [16, 54])
def test_a_folded_fat_tree_is_a_tree(servers: int) -> None:
    tree = fat_tree.build(cluster_of(servers))
    folded = lower_topology(Routes(tree), all_pairs(servers))
    half = tree.switch_ports // 2
    edges, pods = servers // half, tree.switch_ports
    assert 1 + max(folded.representative) == 2 * (servers + edges + pods)


@pytest.mark.parametrize(("oversubscription", "part"), [(1.0, 1.0), (2.0, 0.5), (4.0, 0.25)])
def test_oversubscription_divides_the_bandwidth_between_edges(
    oversubscription: float, part: float
) -> None:
    cluster = cluster_of(32)
    tree = fat_tree.build_oversubscribed(cluster, oversubscription=oversubscription, radix=8)
    leaf = leaf_spine.build(cluster, radix=8, oversubscription=oversubscription)
    for topology in (tree, leaf):
        assert bisection_gbps(topology) == pytest.approx(part * 16 * 4 * GBPS)


def test_core_tapering_keeps_the_bandwidth_inside_a_pod() -> None:
    tree = fat_tree.build(cluster_of(16), core_taper=0.5)
    assert bisection_gbps(tree) == 4 * 4 * GBPS
    assert tree.switches == 8 + 8 + 2


@pytest.mark.parametrize(("servers", "radix", "taper"), [(15, 8, 0.5), (100, 8, 0.5), (90, 8, 1)])
def test_leaves_of_a_tapered_fat_tree_share_their_ports_out(
    servers: int, radix: int, taper: float
) -> None:
    tree = tapered_fat_tree.build(cluster_of(servers), radix=radix, taper=taper)
    up = 4 if taper == 1 else 3  # of 8 ports: at least half of the others
    ports = Counter(link.source for link in tree.links)
    below = Counter(link.target for link in tree.links if link.source < servers)
    assert max(below.values()) == radix - up
    assert {ports[leaf] - count for leaf, count in below.items()} == {up}
    if taper == 1:
        assert bisection_gbps(tree) == servers // 2 * 4 * GBPS
    assert hops(tree) == (4 if servers == 15 else 6)


def test_a_tapered_fat_tree_has_the_smallest_radix_that_two_levels_need() -> None:
    assert tapered_fat_tree.smallest_radix(32, 1.0) == 8
    assert tapered_fat_tree.smallest_radix(33, 1.0) == 10
    assert tapered_fat_tree.smallest_radix(16384, 1.0) == 64
    assert tapered_fat_tree.build(cluster_of(33), taper=1.0).switch_ports == 10


def test_a_dragonfly_of_any_size_uses_every_port_where_asked() -> None:
    cluster = cluster_of(48)
    shape = {"p": 2, "a": 4, "h": 3, "groups": 6}
    dark = dragonfly.build(cluster, **shape)
    lit = dragonfly.build(cluster, every_port=True, **shape)
    for topology, between in ((dark, 2), (lit, 12 / 5)):
        cables = Counter(
            (link.source - 48) // 4
            for link in topology.links
            if min(link.source, link.target) >= 48
            and (link.source - 48) // 4 != (link.target - 48) // 4
        )
        assert set(cables.values()) == {5 * between}
    assert max(Counter(link.source for link in lit.links).values()) == lit.switch_ports == 8


def test_tori_of_boards_have_traces_and_planes() -> None:
    topology = torus.build(cluster_of(24, 8), dimensions=(6, 4), board=(3, 2), planes=2)
    traces = [link for link in topology.links if link.medium == "trace"]
    assert len(traces) == 2 * 4 * (2 * 2 + 3)  # of four boards
    assert all(abs(link.source - link.target) in (1, 4) for link in traces)
    assert {link.gbps for link in topology.links} == {2 * GBPS}


@pytest.mark.parametrize(("radix", "servers"), [(4, 8), (8, 32), (16, 128)])
def test_a_full_leaf_spine_has_its_closed_forms(radix: int, servers: int) -> None:
    clos = leaf_spine.build(cluster_of(servers))
    assert clos.switch_ports == radix
    assert clos.switches == radix + radix // 2
    assert len(clos.links) == 2 * 2 * servers
    assert hops(clos) == 4


@pytest.mark.parametrize(
    ("servers", "degree", "dimensions", "longest"),
    [(16, 4, (4, 4), 4), (128, 4, (16, 8), 12), (27, 6, (3, 3, 3), 3), (7, 4, (7,), 3)],
)
def test_a_torus_has_the_shape_with_the_least_diameter(
    servers: int, degree: int, dimensions: tuple[int, ...], longest: int
) -> None:
    assert torus.default_dimensions(servers, degree // 2) == dimensions
    topology = torus.build(cluster_of(servers, degree))
    assert hops(topology) == longest == sum(size // 2 for size in dimensions)
    assert len(topology.links) == 2 * servers * len(dimensions)


@pytest.mark.parametrize(
    ("rows", "columns"), [(4, 4), (8, 4), (9, 3), (16, 8), (12, 4), (6, 3), (5, 3), (3, 5), (4, 8)]
)
def test_two_rings_of_a_torus_share_no_cable(rows: int, columns: int) -> None:
    cluster = cluster_of(rows * columns)
    topology = torus.build(cluster, dimensions=(rows, columns))
    assert len(topology.rings) == 4
    adjacent = {(link.source, link.target) for link in topology.links}
    used = [hop for ring in topology.rings for hop in pairwise((*ring.servers, ring.servers[0]))]
    assert set(used) == adjacent
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(("dimensions", "degree"), [((5, 2), 4), ((4, 2), 3), ((3, 3, 2), 5)])
def test_a_torus_without_two_such_rings_has_one_on_cables(
    dimensions: tuple[int, ...], degree: int
) -> None:
    topology = torus.build(cluster_of(math.prod(dimensions), degree), dimensions=dimensions)
    assert len(topology.rings) == 2  # both ways
    adjacent = {(link.source, link.target) for link in topology.links}
    for ring in topology.rings:
        assert set(pairwise((*ring.servers, ring.servers[0]))) <= adjacent


def test_a_torus_of_two_rows_with_two_cables_each_has_two_rings() -> None:
    topology = torus.build(cluster_of(8, 4), dimensions=(2, 4))
    used = Counter(
        hop for ring in topology.rings for hop in pairwise((*ring.servers, ring.servers[0]))
    )
    assert used == Counter((link.source, link.target) for link in topology.links)


@pytest.mark.parametrize("name", ["jellyfish", "xpander"])
@pytest.mark.parametrize(("servers", "degree"), [(10, 4), (33, 6), (128, 4)])
def test_an_expander_uses_every_port_and_is_near_the_best_possible(
    name: str, servers: int, degree: int
) -> None:
    topology = ARCHITECTURES[name](cluster_of(servers, degree), seed=3)
    assert len(topology.links) == servers * degree
    edges = [(link.source, link.target) for link in topology.links if link.source < link.target]
    assert len(set(edges)) == len(edges)
    # a Ramanujan graph has 2 sqrt(degree - 1); a random one comes close (Friedman)
    assert xpander.second_eigenvalue(servers, edges) < 1.15 * 2 * math.sqrt(degree - 1)
    assert topology != ARCHITECTURES[name](cluster_of(servers, degree), seed=4)


@pytest.mark.parametrize("name", ["kautz", "de-bruijn"])
@pytest.mark.parametrize(("servers", "degree"), [(12, 2), (50, 3), (64, 4)])
def test_a_kautz_or_de_bruijn_graph_has_a_logarithmic_diameter(
    name: str, servers: int, degree: int
) -> None:
    topology = ARCHITECTURES[name](Cluster(servers, degree, GBPS, "simplex"))
    longest = hops(topology)
    assert longest <= math.ceil(math.log(servers) / math.log(degree) - 1e-12)
    if (name, servers, degree) == ("kautz", 12, 2):
        assert longest == 3  # K(2, 3) has 2^3 + 2^2 = 12 servers


@pytest.mark.parametrize("name", ["kautz", "de-bruijn"])
def test_a_kautz_or_de_bruijn_graph_needs_two_links_out_of_every_server(name: str) -> None:
    with refused(ValueError, "degree", 3, name, 5, "duplex", 4):
        ARCHITECTURES[name](Cluster(5, 3, GBPS))
    with refused(ValueError, "ports", 2):
        ARCHITECTURES[name](Cluster(3, 1, GBPS, "simplex"))
    for degree, ports in itertools.product((1, 2, 4), ("duplex", "simplex")):
        assert hops(ARCHITECTURES[name](Cluster(2, degree, GBPS, ports))) == 1


@pytest.mark.parametrize("name", ["fat-tree", "ideal-switch", "leaf-spine", "hyperx", "dragonfly"])
def test_a_rate_of_nothing_is_an_error(name: str) -> None:
    with refused(ValueError, "server_gbps", 0):
        ARCHITECTURES[name](cluster_of(8), server_gbps=0)


@pytest.mark.parametrize(
    ("servers", "shape"), [(8, (2, 4)), (27, (4, 4)), (64, (4, 8)), (128, (6, 8))]
)
def test_a_hyperx_joins_rows_and_columns_and_has_full_bisection(
    servers: int, shape: tuple[int, ...]
) -> None:
    assert hyperx.default_shape(servers) == shape
    if servers > 27:
        return
    topology = hyperx.build(cluster_of(servers))
    assert topology.switches == math.prod(shape)
    assert hops(topology) == 4
    if servers % 2 == 0:
        assert bisection_gbps(topology) == servers // 2 * 4 * GBPS


def test_a_full_dragonfly_has_its_closed_forms() -> None:
    p = 2
    servers = dragonfly.most_servers(p)
    assert servers == 72
    topology = dragonfly.build(cluster_of(servers))
    groups, size = 9, 4
    assert topology.switches == groups * size
    cables = servers + groups * size * (size - 1) // 2 + groups * (groups - 1) // 2
    assert len(topology.links) == 2 * cables
    assert topology.switch_ports == 7
    assert hops(topology) == 5  # server, group, other group, there, server


def test_tors_are_wired_like_servers_and_rings_stay_long_in_a_tor() -> None:
    cluster = cluster_of(32)
    topology = topoopt_tors.build(cluster, servers_per_tor=4, uplinks=4)
    assert topology.switches == 8
    uplinks = [link for link in topology.links if min(link.source, link.target) >= 32]
    assert len(uplinks) == 8 * 4
    for ring in topology.rings:
        crossings = sum(a // 4 != b // 4 for a, b in pairwise((*ring.servers, ring.servers[0])))
        assert crossings == 8
    assert len(topology.rings) == 4


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (lambda: architecture("fat-treee"), ("architecture", "fat-treee")),
        (lambda: fat_tree.build(cluster_of(128), radix=7), ("radix", 7)),
        (lambda: fat_tree.build(cluster_of(128), radix=6), ("radix", 6)),
        (lambda: fat_tree.build(cluster_of(16), edge_taper=0.0), ("edge_taper", 0.0)),
        (lambda: leaf_spine.build(cluster_of(128), radix=8), ("radix", 8)),
        (lambda: leaf_spine.build(cluster_of(8), oversubscription=0.5), ("oversubscription", 0.5)),
        (lambda: torus.build(cluster_of(12), dimensions=(4, 4)), ("dimensions", "4 x 4")),
        (lambda: torus.build(cluster_of(27, 4), dimensions=(3, 3, 3)), ("dimensions", "3 x 3 x 3")),
        (lambda: hyperx.build(cluster_of(4), shape=(0, 4)), ("shape",)),
        (lambda: dragonfly.build(cluster_of(73), p=2), ("p", 2)),
        (lambda: dragonfly.build(cluster_of(72), p=2, a=4, h=1, groups=9), ("groups", 9, 4)),
        (lambda: dragonfly.build(cluster_of(8), p=0, a=2, h=1), ("p", 0, 1)),
        (
            lambda: dragonfly.build(cluster_of(8), switches_per_chassis=3),
            ("switches_per_chassis", 3),
        ),
        (lambda: tapered_fat_tree.build(cluster_of(80), radix=7), ("radix", 7, "even")),
        (lambda: tapered_fat_tree.build(cluster_of(200), radix=8), (160,)),
        (lambda: tapered_fat_tree.build(cluster_of(8), taper=1.5), ("taper", 1.5, 0)),
        (lambda: torus.build(cluster_of(12), planes=0), ("planes", 0, 1)),
        (lambda: torus.build(cluster_of(12), board=(5, 1)), ("board", "5, 1")),
        (lambda: topoopt_tors.build(cluster_of(8), servers_per_tor=0), ("servers_per_tor", 0)),
        (lambda: ARCHITECTURES["jellyfish"](cluster_of(4, 4)), ("degree", 4)),
        (lambda: ARCHITECTURES["xpander"](Cluster(11, 3, 1.0)), ("servers", 11)),
    ],
)
def test_what_cannot_be_built_is_named(call: object, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        call()  # type: ignore[operator]


def two(links: tuple[NodeLink, ...], **changes: object) -> Topology:
    fields = {"rings": (Ring((0, 1), 1.0),), "server_ports": 1, **changes}
    return Topology("test", 2, 2, links, **fields)  # type: ignore[arg-type]


THERE, BACK = NodeLink(0, 1, 1.0, 0.0), NodeLink(1, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("topology", "tokens"),
    [
        (two((THERE,)), ("0 to 1", "back")),
        (two((THERE,), duplex=False), ("reach",)),
        (two((THERE, BACK, THERE, BACK)), (2, 1)),
        (two((NodeLink(0, 0, 1.0, 0.0),)), ("node 0", "itself")),
        (two((NodeLink(0, 2, 1.0, 0.0),)), ("node 2",)),
        (two((NodeLink(0, 1, math.nan, 0.0),)), ("gbps", "nan")),
        (two((NodeLink(0, 1, 1.0, -1.0),)), ("latency_s", -1.0)),
        (two((THERE, BACK), rings=()), ("rings",)),
        (two((THERE, BACK), rings=(Ring((0, 1), 0.5),)), (0.5,)),
        (two((THERE, BACK), rings=(Ring((0, 0), 1.0),)), ("visit",)),
        (two((THERE, BACK), paths=(NodePath((0, 1), 0.4),)), (0.4,)),
        (two((THERE, BACK), paths=(NodePath((0, 1, 0), 1.0),)), ("loop-free",)),
    ],
)
def test_a_topology_that_breaks_a_rule_is_refused(
    topology: Topology, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        topology.validate()
