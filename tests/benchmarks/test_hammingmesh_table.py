"""Table II of the HammingMesh paper: parts and costs as printed, and bandwidths that hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.refusals import refused

from figures.papers.hammingmesh import (
    SIZES,
    TABLE_II,
    TableNetwork,
    TableRow,
    all_reduce_seconds,
    formula_bisection_share,
    networks,
    shifted_share,
    table,
)
from figures.papers.hammingmesh_reasons import REASONS
from figures.papers.symmetry import mesh_permutations, orbits, torus_permutations
from figures.papers.uniform_traffic import UniformTraffic
from torch_topoopt import _core
from torch_topoopt.architectures import (
    dragonfly,
    fat_tree,
    hammingmesh,
    ideal_switch,
    jellyfish,
    tapered_fat_tree,
    topoopt,
    torus,
)
from torch_topoopt.architectures.hammingmesh import HxMesh
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.comparison.cable_cost import CableParts, CablePrices, cable_parts
from torch_topoopt.plan import Cluster, Demand, GroupDemand

if TYPE_CHECKING:
    from figures.papers.hammingmesh import Size
    from torch_topoopt.architectures.topology import Topology

# Appendix C, per plane times planes: switches, DACs, AoCs
APPENDIX_C = {
    ("small", "nonblocking fat tree"): (768, 16 * 1024, 16 * 1024),
    ("small", "50 % tapered fat tree"): (544, 16 * 1050, 16 * 550),
    ("small", "75 % tapered fat tree"): (416, 16 * 1071, 16 * 273),
    ("small", "Dragonfly"): (16 * 64, 16 * 1920, 16 * 512),
    ("small", "2D HyperX (Hx1Mesh)"): (256, 4 * 2048, 4 * 2048),
    ("small", "Hx2Mesh"): (128, 4 * 1024, 4 * 1024),
    ("small", "Hx4Mesh"): (64, 4 * 512, 4 * 512),
    ("small", "2D torus"): (0, 4 * 1024, 0),
    ("large", "nonblocking fat tree"): (16 * 1280, 16 * 16384, 16 * 2 * 16384),
    ("large", "50 % tapered fat tree"): (16 * 794, 16 * 16380, 16 * 17160),
    ("large", "75 % tapered fat tree"): (8304, 16 * 16422, 16 * 8372),
    ("large", "Dragonfly"): (16 * 960, 16 * 31200, 16 * 7680),
    # the text's 24 576 switches are twice those of four planes of 2 x 128 x 12
    ("large", "2D HyperX (Hx1Mesh)"): (12288, 4 * 32768, 4 * 3 * 32768),
    ("large", "Hx2Mesh"): (6144, 4 * 16384, 4 * 3 * 16384),
    ("large", "Hx4Mesh"): (1024, 4 * 8192, 4 * 8192),
    ("large", "2D torus"): (0, 4 * 16384, 0),
}


# the large networks take some ten seconds of a processor
TABLES = ["small", pytest.param("large", marks=pytest.mark.exhaustive)]


@cache
def rows(size: Size) -> dict[str, TableRow]:
    return {row.name: row for row in table(size)}


def printed_like(value: float, paper: float) -> float:
    """`value` with the digits that the paper prints for it."""
    return float(f"{value:.0f}") if paper == int(paper) else float(f"{value:.1f}")


@pytest.mark.parametrize("size", TABLES)
def test_parts_are_those_of_appendix_c(size: Size) -> None:
    found = {(size, name): (r.switches, r.dacs, r.aocs) for name, r in rows(size).items()}
    assert found == {key: parts for key, parts in APPENDIX_C.items() if key[0] == size}


@pytest.mark.parametrize("size", TABLES)
def test_costs_are_the_printed_ones_but_for_two_that_the_text_contradicts(size: Size) -> None:
    for name, row in rows(size).items():
        paper = row.paper.cost_mdollar
        if name == "2D torus":  # printed with the price of AoCs, called DACs in the text
            assert row.other_cost_mdollar is not None
            assert printed_like(row.other_cost_mdollar, paper) == paper
            assert printed_like(row.ours.cost_mdollar, 0.1) == {"small": 1.1, "large": 17.8}[size]
        elif (size, name) == ("large", "50 % tapered fat tree"):
            assert row.ours.cost_mdollar == pytest.approx(418.26, abs=0.01)
        else:
            assert printed_like(row.ours.cost_mdollar, paper) == paper


@pytest.mark.parametrize("size", TABLES)
def test_diameters_are_the_printed_ones_but_for_two_of_the_small_networks(size: Size) -> None:
    differing = {
        name: (row.ours.diameter, row.paper.diameter)
        for name, row in rows(size).items()
        if row.ours.diameter != row.paper.diameter
    }
    expected = {"Dragonfly": (4, 3), "Hx4Mesh": (6, 8)} if size == "small" else {}
    assert differing == expected
    for row in rows(size).values():
        if row.formula_diameter is not None:
            assert row.formula_diameter == row.paper.diameter


@pytest.mark.parametrize("size", TABLES)
def test_what_is_not_as_in_the_paper_has_a_reason(size: Size) -> None:
    for name, row in rows(size).items():
        for column in ("cost_mdollar", "global_percent", "allreduce_percent", "diameter"):
            off = getattr(row.ours, column) / getattr(row.paper, column) - 1
            assert abs(off) < 0.055 or REASONS[size, name, column], (name, column)


@pytest.mark.parametrize("size", TABLES)
def test_bandwidths_are_parts_of_what_is_injected(size: Size) -> None:
    for row in rows(size).values():
        assert 0 < row.ours.global_percent <= 100 + 1e-9
        assert 0 < row.ours.allreduce_percent <= 100 * 1.001  # p / (p - 1)
        if row.best_global_percent is not None:
            assert row.ours.global_percent <= row.best_global_percent * (1 + 1e-9)
            assert row.best_global_percent <= 100 + 1e-6
        if row.shifted_global_percent is not None:
            assert 0 < row.shifted_global_percent <= 100 + 1e-6
    tree = rows(size)["nonblocking fat tree"]
    assert tree.ours.global_percent == pytest.approx(100)
    assert (tree.ours.global_saving, tree.ours.allreduce_saving) == (1.0, 1.0)


def test_all_shifts_of_a_ring_alone_take_as_long_as_their_longest_ways() -> None:
    """Shift k of a ring of 8 loads every link of one direction with k, of both with half of 4."""
    ring = torus.build(Cluster(8, 2, 100.0), dimensions=(8,))
    network = TableNetwork("ring", ring, TABLE_II["small"]["2D torus"])
    assert shifted_share(network, shifts=7) == pytest.approx(7 / (1 + 2 + 3 + 2 + 3 + 2 + 1) / 2)


def test_savings_are_bandwidth_over_cost_as_printed() -> None:
    """The paper's own columns follow from its others by the rule that ours follow."""
    for size in SIZES:
        tree = TABLE_II[size]["nonblocking fat tree"]
        for row in TABLE_II[size].values():
            cheaper = tree.cost_mdollar / row.cost_mdollar
            for saved, share, of_tree in (
                (row.global_saving, row.global_percent, tree.global_percent),
                (row.allreduce_saving, row.allreduce_percent, tree.allreduce_percent),
            ):
                assert saved == pytest.approx(cheaper * share / of_tree, abs=0.06, rel=0.01)


