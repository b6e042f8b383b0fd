"""HammingMesh: the description agrees with the network, and both with Appendix C of the paper."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.architectures import hammingmesh
from torch_topoopt.architectures.hammingmesh import DIRECTIONS, HxMesh
from torch_topoopt.plan import Cluster

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology

OPPOSITE = {"E": "W", "W": "E", "N": "S", "S": "N"}

MESHES = [
    HxMesh(2, 2, 4, 4),
    HxMesh(4, 4, 2, 3, radix=12),  # columns in trees: 6 ports are below the 24 of a board
    HxMesh(1, 1, 6, 5, radix=8, taper=0.5),
    HxMesh(2, 3, 4, 1),
    HxMesh(3, 2, 1, 4),
    HxMesh(4, 2, 3, 2, span="accelerator"),
    HxMesh(2, 2, 8, 8, radix=8, span="board", taper=0.25, column_taper=0.5),
    HxMesh(1, 1, 7, 1),
    HxMesh(4, 4, 1, 1),
]


def cluster_of(mesh: HxMesh) -> Cluster:
    return Cluster(mesh.accelerators, 4, 100.0)


def built(mesh: HxMesh) -> Topology:
    return hammingmesh.build(
        cluster_of(mesh),
        board=(mesh.a, mesh.b),
        boards=(mesh.x, mesh.y),
        radix=mesh.radix,
        span=mesh.span,
        taper=mesh.taper,
        column_taper=mesh.column_taper,
    )


@pytest.mark.parametrize("mesh", MESHES, ids=str)
class TestHxMesh:
    def test_the_links_of_an_accelerator_lead_to_its_neighbours(self, mesh: HxMesh) -> None:
        topology = built(mesh)
        found = Counter((w.source, w.target) for w in topology.links)
        of_accelerators = Counter(
            (accelerator, other)
            for accelerator in range(mesh.accelerators)
            for other in mesh.neighbours(accelerator).values()
        )
        assert {pair: found[pair] for pair in found if pair[0] < mesh.accelerators} == dict(
            of_accelerators
        )
        assert topology.nodes == mesh.nodes

    def test_neighbours_on_a_board_see_each_other_through_opposite_ports(
        self, mesh: HxMesh
    ) -> None:
        for accelerator in range(mesh.accelerators):
            for direction, other in mesh.neighbours(accelerator).items():
                if other < mesh.accelerators:
                    assert mesh.board_of(other) == mesh.board_of(accelerator)
                    assert mesh.neighbour(other, OPPOSITE[direction]) == accelerator  # type: ignore[arg-type]

    def test_numbers_places_and_boards_are_one_numbering(self, mesh: HxMesh) -> None:
        places = [mesh.place(k) for k in range(mesh.accelerators)]
        assert places == list(product(range(mesh.rows), range(mesh.columns)))
        assert [mesh.number(*place) for place in places] == list(range(mesh.accelerators))
        boards = Counter(mesh.board_of(k) for k in range(mesh.accelerators))
        assert boards == dict.fromkeys(product(range(mesh.y), range(mesh.x)), mesh.a * mesh.b)
        for k, (row, column) in enumerate(places):
            assert mesh.board_of(k) == (row // mesh.b, column // mesh.a)

    def test_every_switch_belongs_to_one_row_or_column(self, mesh: HxMesh) -> None:
        seen = []
        for switches in mesh.switches:
            for node in switches.nodes:
                assert mesh.switches_of(node) is switches
                seen.append(node)
            lines = {
                mesh.place(k)[switches.dimension == "column"] // switches.lines
                for k in mesh.ports_of(switches)
            }
            assert lines == {switches.index}
            for k in mesh.ports_of(switches):
                assert mesh.switches_at(k, switches.dimension) is switches
        assert seen == list(range(mesh.accelerators, mesh.nodes))

    def test_rings_run_along_rows_and_columns(self, mesh: HxMesh) -> None:
        for ring in built(mesh).rings:
            for k, other in pairwise((*ring.servers, ring.servers[0])):
                (i, j), (m, n) = mesh.place(k), mesh.place(other)
                down, along = (i - m) % mesh.rows, (j - n) % mesh.columns
                steps = (min(down, mesh.rows - down), min(along, mesh.columns - along))
                assert sorted(steps) == [0, 1]


def test_every_torus_has_a_cycle() -> None:
    for rows, columns in product(range(1, 8), repeat=2):
        if rows * columns > 2:
            topology = hammingmesh.build(
                Cluster(rows * columns, 4, 100.0), board=(1, 1), boards=(columns, rows)
            )
            for ring in topology.rings:
                for k, other in pairwise((*ring.servers, ring.servers[0])):
                    down, along = (k // columns - other // columns), (k - other) % columns
                    steps = (
                        min(down % rows, -down % rows),
                        min(along % columns, -along % columns),
                    )
                    assert sorted(steps) == [0, 1]
            assert len(topology.rings) == (
                4
                if min(rows, columns) > 2 or (min(rows, columns) == 2 and rows * columns % 4 == 0)
                else 2
            )


@pytest.mark.parametrize(
    ("side", "boards", "switches", "traces", "dacs", "aocs"),
    [
        (1, 32, 64, 0, 2048, 2048),
        (2, 16, 32, 1024, 1024, 1024),
        (4, 8, 16, 1536, 512, 512),
    ],
)
def test_a_small_mesh_has_the_parts_of_appendix_c(
    side: int, boards: int, switches: int, traces: int, dacs: int, aocs: int
) -> None:
    topology = hammingmesh.build(
        Cluster(1024, 16, 400.0), board=(side, side), boards=(boards, boards)
    )
    links = Counter(link.medium for link in topology.links)
    assert topology.switches == switches
    assert links == Counter({"trace": 2 * traces, "dac": 2 * dacs, "aoc": 2 * aocs})
    assert {link.gbps for link in topology.links} == {1600.0}


@pytest.mark.parametrize(
    ("side", "boards", "tree", "count"), [(1, 128, 12, 3072), (2, 64, 6, 1536), (4, 32, 1, 256)]
)
def test_a_large_mesh_has_the_trees_of_appendix_c(
    side: int, boards: int, tree: int, count: int
) -> None:
    mesh = HxMesh(side, side, boards, boards)
    assert {s.shape.switches for s in mesh.switches} == {tree}
    assert mesh.nodes - mesh.accelerators == count
    assert mesh.lines("row") == mesh.lines("column") == 1


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (lambda: HxMesh(0, 1, 2, 2), ("a", 0, 1)),
        (lambda: HxMesh(1, 1, 2, 2, span="rows"), ("span", "rows")),
        (lambda: HxMesh(1, 1, 2, 2, taper=0), ("taper", 0)),
        (lambda: HxMesh(1, 1, 2, 2, column_taper=2), ("column_taper", 2, 0)),
        (lambda: HxMesh(1, 1, 1025, 1), ("radix", 64, 2050)),
        (lambda: HxMesh(1, 1, 2, 2).switches_of(3), ("node", 3, "4..7")),
        (lambda: hammingmesh.build(Cluster(6, 4, 1.0), board=(2, 2)), ("servers", 6)),
        (lambda: hammingmesh.build(Cluster(8, 4, 1.0), boards=(3, 2)), ("boards", "3 x 2")),
        (lambda: hammingmesh.build(Cluster(8, 6, 1.0)), ("degree", 6, 4)),
        (lambda: hammingmesh.build(Cluster(8, 4, 1.0), planes=2), ("planes", 2, 4)),
    ],
)
def test_what_cannot_be_built_is_named(call: object, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        call()  # type: ignore[operator]


def test_two_planes_of_four_use_half_of_the_ports() -> None:
    topology = hammingmesh.build(Cluster(16, 16, 400.0), planes=2)
    assert {link.gbps for link in topology.links} == {800.0}


def test_defaults_are_the_squarest_of_the_largest_board() -> None:
    assert hammingmesh.default_board(64) == (4, 4)
    assert hammingmesh.default_board(32) == (2, 2)  # 4 x 4 leaves one row of boards
    assert hammingmesh.default_board(7) == (1, 1)
    assert hammingmesh.default_boards(24) == (6, 4)
    assert hammingmesh.default_boards(7) == (7, 1)
    assert set(DIRECTIONS) == set(OPPOSITE)
