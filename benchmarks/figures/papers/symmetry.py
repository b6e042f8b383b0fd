"""Which nodes and edges of a network are alike, from permutations that are checked, not trusted.

A permutation of the nodes that maps servers to servers and every edge to one of the same rate maps
shortest paths to shortest paths, so that traffic that is the same from every server to every other
loads all edges of an orbit alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torch_topoopt.architectures.hammingmesh import HxMesh
    from torch_topoopt.architectures.routing import Routes

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Orbits:
    """The number of the orbit of every node and of every edge (`Routes.index`)."""

    of_node: Ints
    of_edge: Ints

    @property
    def edges(self) -> int:
        return int(self.of_edge.max(initial=-1)) + 1


def orbits(routes: Routes, permutations: Iterable[Ints] = ()) -> Orbits:
    """Those under all `permutations` that map the network of `routes` to itself; the others are
    left out. Without any, every node and edge is alone."""
    nodes, servers = routes.topology.nodes, routes.topology.servers
    ends = np.array(list(routes.index), dtype=np.int64).reshape(-1, 2)
    code = ends[:, 0] * nodes + ends[:, 1]
    order = np.argsort(code)
    node_pairs: list[tuple[Ints, Ints]] = []
    edge_pairs: list[tuple[Ints, Ints]] = []
    for moved in permutations:
        if not _is_permutation(moved, nodes, servers):
            continue
        image = moved[ends[:, 0]] * nodes + moved[ends[:, 1]]
        at = np.searchsorted(code[order], image)
        edge = order[np.minimum(at, len(order) - 1)]
        same_rate = np.array_equal(routes.bytes_per_s[edge], routes.bytes_per_s)
        if np.array_equal(code[edge], image) and same_rate:
            node_pairs.append((np.arange(nodes), moved))
            edge_pairs.append((np.arange(len(code)), edge))
    return Orbits(_classes(nodes, node_pairs), _classes(len(code), edge_pairs))


def _is_permutation(moved: Ints, nodes: int, servers: int) -> bool:
    return (
        len(moved) == nodes
        and np.array_equal(np.sort(moved), np.arange(nodes))
        and bool((moved[:servers] < servers).all())
    )


def _classes(count: int, pairs: list[tuple[Ints, Ints]]) -> Ints:
    """The number of the class of each of `count` items, where the items of each pair are alike."""
    if not pairs:
        return np.arange(count)
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    left = np.concatenate([a for a, _ in pairs])
    right = np.concatenate([b for _, b in pairs])
    graph: Any = coo_matrix((np.ones(len(left)), (left, right)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def torus_permutations(rows: int, columns: int) -> list[Ints]:
    """A step along each dimension of servers numbered row by row, and the mirror of each."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    moved = (np.roll(grid, 1, 0), np.roll(grid, 1, 1), grid[::-1], grid[:, ::-1])
    return [np.ascontiguousarray(one).reshape(-1) for one in moved]


def mesh_permutations(mesh: HxMesh) -> list[Ints]:
    """Boards of a row (column) change places: two neighbours under one leaf, all those of a leaf in
    turn, all leaves in turn; and the mirror of each dimension. Spines keep their places."""
    found: list[Ints] = []
    for along_row in (True, False):
        boards, size = (mesh.x, mesh.a) if along_row else (mesh.y, mesh.b)
        shape = mesh.shape("row" if along_row else "column")
        per_leaf = max(1, shape.down // (2 * mesh.lines("row" if along_row else "column")))
        here = np.arange(boards)
        for swap in ([0, 1], list(range(min(per_leaf, boards)))):
            if len(swap) <= min(per_leaf, boards) and len(swap) > 1:
                order = here.copy()
                order[swap] = np.roll(swap, 1)
                found.append(_moved(mesh, order, along_row, mirrored=False))
        found.append(_moved(mesh, np.roll(here, per_leaf), along_row, mirrored=False))
        if boards * size > 1:
            found.append(_moved(mesh, here[::-1], along_row, mirrored=True))
    return found


def _moved(mesh: HxMesh, boards: Ints, along_row: bool, *, mirrored: bool) -> Ints:
    """Board i of every row (column) to boards[i], its accelerators in order or against it. Each
    leaf follows the first of its ports; a spine stays, or follows its row."""
    size = mesh.a if along_row else mesh.b
    within = np.arange(size)[::-1] if mirrored else np.arange(size)
    line = (boards[:, None] * size + within[None, :]).reshape(-1)
    grid = np.arange(mesh.accelerators).reshape(mesh.rows, mesh.columns)
    accelerators = (grid[:, line] if along_row else grid[line, :]).reshape(-1)
    moved = np.full(mesh.nodes, -1, dtype=np.int64)
    moved[: mesh.accelerators] = accelerators
    for switches in mesh.switches:
        down = switches.shape.down
        ports = list(mesh.ports_of(switches))
        to = mesh.switches_at(int(accelerators[ports[0]]), switches.dimension)
        assert to is not None
        places = list(mesh.ports_of(to))
        for leaf, head in zip(switches.leaves, ports[::down], strict=True):
            moved[leaf] = to.first + places.index(int(accelerators[head])) // down
        moved[list(switches.spines)] = list(to.spines)
    return moved