def test_a_longer_message_is_nearer_to_the_peak() -> None:
    for network in networks("small"):
        at_best_s = 2 / network.traffic.injection_bytes_per_s
        shares = [
            size * at_best_s / all_reduce_seconds(network.topology, network.traffic, size)
            for size in (1 << 24, 1 << 30, 1 << 36)
        ]
        assert shares == sorted(shares)
        assert 0.99 < shares[-1] <= 1.001  # p / (p - 1)


SMALL_MESHES = {
    "hx2": HxMesh(2, 2, 4, 3),
    "hx4": HxMesh(4, 4, 2, 2),
    "trees": HxMesh(1, 1, 8, 6, radix=8),
    "tapered": HxMesh(2, 1, 6, 5, radix=8, taper=0.5),
    "one row": HxMesh(2, 2, 5, 1),
}


def mesh_of(mesh: HxMesh) -> Topology:
    return hammingmesh.build(
        Cluster(mesh.accelerators, 4, 100.0),
        board=(mesh.a, mesh.b),
        boards=(mesh.x, mesh.y),
        radix=mesh.radix,
        span=mesh.span,
        taper=mesh.taper,
        column_taper=mesh.column_taper,
    )


@pytest.mark.parametrize("mesh", SMALL_MESHES.values(), ids=SMALL_MESHES)
def test_symmetry_loads_every_edge_as_the_full_computation(mesh: HxMesh) -> None:
    topology = mesh_of(mesh)
    full = UniformTraffic(topology)
    folded = UniformTraffic(topology, mesh_permutations(mesh))
    assert folded.targets < full.targets
    assert folded.even().load == pytest.approx(full.even().load, rel=1e-9)
    assert folded.even().hops == full.even().hops
    assert folded.best().seconds == pytest.approx(full.best().seconds, rel=0.02)


