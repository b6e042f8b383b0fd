"""Table II of the HammingMesh paper: cost, global bandwidth, AllReduce bandwidth and diameter of
eight networks in two sizes, counted and computed on networks that are built, beside the paper's.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from figures.papers.symmetry import mesh_permutations, torus_permutations
from figures.papers.uniform_traffic import UniformTraffic
from torch_topoopt import _core
from torch_topoopt.architectures import dragonfly, hammingmesh, tapered_fat_tree, torus
from torch_topoopt.architectures.clos import RADIX
from torch_topoopt.architectures.dragonfly import DragonflyShape
from torch_topoopt.comparison.cable_cost import COLFAX_2022, CableParts, CablePrices, cable_parts
from torch_topoopt.plan import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from torch_topoopt.architectures.hammingmesh import HxMesh
    from torch_topoopt.architectures.topology import Topology

Size = Literal["small", "large"]
SIZES: tuple[Size, ...] = ("small", "large")
LINK_GBPS = 400.0
DEGREE = 16  # ports of an accelerator: four planes of four
PLANES = 4
# Table III of the paper: a cable, and the buffers at both of its ends
HOP_LATENCY_S = 20e-9 + 2 * 40e-9
MOST_ORBITS = 10_000
MOST_SHIFTED = 2048
MESSAGE_BYTES = 16 << 30  # of an accelerator's AllReduce; the paper says "large"


@dataclass(frozen=True)
class TableFigures:
    """A row of the table: millions of dollars, percent of the injection bandwidth, percent of half
    of it, and cables. Savings are bandwidth over cost, that of the nonblocking fat tree being 1."""

    cost_mdollar: float
    global_percent: float
    global_saving: float
    allreduce_percent: float
    allreduce_saving: float
    diameter: int


@dataclass(frozen=True)
class Bandwidths:
    """Of the injection bandwidth, and of half of it, as parts of 1. `best_global_share`: that of
    the best split over shortest paths that was found; `shifted_global_share`: that of one shift of
    all accelerators after the other; both where they were looked for."""

    global_share: float
    allreduce_share: float
    best_global_share: float | None = None
    shifted_global_share: float | None = None


@dataclass(frozen=True)
class TableNetwork:
    """One of the eight networks, built: its row in the paper, and permutations that leave it as it
    is (`papers.symmetry`)."""

    name: str
    topology: Topology
    printed: TableFigures
    permutations: tuple[NDArray[np.int64], ...] = ()
    mesh: HxMesh | None = None

    @cached_property
    def traffic(self) -> UniformTraffic:
        """Its all-to-all, even split included, computed once."""
        return UniformTraffic(self.topology, self.permutations)


@dataclass(frozen=True)
class TableRow:
    """A network of the table: ours beside the paper's. `other_cost_mdollar` is the cost with AoCs
    in the place of DACs, for the torus, whose printed cost has their price against the text;
    `formula_diameter` and `formula_bisection_share` those of sections III-B and III-A."""

    JSON_FIELDS: ClassVar = ("*", "deviations")

    name: str
    accelerators: int
    switches: int
    dacs: int
    aocs: int
    ours: TableFigures
    paper: TableFigures
    best_global_percent: float | None = None
    shifted_global_percent: float | None = None
    other_cost_mdollar: float | None = None
    formula_diameter: int | None = None
    formula_bisection_share: float | None = None


def cluster_of(accelerators: int) -> Cluster:
    """The case study's: 16 ports of 400 Gb/s an accelerator (section III)."""
    return Cluster(accelerators, DEGREE, LINK_GBPS, link_latency_s=HOP_LATENCY_S)


