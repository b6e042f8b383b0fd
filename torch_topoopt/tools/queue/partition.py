"""A job's part of the cluster: its servers, one side of their ports, and the sockets behind them.

A job's changes use only the cluster file from `partition`, without other servers and sockets: its
sockets are the fence of every change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.switches.selector import SIDES
from torch_topoopt.links.errors import FabricError
from torch_topoopt.shared_networks.allocation.board_job import DEFAULT_MOST_ASPECT
from torch_topoopt.tools.queue.jobs import Connection, JobLayout
from torch_topoopt.tools.queue.mesh_places import MeshPlaces
from torch_topoopt.tools.queue.scheduler import ServerSides, Waiting, fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry, SwitchEntry
    from torch_topoopt.fabric.switches.selector import Side
    from torch_topoopt.plan import Plan


def partition(cluster: ClusterFile, names: Sequence[str], side: Side) -> ClusterFile:
    """The servers `names`, in this order, as a cluster whose ports are on the sockets of `side`.

    Raises DocumentError for a server that the cluster does not have.
    """
    servers = []
    for name in names:
        server = cluster.servers[cluster.server_number(name)]
        ports = tuple(
            replace(port, switch=_socket(port, side), lookahead=None) for port in server.ports
        )
        servers.append(replace(server, ports=ports))
    return replace(
        cluster,
        servers=tuple(servers),
        cables=tuple(c for c in cluster.cables if all(e.split(":")[0] in names for e in c)),
        switches=_switches(cluster, {p.switch for s in servers for p in s.ports if p.switch}),
        selector=None,
        hammingmesh=None,
    ).validate()


def unheld(cluster: ClusterFile, held: Iterable[tuple[str, Side]]) -> ClusterFile | None:
    """The cluster with the sockets of ports without a job; None if there are none."""
    taken = set(held)
    sockets = {
        plug
        for server in cluster.servers
        for port in server.ports
        for side in SIDES
        if (server.name, side) not in taken and (plug := _socket(port, side)) is not None
    }
    if not sockets:
        return None
    bare = tuple(
        replace(s, ports=tuple(replace(p, switch=None, lookahead=None) for p in s.ports))
        for s in cluster.servers
    )
    return replace(cluster, servers=bare, switches=_switches(cluster, sockets), selector=None)


def sides_of(cluster: ClusterFile) -> list[ServerSides]:
    """The servers of a cluster as the scheduler sees them.

    Those of a HammingMesh have one side, on which all ports are.
    """
    if cluster.hammingmesh is not None:
        return [
            ServerSides(server.name, {SIDES[0]: len(server.ports), SIDES[1]: 0})
            for server in cluster.servers
        ]
    return [
        ServerSides(
            server.name,
            {side: sum(_socket(port, side) is not None for port in server.ports) for side in SIDES},
        )
        for server in cluster.servers
    ]


def selected_ports(cluster: ClusterFile, names: Sequence[str]) -> list[str]:
    """The ports of these servers that have a 1x2 switch."""
    return [
        f"{server.name}:{port.name}"
        for server in cluster.servers
        if server.name in names
        for port in server.ports
        if port.lookahead is not None
    ]


def ports_needed(plan: Plan) -> int:
    """The most ports that a server of `plan` uses; raises FabricError for a simplex plan."""
    if plan.cluster.ports != "duplex":
        raise FabricError("plan: is for simplex ports, and a cable carries both directions")
    used = Counter(link.source for link in plan.network.links)
    return max(used.values(), default=0)


def lay_out(plan: Plan, cluster: ClusterFile, names: Sequence[str], side: Side) -> JobLayout:
    """The sockets to connect for the cables of `plan`; deterministic.

    None on a HammingMesh, whose trees lead from any server to any. Raises FabricError saying what
    does not fit.
    """
    if cluster.hammingmesh is not None:
        return JobLayout(JobLayout.VERSION, side, tuple(names), ())
    part = partition(cluster, names, side)
    ends = {port.switch: end for end, (_, port) in part.ports.items() if port.switch}
    placed = place_on_switches(plan, part)
    connections = tuple(
        Connection(switch, pair, (ends[f"{switch}:{pair[0]}"], ends[f"{switch}:{pair[1]}"]))
        for switch, pairs in placed.cables.items()
        for pair in pairs
    )
    return JobLayout(JobLayout.VERSION, side, tuple(names), connections)


def check_fits(plan: Plan, cluster: ClusterFile) -> None:
    """Raises FabricError if `plan` could not run even if the whole cluster were free."""
    servers = plan.cluster.servers
    if servers > len(cluster.servers):
        raise FabricError(
            f"servers: the job needs {servers}, cluster {cluster.name} has {len(cluster.servers)}; "
            "it could never run"
        )
    ports = ports_needed(plan)
    mesh = MeshPlaces.of(cluster)
    if mesh is not None:
        _check_fits_boards(servers, ports, cluster, mesh)
        return
    place = fits(sides_of(cluster), Waiting(0, servers, ports))
    if place is None:
        raise FabricError(
            f"degree: the job needs {servers} servers with {ports} ports on switches each, and "
            f"cluster {cluster.name} has fewer; it could never run"
        )
    lay_out(plan, cluster, place.servers, place.side)


def _check_fits_boards(servers: int, ports: int, cluster: ClusterFile, mesh: MeshPlaces) -> None:
    per_board = mesh.servers_per_board
    if servers % per_board:
        raise FabricError(
            f"servers: the job needs {servers}, and cluster {cluster.name} gives whole boards of "
            f"{per_board}"
        )
    fewest = min(len(server.ports) for server in cluster.servers)
    if ports > fewest:
        raise FabricError(f"degree: the job needs {ports} ports of a server, and one has {fewest}")
    if mesh.choose(mesh.names, servers) is None:
        raise FabricError(
            f"servers: no sub-mesh of {servers // per_board} boards, its longer side at most "
            f"{DEFAULT_MOST_ASPECT:g} times the shorter, is in {mesh.boards.columns}x"
            f"{mesh.boards.rows} boards; it could never run"
        )


def cables_of(layout: JobLayout) -> dict[str, list[tuple[str, str]]]:
    """Switch -> pairs of sockets, as `fabric.cluster_switches` takes them."""
    cables: dict[str, list[tuple[str, str]]] = {}
    for connection in layout.connections:
        a, b = connection.sockets
        cables.setdefault(connection.switch, []).append((a, b))
    return cables


def job_cluster(cluster: ClusterFile, layout: JobLayout, name: str) -> ClusterFile:
    """The partition as the job's hosts see it: a cluster of its own, whose cables are plugged."""
    part = partition(cluster, layout.servers, layout.side)
    bare = tuple(
        replace(s, ports=tuple(replace(port, switch=None) for port in s.ports))
        for s in part.servers
    )
    made = tuple((c.ends[0], c.ends[1]) for c in layout.connections)
    return replace(
        part, name=name, servers=bare, cables=(*part.cables, *made), switches=()
    ).validate()


def _socket(port: PortEntry, side: Side) -> str | None:
    return port.switch if side == "switch" else port.lookahead


def _switches(cluster: ClusterFile, plugs: set[str]) -> tuple[SwitchEntry, ...]:
    """The switches that have some of the sockets `plugs`, with those only."""
    return tuple(
        replace(entry, sockets=tuple(s for s in entry.sockets if f"{entry.name}:{s}" in plugs))
        for entry in cluster.switches
        if any(f"{entry.name}:{s}" in plugs for s in entry.sockets)
    )