def test_a_torus_is_alike_everywhere() -> None:
    topology = torus.build(Cluster(20, 4, 100.0), dimensions=(5, 4))
    folded = UniformTraffic(topology, torus_permutations(5, 4))
    assert (folded.targets, folded.orbits.edges) == (1, 2)
    assert folded.even().load == pytest.approx(UniformTraffic(topology).even().load)


@pytest.mark.parametrize(
    "topology",
    [
        mesh_of(HxMesh(2, 2, 3, 2)),
        tapered_fat_tree.build(Cluster(30, 4, 100.0), radix=8, taper=0.5),
        dragonfly.build(Cluster(24, 4, 100.0), p=2),
        torus.build(Cluster(12, 4, 100.0)),
        jellyfish.build(Cluster(12, 4, 100.0), seed=1),
    ],
    ids=lambda topology: topology.architecture,
)
def test_loads_are_the_sums_of_those_of_all_pairs(topology: Topology) -> None:
    traffic = UniformTraffic(topology)
    pairs = list(permutations(range(topology.servers), 2))
    of_pairs = traffic.routes.loads(pairs)
    expected = np.bincount(
        of_pairs.edge, weights=of_pairs.load, minlength=len(traffic.routes.bytes_per_s)
    )
    assert traffic.even().load == pytest.approx(expected, rel=1e-9)
    source, target = np.array(pairs, dtype=np.int32).T
    load, hops = traffic.paths.of_pairs(source, target, np.ones(len(pairs)))
    assert load == pytest.approx(expected, rel=1e-9)
    assert max(hops) == traffic.even().hops


def test_a_permutation_that_changes_the_network_is_left_out() -> None:
    mesh = HxMesh(2, 2, 2, 2)
    routes = Routes(mesh_of(mesh))
    swapped = np.arange(mesh.nodes)
    swapped[[0, 1]] = [1, 0]
    for wrong in (swapped, swapped[:-1], np.zeros(mesh.nodes, dtype=np.int64)):
        assert orbits(routes, [wrong]).edges == len(routes.index)


def _least_seconds(topology: Topology) -> float:
    """The best split of the all-to-all over shortest paths, one flow for each target and edge."""
    from scipy.optimize import linprog

    routes = Routes(topology)
    ends = list(routes.index)
    count, servers = len(ends), topology.servers
    rows_of: list[list[float]] = []
    wanted: list[float] = []
    for target in range(servers):
        hops = routes.distances_to(target)
        for node in range(topology.nodes):
            if node == target:
                continue
            row = np.zeros(servers * count + 1)
            for e, (a, b) in enumerate(ends):
                if hops[a] == hops[b] + 1:
                    row[target * count + e] += (a == node) - (b == node)
            rows_of.append(row.tolist())
            wanted.append(float(node < servers))
    limits = np.zeros((count, servers * count + 1))
    for e in range(count):
        limits[e, e : servers * count : count] = 1
        limits[e, -1] = -routes.bytes_per_s[e] / routes.bytes_per_s.max()
    cost = np.zeros(servers * count + 1)
    cost[-1] = 1
    found = linprog(cost, A_ub=limits, b_ub=np.zeros(count), A_eq=rows_of, b_eq=wanted)
    return float(found.x[-1] / routes.bytes_per_s.max())


@pytest.mark.parametrize(
    "topology",
    [
        mesh_of(HxMesh(2, 2, 2, 2)),
        mesh_of(HxMesh(3, 1, 3, 1)),
        tapered_fat_tree.build(Cluster(12, 4, 100.0), radix=6, taper=0.5),
        jellyfish.build(Cluster(10, 4, 100.0), seed=2),
    ],
    ids=lambda topology: topology.architecture,
)
def test_the_best_split_is_that_of_the_linear_program_over_all_flows(topology: Topology) -> None:
    traffic = UniformTraffic(topology)
    best, least = traffic.best(), _least_seconds(topology)
    assert best.bound_s <= least * (1 + 1e-6)
    assert least * (1 - 1e-6) <= best.seconds <= least * 1.03
    assert best.seconds <= traffic.even().seconds * (1 + 1e-9)


def test_no_mesh_sends_more_than_its_forwarding_leaves() -> None:
    """Every accelerator on the way sends the bytes once more, over one of its four ports."""
    mesh = HxMesh(1, 1, 6, 6)
    traffic = UniformTraffic(mesh_of(mesh))
    even = traffic.even()
    sends = [even.load[e] for (a, _), e in traffic.routes.index.items() if a < mesh.accelerators]
    mean = sum(sends) / (mesh.accelerators * (mesh.accelerators - 1))
    assert mean == pytest.approx(2 - 10 / 35)  # 10 of 35 share a row or column
    assert traffic.share(even.seconds) == pytest.approx(1 / mean)


