"""The network half of a plan for servers that are wired as a two-dimensional torus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Cluster, Group, Link, Network, validate_network
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.network import rings_of
from torch_topoopt.topology.finder.fixed_network import hamiltonian_cycle
from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles
from torch_topoopt.topology.routing.routes import plan_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

EAST, SOUTH, WEST, NORTH = range(4)  # ports


def torus_cluster(rows: int, columns: int, link_gbps: float) -> Cluster:
    """The cluster that `torus_network` wires: four ports of `link_gbps` at each of its servers."""
    return Cluster(rows * columns, 4, link_gbps, parallel_links=min(rows, columns) == 2)


def torus_network(cluster: Cluster, rows: int, columns: int) -> Network:
    """Server i * columns + j in row i and column j, joined to the next ones of both.

    Ports 0 to 3 lead east, south, west and north; a dimension of two has two cables between its
    servers. Of the AllReduce of all servers the group has the rows as its grid, and as rings the
    two cycles that share no cable (`disjoint_cycles`), in both directions: four rings. A dimension
    of two beside an odd one has no such cycles, and gets one cycle. Every row and every column is
    a group of its own, on its own cables. A HammingMesh is such a network of its accelerators: what
    leaves a board goes through the switch of its row or column to the next one (HammingMesh paper,
    section III).

    Raises DocumentError for fewer than 2 rows or columns, or a cluster of other servers or ports.
    """
    if min(rows, columns) < 2:
        raise DocumentError(f"torus: {rows} x {columns} is not at least 2 x 2")
    if (cluster.servers, cluster.ports) != (rows * columns, "duplex") or cluster.degree < 4:
        raise DocumentError(
            f"cluster: {cluster.servers} servers with {cluster.degree} {cluster.ports} ports are "
            f"no {rows} x {columns} torus, which is {rows * columns} with 4 duplex ones"
        )
    grid = tuple(tuple(range(i * columns, (i + 1) * columns)) for i in range(rows))
    cables = [
        Link(server, near, target, far)
        for i, row in enumerate(grid)
        for j, server in enumerate(row)
        for near, far, target in (
            (EAST, WEST, grid[i][(j + 1) % columns]),
            (SOUTH, NORTH, grid[(i + 1) % rows][j]),
        )
    ]
    links = tuple(link for cable in cables for link in (cable, cable.reverse))
    everyone = tuple(range(cluster.servers))
    lines = (*grid, *zip(*grid, strict=True))
    groups = (
        Group(everyone, rings_of(_cycles(rows, columns, links), both_ways=True), grid),
        *(Group(line, rings_of([line], both_ways=True)) for line in lines),
    )
    routes = plan_routes(cluster.servers, links, {}, {})
    return validate_network(cluster, Network(links, groups, routes))


def _cycles(rows: int, columns: int, links: Sequence[Link]) -> Sequence[tuple[int, ...]]:
    if has_disjoint_cycles(rows, columns):
        return disjoint_cycles(rows, columns)
    pairs = {(link.source, link.target): 1.0 for link in links if link.source < link.target}
    cycle = hamiltonian_cycle(rows * columns, pairs)
    assert cycle is not None, "every torus has a cycle"
    return [cycle]