# Table II as printed.
_SMALL = {
    "nonblocking fat tree": TableFigures(25.3, 99.9, 1.0, 98.9, 1.0, 4),
    "50 % tapered fat tree": TableFigures(17.6, 51.2, 0.7, 98.9, 1.4, 4),
    "75 % tapered fat tree": TableFigures(13.2, 25.7, 0.5, 98.9, 1.9, 4),
    "Dragonfly": TableFigures(27.9, 62.9, 0.6, 98.8, 0.9, 3),
    "2D HyperX (Hx1Mesh)": TableFigures(10.8, 91.6, 2.1, 98.1, 2.3, 4),
    "Hx2Mesh": TableFigures(5.4, 25.4, 1.2, 98.3, 4.7, 4),
    "Hx4Mesh": TableFigures(2.7, 11.3, 1.0, 98.4, 9.3, 8),
    "2D torus": TableFigures(2.5, 2.0, 0.2, 98.1, 10.1, 32),
}
_LARGE = {
    "nonblocking fat tree": TableFigures(680, 98.9, 1.0, 99.8, 1.0, 6),
    "50 % tapered fat tree": TableFigures(419, 47.6, 0.8, 99.8, 1.6, 6),
    "75 % tapered fat tree": TableFigures(271, 24.0, 0.6, 99.8, 2.5, 6),
    "Dragonfly": TableFigures(429, 71.5, 1.2, 98.6, 1.6, 5),
    "2D HyperX (Hx1Mesh)": TableFigures(448, 95.8, 1.5, 91.4, 1.4, 8),
    "Hx2Mesh": TableFigures(224, 25.0, 0.8, 92.3, 2.8, 8),
    "Hx4Mesh": TableFigures(43.3, 10.5, 1.7, 92.2, 14.5, 8),
    "2D torus": TableFigures(39.5, 1.1, 0.2, 91.4, 15.7, 128),
}
TABLE_II: Mapping[Size, Mapping[str, TableFigures]] = {"small": _SMALL, "large": _LARGE}

# Appendix C: accelerators of the three fat trees, the Dragonfly, and the side of meshes and torus.
_TREES: Mapping[Size, tuple[int, int, int]] = {
    "small": (1024, 1050, 1071),
    "large": (16384, 16380, 16422),
}
_TAPERS = (1.0, 0.5, 0.25)
DRAGONFLIES: Mapping[Size, DragonflyShape] = {
    "small": DragonflyShape(a=16, p=8, h=8, groups=8),
    "large": DragonflyShape(a=32, p=17, h=16, groups=30),
}
_SWITCHES_PER_CHASSIS: Mapping[Size, int] = {"small": 2, "large": 1}
_SIDES: Mapping[Size, int] = {"small": 32, "large": 128}