@pytest.mark.parametrize("mesh", [HxMesh(1, 1, 4, 4), HxMesh(2, 2, 4, 4), HxMesh(4, 4, 2, 2)])
def test_half_of_the_boards_is_cut_off_by_what_section_iii_a_says(mesh: HxMesh) -> None:
    """The maximum flow from the northern to the southern half, over what one half injects."""
    import networkx as nx

    topology = mesh_of(mesh)
    graph: nx.DiGraph[object] = nx.DiGraph()
    for (a, b), e in (routes := Routes(topology)).index.items():
        graph.add_edge(a, b, capacity=float(routes.bytes_per_s[e]))
    half = mesh.accelerators // 2
    for k in range(mesh.accelerators):
        graph.add_edge("from", k) if k < half else graph.add_edge(k, "to")
    flow = nx.maximum_flow_value(graph, "from", "to")
    injected = half * 4 * 100.0 * 125e6
    assert flow / injected == pytest.approx(formula_bisection_share(mesh))


def test_no_cut_into_halves_is_smaller_where_all_are_tried() -> None:
    """All ways to share eight accelerators of two boards out, each with its least cut."""
    from itertools import combinations

    import networkx as nx

    mesh = HxMesh(2, 2, 2, 1)
    routes = Routes(mesh_of(mesh))
    least = float("inf")
    for others in combinations(range(1, 8), 3):
        north = {0, *others}
        graph: nx.DiGraph[object] = nx.DiGraph()
        for (a, b), e in routes.index.items():
            graph.add_edge(a, b, capacity=float(routes.bytes_per_s[e]))
        for k in range(8):
            graph.add_edge("from", k) if k in north else graph.add_edge(k, "to")
        least = min(least, nx.maximum_flow_value(graph, "from", "to"))
    assert least / (4 * 4 * 100.0 * 125e6) == pytest.approx(formula_bisection_share(mesh))


def test_cables_are_counted_in_every_plane_and_a_chassis_once() -> None:
    cluster = Cluster(16, 16, 400.0)
    mesh = hammingmesh.build(cluster, board=(2, 2))
    assert cable_parts(mesh, 400.0) == CableParts(4 * 4, 4 * 16, 4 * 16, 4 * 16)
    assert cable_parts(mesh, 1600.0) == CableParts(4, 16, 16, 16)
    joined = dragonfly.build(Cluster(16, 1, 100.0), p=2, switches_per_chassis=2)
    alone = dragonfly.build(Cluster(16, 1, 100.0), p=2)
    two, one = cable_parts(joined, 100.0), cable_parts(alone, 100.0)
    assert two.switches * 2 == one.switches == 8
    assert one.dacs - two.dacs == 4  # one link of every chassis is inside of it
    assert CableParts(2, 3, 5, 7).cost(CablePrices(100.0, 10.0, 1.0)) == 253.0


def test_what_has_no_price_is_named() -> None:
    cluster = Cluster(8, 4, 100.0)
    circuits = topoopt.build(cluster, Demand((GroupDemand(tuple(range(8)), 10**9),), ()))
    with refused(ValueError, "topoopt", "optical switches"):
        cable_parts(circuits, 100.0)
    simplex = replace(ideal_switch.build(cluster), duplex=False)
    with refused(ValueError, "ideal-switch", "simplex"):
        cable_parts(simplex, 100.0)


def test_the_latency_of_an_all_reduce_is_that_of_its_ring_twice() -> None:
    topology = fat_tree.build(Cluster(16, 4, 100.0, link_latency_s=1e-3))
    traffic = UniformTraffic(topology)
    # 8 hops on an edge switch, 4 in a pod, 4 between pods; 2 (p - 1) steps
    assert all_reduce_seconds(topology, traffic, 1.0) == pytest.approx(
        2 * 15 * (8 * 2 + 4 * 4 + 4 * 6) / 16 * 1e-3, rel=1e-6
    )


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (lambda: table("medium"), ("size", "medium")),  # type: ignore[arg-type]
        (lambda: table("small", message_bytes=0), ("message_bytes", 0)),
        (lambda: _core.ShortestPathLoads(2, [0], [0], [1.0]), ("node 0", "itself")),
        (lambda: _core.ShortestPathLoads(2, [0], [2], [1.0]), ("node 2", "0..1")),
        (lambda: _core.ShortestPathLoads(2, [0], [1], [0.0]), ("rate",)),
        (
            lambda: _core.ShortestPathLoads(2, [0], [1], [1.0]).of_pairs([1], [0], [1.0]),
            ("node 1", "node 0"),
        ),
    ],
)
def test_wrong_arguments_are_named(call: object, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        call()  # type: ignore[operator]
