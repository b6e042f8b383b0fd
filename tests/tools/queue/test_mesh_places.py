"""Servers of a HammingMesh for jobs: whole boards, virtual sub-meshes, moves that make room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mesh_cluster import make_mesh_cluster
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import HammingMeshEntry
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.shared_networks.allocation.boards import SubMesh
from torch_topoopt.tools.queue.mesh_places import MeshPlaces
from torch_topoopt.tools.queue.partition import check_fits, job_cluster, lay_out, sides_of
from torch_topoopt.tools.queue.scheduler import Holding, Waiting, assign

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Plan


def places(columns: int, rows: int, board: tuple[int, int] = (1, 1)) -> MeshPlaces:
    found = MeshPlaces.of(make_mesh_cluster(columns, rows, board))
    assert found is not None
    return found


@settings(max_examples=60)
@given(st.data())
def test_a_job_gets_whole_boards_of_a_submesh_that_are_free(data: st.DataObject) -> None:
    mesh = places(4, 3, (2, 1))
    busy = data.draw(st.sets(st.sampled_from(mesh.names), max_size=8))
    boards = data.draw(st.integers(1, 6))
    chosen = mesh.choose(set(mesh.names) - busy, 2 * boards)
    if chosen is None:
        return
    assert len(chosen) == 2 * boards
    assert not chosen & busy
    own = mesh.sub_mesh(chosen)
    assert own.size == boards
    assert set(mesh.names_of(own)) == chosen
    assert mesh.names_of(own) == [name for name in mesh.names if name in chosen]


def test_servers_are_numbered_row_by_row_of_accelerators() -> None:
    mesh = places(2, 2, (2, 2))
    assert mesh.names_of(SubMesh((1,), (0,))) == ["h8", "h9", "h12", "h13"]
    assert mesh.sub_mesh(["h2", "h3", "h6", "h7"]) == SubMesh((0,), (1,))


def test_half_a_board_is_refused_and_so_is_what_has_no_shape(
    ring_plan: Callable[..., Plan],
) -> None:
    cluster = make_mesh_cluster(3, 2, (2, 1))
    check_fits(ring_plan(4), cluster)
    with refused(FabricError, "servers", 3):
        check_fits(ring_plan(3), cluster)
    with refused(FabricError, "sub-mesh", 5):
        check_fits(ring_plan(10), cluster)
    few = replace(
        cluster,
        servers=tuple(replace(s, ports=s.ports[:1]) for s in cluster.servers),
    )
    with refused(FabricError, "degree", 2):
        check_fits(ring_plan(4), few)


def test_the_scheduler_gives_jobs_disjoint_submeshes(ring_plan: Callable[..., Plan]) -> None:
    cluster = make_mesh_cluster(4, 4)
    mesh = MeshPlaces.of(cluster)
    assert mesh is not None
    queue = [Waiting(1, 6, 2), Waiting(2, 4, 2), Waiting(3, 9, 2)]
    found = assign(sides_of(cluster), [], queue, mesh.choose)
    assert [a.job for a in found] == [1, 2]  # six boards are left
    assert not set(found[0].servers) & set(found[1].servers)
    for each in found:
        assert mesh.sub_mesh(each.servers).size == len(each.servers)
    layout = lay_out(ring_plan(6), cluster, found[0].servers, found[0].side)
    assert layout.connections == ()
    own = job_cluster(cluster, layout, "job")
    assert [server.name for server in own.servers] == list(found[0].servers)
    assert own.hammingmesh is None
    held = [Holding(1, 1, frozenset(found[0].servers), "switch", True)]
    assert assign(sides_of(cluster), held, [Waiting(4, 16, 2)], mesh.choose) == []


def test_moves_that_would_make_room_are_found() -> None:
    mesh = places(4, 2)
    holding = {1: ["h0", "h1"], 2: ["h6", "h7"]}
    plan = mesh.moves_for(holding, 3, 4)
    assert [move.job.name for move in plan.moves][-1] == "3"
    assert sum(move.before is not None for move in plan.moves) == 1
    assert mesh.moves_for({1: ["h0"]}, 2, 4).moves[-1].before is None  # it only starts


def test_the_mesh_of_a_cluster_file_is_read_as_it_is_written() -> None:
    cluster = make_mesh_cluster(3, 2, (2, 1))
    text = cluster.to_yaml()
    assert "boards: 3x2" in text.replace('"', "")
    assert ClusterFile.from_yaml(text) == cluster
    short = text.replace(", boards_per_leaf: 16", "")
    assert short != text
    assert ClusterFile.from_yaml(short) == cluster
    assert cluster.without(["h0"]).hammingmesh is None


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [
        ("3x2", "3x3", ("hammingmesh", "3x3", "2x1", 18, 12)),
        ("3x2", "3", ("hammingmesh.boards", 3, "16x16")),
        ("2x1", "0x1", ("hammingmesh.board", "0x1", "2x2")),
        ("boards_per_leaf: 16", "boards_per_leaf: 0", ("boards_per_leaf", 0, 1)),
        ("boards_per_leaf: 16", "leaf: 16", ("hammingmesh.leaf",)),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(
    before: str, after: str, tokens: tuple[object, ...]
) -> None:
    text = make_mesh_cluster(3, 2, (2, 1)).to_yaml()
    head, _, mesh = text.partition("hammingmesh:")
    assert before in mesh
    with refused(DocumentError, *tokens):
        ClusterFile.from_yaml(f"{head}hammingmesh:{mesh.replace(before, after)}")


def test_a_mesh_has_no_cables_and_every_server_has_ports() -> None:
    cluster = make_mesh_cluster(2, 1)
    with refused(DocumentError, "cables", "HammingMesh"):
        replace(cluster, cables=(("h0:p0", "h1:p0"),)).validate()
    bare = replace(cluster.servers[0], ports=())
    with refused(DocumentError, "servers[0].ports", "HammingMesh"):
        replace(cluster, servers=(bare, cluster.servers[1])).validate()
    assert HammingMeshEntry((4, 3), (2, 2)).servers == 48