def networks(size: Size) -> Iterator[TableNetwork]:
    """The eight of a size as Appendix C has them, each built when it is asked for.

    Raises ValueError for another size."""
    if size not in SIZES:
        raise ValueError(f"size: {size!r} is not one of {', '.join(SIZES)}")
    names = iter(TABLE_II[size])
    printed = TABLE_II[size]
    for accelerators, taper in zip(_TREES[size], _TAPERS, strict=True):
        name = next(names)
        tree = tapered_fat_tree.build(cluster_of(accelerators), radix=RADIX, taper=taper)
        yield TableNetwork(name, tree, printed[name])
    shape = DRAGONFLIES[size]
    name = next(names)
    joined = dragonfly.build(
        cluster_of(shape.a * shape.p * shape.groups),
        a=shape.a,
        p=shape.p,
        h=shape.h,
        groups=shape.groups,
        switches_per_chassis=_SWITCHES_PER_CHASSIS[size],
        every_port=True,
    )
    yield TableNetwork(name, joined, printed[name])
    side = _SIDES[size]
    for board in (1, 2, 4):
        name = next(names)
        mesh = hammingmesh.HxMesh(board, board, side // board, side // board)
        built = hammingmesh.build(
            cluster_of(side**2), board=(board, board), boards=(mesh.x, mesh.y), planes=PLANES
        )
        yield TableNetwork(name, built, printed[name], tuple(mesh_permutations(mesh)), mesh)
    name = next(names)
    grid = torus.build(cluster_of(side**2), dimensions=(side, side), board=(2, 2), planes=PLANES)
    yield TableNetwork(name, grid, printed[name], tuple(torus_permutations(side, side)))


def table(
    size: Size,
    *,
    message_bytes: float = MESSAGE_BYTES,
    prices: CablePrices = COLFAX_2022,
) -> list[TableRow]:
    """The rows of Table II of a `size`, bandwidths at flow level.

    Every accelerator reduces `message_bytes`. Raises ValueError for another size, or a message of
    no bytes."""
    if not 0 < message_bytes < math.inf:
        raise ValueError(f"message_bytes: {message_bytes} is not a finite number above 0")
    rows: list[TableRow] = []
    reference: tuple[float, Bandwidths] | None = None
    for network in networks(size):
        parts = cable_parts(network.topology, LINK_GBPS)
        cost = parts.cost(prices)
        found = flow_bandwidths(network, message_bytes)
        reference = reference or (cost, found)
        rows.append(_row(network, parts, cost, found, reference, prices))
    return rows


# parameters: what one row is made of
def _row(
    network: TableNetwork,
    parts: CableParts,
    cost: float,
    found: Bandwidths,
    reference: tuple[float, Bandwidths],
    prices: CablePrices,
) -> TableRow:
    tree_cost, tree = reference
    cheaper = tree_cost / cost
    ours = TableFigures(
        cost_mdollar=cost / 1e6,
        global_percent=100 * found.global_share,
        global_saving=cheaper * found.global_share / tree.global_share,
        allreduce_percent=100 * found.allreduce_share,
        allreduce_saving=cheaper * found.allreduce_share / tree.allreduce_share,
        diameter=diameter(network),
    )
    mesh = network.mesh
    is_torus = network.topology.architecture == "torus"
    return TableRow(
        name=network.name,
        accelerators=network.topology.servers,
        switches=parts.switches,
        dacs=parts.dacs,
        aocs=parts.aocs,
        ours=ours,
        paper=network.printed,
        best_global_percent=_percent(found.best_global_share),
        shifted_global_percent=_percent(found.shifted_global_share),
        other_cost_mdollar=(cost + parts.dacs * (prices.aoc - prices.dac)) / 1e6
        if is_torus
        else None,
        formula_diameter=None if mesh is None else formula_diameter(mesh),
        formula_bisection_share=None if mesh is None else formula_bisection_share(mesh),
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def flow_bandwidths(network: TableNetwork, message_bytes: float) -> Bandwidths:
    """At flow level: the all-to-all spread evenly over all shortest paths, and the AllReduce on the
    rings of the topology, bound by the link that they load most and by the latency of a ring. The
    best split and single shifts are looked for where that takes seconds: in networks of up to
    MOST_ORBITS kinds of edges, and of MOST_SHIFTED accelerators."""
    traffic = network.traffic
    even = traffic.even()
    best = None
    if traffic.orbits.edges <= MOST_ORBITS:
        best = traffic.share(traffic.best().seconds)
    seconds = all_reduce_seconds(network.topology, traffic, message_bytes)
    at_best_s = 2 * message_bytes / traffic.injection_bytes_per_s
    shifted = None
    if network.topology.servers <= MOST_SHIFTED:
        shifted = shifted_share(network)
    return Bandwidths(traffic.share(even.seconds), at_best_s / seconds, best, shifted)


def shifted_share(network: TableNetwork, shifts: int = 16) -> float:
    """Of its injection bandwidth that an accelerator has if all send to the one k further on, every
    such shift alone (section V-A: iteration i of the paper's alltoall is the shift by i; with
    nothing between them they overlap). The mean of the times of `shifts` of them, at random."""
    traffic, servers = network.traffic, network.topology.servers
    sources = np.arange(servers, dtype=np.int32)
    drawn = random.Random(0).sample(range(1, servers), min(shifts, servers - 1))
    total_s = 0.0
    for shift in drawn:
        load, _ = traffic.paths.of_pairs(sources, np.roll(sources, -shift), np.ones(servers))
        total_s += float((load / traffic.routes.bytes_per_s).max())
    return len(drawn) / total_s / traffic.injection_bytes_per_s


def all_reduce_seconds(topology: Topology, traffic: UniformTraffic, message_bytes: float) -> float:
    """Of `message_bytes` from every server, on the topology's rings at once: 2 (p - 1) steps, each
    the latency of a hop (their mean: a chunk passes all of them), and the bytes that the busiest
    link carries."""
    servers = topology.servers
    load = np.zeros(len(traffic.routes.bytes_per_s))
    longest_s = 0.0
    for ring in topology.rings:
        order = np.array(ring.servers, dtype=np.int32)
        sent = np.full(servers, ring.share * message_bytes * 2 * (servers - 1) / servers)
        carried, hops = traffic.paths.of_pairs(order, np.roll(order, -1), sent)
        load += carried
        hop_s = float(np.mean(hops)) * topology.links[0].latency_s
        longest_s = max(longest_s, 2 * (servers - 1) * hop_s)
    return longest_s + float((load / traffic.routes.bytes_per_s).max())


def torus_all_reduce_seconds(
    topology: Topology, traffic: UniformTraffic, rows: int, columns: int, message_bytes: float
) -> float:
    """Of `message_bytes` from every server, by the algorithm of two dimensions (section V-A2), on
    a logical torus with server row * columns + column: as `traffic_patterns.torus_all_reduce` has
    it. Each of its three phases ends with its busiest link, after the latency of its steps (a
    hop's mean). Raises ValueError unless rows * columns is the number of servers, both at least 2.
    """
    if rows * columns != topology.servers or min(rows, columns) < 2:
        raise ValueError(
            f"rows, columns: {rows} x {columns} is not a torus of {topology.servers} servers"
        )
    grid = np.arange(topology.servers, dtype=np.int32).reshape(rows, columns)
    along = {size: np.roll(grid, -1, axis) for axis, size in ((1, "row"), (0, "column"))}
    lengths = {"row": columns, "column": rows}
    quarter_bytes = message_bytes / 4  # of each half in each direction
    total_s = 0.0
    for phase in range(3):
        load = np.zeros(len(traffic.routes.bytes_per_s))
        latency_s = 0.0
        for first, second in (("row", "column"), ("column", "row")):
            line = first if phase != 1 else second
            steps = (1 if phase != 1 else 2) * (lengths[line] - 1)
            chunk_bytes = quarter_bytes / lengths[first] / (1 if phase != 1 else lengths[second])
            sent = np.full(topology.servers, steps * chunk_bytes)
            for ends in ((grid, along[line]), (along[line], grid)):
                carried, hops = traffic.paths.of_pairs(ends[0].ravel(), ends[1].ravel(), sent)
                load += carried
                hop_s = float(np.mean(hops)) * topology.links[0].latency_s
                latency_s = max(latency_s, steps * hop_s)
        total_s += latency_s + float((load / traffic.routes.bytes_per_s).max())
    return total_s


def diameter(network: TableNetwork) -> int:
    """Cables on the longest of the shortest paths between accelerators; what is inside of a chassis
    is none."""
    topology = network.topology
    inside = [link for link in topology.links if link.medium == "inside"]
    if not inside:
        return network.traffic.even().hops
    chassis = list(range(topology.nodes))
    for link in inside:  # switches of a chassis are joined all to all
        chassis[link.target] = min(chassis[link.target], link.source)
    ends = {
        (chassis[link.source], chassis[link.target])
        for link in topology.links
        if chassis[link.source] != chassis[link.target]
    }
    source, target = np.array(sorted(ends), dtype=np.int32).T
    paths = _core.ShortestPathLoads(topology.nodes, source, target, np.ones(len(source)))
    sent = (np.arange(topology.nodes) < topology.servers).astype(float)
    everyone = np.arange(topology.servers, dtype=np.int32)
    return int(paths.loads(everyone, np.ones(len(everyone)), sent, np.zeros(0))[2])


def formula_diameter(mesh: HxMesh) -> int:
    """Cables between the accelerators that are farthest apart, by the formula of section III-B:
    on the boards, and through full-bandwidth trees of one for each accelerator row."""
    on_boards = 2 * ((mesh.a - 1) // 2 + (mesh.b - 1) // 2)
    half = mesh.radix / 2
    return on_boards + sum(
        2 * (math.ceil(math.log(2 * boards / mesh.radix, half) - 1e-12) + 1)
        for boards in (mesh.x, mesh.y)
    )


def formula_bisection_share(mesh: HxMesh) -> float | None:
    """Links of a cut into two halves of all boards over what the accelerators of a half inject
    (section III-A: 1 / 2a on square boards, without tapering): through all boards of half of
    the rows, or of the columns. None where both numbers are odd."""
    cuts = [side for side, boards in ((mesh.a, mesh.x), (mesh.b, mesh.y)) if boards % 2 == 0]
    return 1 / (2 * max(cuts)) if cuts else None
