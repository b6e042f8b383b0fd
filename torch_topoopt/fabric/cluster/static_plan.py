"""Cluster files as networks to plan on, and Plans on the cables of cluster files. Pure functions.

Servers keep their numbers of the file. A Plan numbers a server's ports freely; it needs only a
cable between the two servers for each of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import Cluster, Link, Network
from torch_topoopt.topology.finder.fixed_network import UNKNOWN_GBPS, Cable, network_of_cables
from torch_topoopt.topology.routing.shortest_paths import hop_distances, neighbours

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.plan import Plan

# Server and port of a Plan -> "server:port" of the cluster file
PortNames = dict[tuple[int, int], str]


def cluster_of(file: ClusterFile) -> Cluster:
    """The servers of `file`, with their cabled ports and each port's rate.

    Ports are numbered as in `network_of`. Raises FabricError if they form no valid Cluster.
    """
    cabled = {end for cable in file.cables for end in cable}
    rates: list[list[float]] = [[] for _ in file.servers]
    for end, (server, port) in file.ports.items():
        if end in cabled:
            rates[server].append(port.gbps or UNKNOWN_GBPS)
    different = {gbps for of_server in rates for gbps in of_server}
    return Cluster(
        servers=len(file.servers),
        degree=max(1, *map(len, rates)),
        link_gbps=min(different, default=UNKNOWN_GBPS),
        accelerators_per_server=accelerators_of(file),
        inside_gbps=inside_of(file),
        port_gbps=tuple(map(tuple, rates)) if len(different) > 1 else None,
    ).validate(any_degree=True)


def stated_rates(file: ClusterFile) -> dict[tuple[str, str], float | None]:
    """Gb/s of each cable, by its ends, from the file; None if the file has no rate."""
    return {
        cable: min((gbps for end in cable if (gbps := file.ports[end][1].gbps)), default=None)
        for cable in file.cables
    }


def accelerators_of(file: ClusterFile) -> int:
    """The number that every server has; raises FabricError if some have more than others."""
    few = min(file.servers, key=lambda server: server.accelerators)
    many = max(file.servers, key=lambda server: server.accelerators)
    if few.accelerators != many.accelerators:
        raise FabricError(
            f"accelerators: {few.name} has {few.accelerators} and {many.name} has "
            f"{many.accelerators}; a job has equally many ranks on every server"
        )
    return few.accelerators


def inside_of(file: ClusterFile) -> float | None:
    """Gb/s between the accelerators of the slowest server, None if no server says it."""
    rates = (server.inside_gbps for server in file.servers)
    return min((gbps for gbps in rates if gbps is not None), default=None)


def network_of(file: ClusterFile) -> Network:
    """Rings and routes on all cables of `file`; raises FabricError if a server is not connected.

    Port k of a server is the k-th of its ports that has a cable, in the order of the file.
    """
    used = [0] * len(file.servers)
    numbers: dict[str, int] = {}
    plugged = {end for cable in file.cables for end in cable}
    for end, (server, _) in file.ports.items():
        if end in plugged:
            numbers[end] = used[server]
            used[server] += 1
    links: list[Link] = []
    cables: list[Cable] = []
    for a, b in file.cables:
        link = Link(file.ports[a][0], numbers[a], file.ports[b][0], numbers[b])
        links += [link, link.reverse]
        low, high = sorted((a, b), key=lambda end: file.ports[end][0])
        pair = (file.ports[low][0], file.ports[high][0])
        cables.append(Cable(pair, (low, high), _gbps(file, (a, b))))
    _check_connected(file, links)
    return network_of_cables(len(file.servers), tuple(links), cables)


def connected_part(file: ClusterFile, servers: Iterable[int]) -> list[int]:
    """Those of `servers` that cables or switches join with server 0, also through each other.

    Server 0 is one of them. Any two ports of a switch may be joined.
    """
    among = set(servers)
    pairs = [(file.ports[a][0], file.ports[b][0]) for a, b in file.cables]
    first: dict[str, int] = {}  # of `among` on each switch
    for server, port in file.ports.values():
        if port.switch is not None and server in among:
            pairs.append((first.setdefault(port.switch.partition(":")[0], server), server))
    inside = [pair for a, b in pairs if a != b and among >= set(pair := (a, b))]
    edges = [edge for a, b in inside for edge in ((a, b), (b, a))]
    distances = hop_distances(neighbours(len(file.servers), edges), 0)
    return sorted(server for server in among if distances[server] >= 0)


def check_servers(plan: Plan, file: ClusterFile) -> None:
    """Raises FabricError unless `plan` is for as many servers as `file` has, and for cables."""
    if plan.cluster.servers != len(file.servers):
        raise FabricError(
            f"plan: is for {plan.cluster.servers} servers, and cluster {file.name} has "
            f"{len(file.servers)}; make one with `topoopt plan --cluster`"
        )
    if plan.cluster.ports != "duplex":
        raise FabricError(
            "plan: is for simplex ports, and a cable carries both directions; use one for duplex "
            "ports"
        )


def place(plan: Plan, file: ClusterFile) -> PortNames:
    """The port of the cluster file for each port of `plan`.

    Raises FabricError naming the first cable that the plan needs and the file does not have.
    """
    check_servers(plan, file)
    free: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for a, b in file.cables:
        low, high = sorted((a, b), key=lambda end: file.ports[end][0])
        pair = (file.ports[low][0], file.ports[high][0])
        free.setdefault(pair, []).append((low, high))
    placed: PortNames = {}
    for link in plan.network.links:
        if link.source > link.target:
            continue  # the other direction of a cable
        cables = free.get((link.source, link.target))
        if not cables:
            raise FabricError(_missing_cable(link, plan, file))
        placed[link.source, link.source_port], placed[link.target, link.target_port] = cables.pop(0)
    return placed


def unverified_wiring(plan: Plan, file: ClusterFile, tcp_port: int) -> Wiring:
    """`plan` at the addresses of the cluster file, without checks on the machines.

    Raises FabricError naming the first cable that the plan needs and the file does not have.
    """
    ports = tuple(
        PortAddress(
            server,
            port,
            file.ports[end][1].ip,
            None,
            speed_gbps=file.ports[end][1].gbps,
            interface=file.ports[end][1].interface,
        )
        for (server, port), end in place(plan, file).items()
    )
    wiring = Wiring(Wiring.VERSION, "static", plan.digest(), tcp_port, ports)
    return wiring.validate().check(plan)


def _gbps(file: ClusterFile, cable: tuple[str, str]) -> float:
    return min(file.ports[end][1].gbps or UNKNOWN_GBPS for end in cable)


def _check_connected(file: ClusterFile, links: list[Link]) -> None:
    count = len(file.servers)
    distances = hop_distances(neighbours(count, [(k.source, k.target) for k in links]), 0)
    lost = [file.servers[server].name for server in range(count) if distances[server] < 0]
    if lost:
        raise FabricError(
            f"cables: {', '.join(lost)} and {file.servers[0].name} are not connected, not even "
            f"through other servers of cluster {file.name}"
        )


def _missing_cable(link: Link, plan: Plan, file: ClusterFile) -> str:
    ends = (link.source, link.target)
    source, target = (file.servers[server].name for server in ends)
    needed = sum((k.source, k.target) == ends for k in plan.network.links)
    there = sum({file.ports[a][0], file.ports[b][0]} == set(ends) for a, b in file.cables)
    others = [
        file.servers[file.ports[far][0]].name
        for cable in file.cables
        for near, far in (cable, cable[::-1])
        if file.ports[near][0] == link.source
    ]
    return (
        f"the plan needs {'a cable' if needed == 1 else f'{needed} cables'} between {source} and "
        f"{target} (server {link.source} port {link.source_port}, server {link.target} port "
        f"{link.target_port}), but cluster {file.name} has {there or 'none'}; the cables of "
        f"{source} go to {', '.join(sorted(set(others))) or 'no server'}"
    )
