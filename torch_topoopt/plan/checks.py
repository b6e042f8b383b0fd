"""The rules of a valid network, one function each; `validate_network` is their door."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from torch_topoopt.data_model import DocumentError
from torch_topoopt.plan.route_checks import validate_routes
from torch_topoopt.plan.server_sets import check_servers

if TYPE_CHECKING:
    from torch_topoopt.plan.cluster import Cluster
    from torch_topoopt.plan.network import Group, Link, Network


def _validate_links(cluster: Cluster, links: tuple[Link, ...]) -> None:
    """Each end exists, each transmitter and receiver is used once, duplex links have a twin."""
    transmitters: dict[tuple[int, int], int] = {}
    receivers: dict[tuple[int, int], int] = {}
    for i, link in enumerate(links):
        where = f"network.links[{i}]"
        for server in (link.source, link.target):
            if not 0 <= server < cluster.servers:
                raise DocumentError(f"{where}: server {server} is not in 0..{cluster.servers - 1}")
        for port in (link.source_port, link.target_port):
            if not 0 <= port < cluster.degree:
                raise DocumentError(f"{where}: port {port} is not in 0..{cluster.degree - 1}")
        if link.source == link.target:
            raise DocumentError(f"{where}: connects server {link.source} to itself")
        for used, end in (
            (transmitters, (link.source, link.source_port)),
            (receivers, (link.target, link.target_port)),
        ):
            if end in used:
                raise DocumentError(
                    f"{where}: port {end[1]} of server {end[0]} is already used by "
                    f"network.links[{used[end]}]"
                )
            used[end] = i
    if cluster.ports == "duplex":
        present = set(links)
        for i, link in enumerate(links):
            if link.reverse not in present:
                raise DocumentError(
                    f"network.links[{i}]: a duplex cable needs its other direction, "
                    f"server {link.target} port {link.target_port} to server {link.source} "
                    f"port {link.source_port}"
                )


def _unreachable(count: int, adjacent: set[tuple[int, int]]) -> int | None:
    """A server that server 0 cannot reach, or that cannot reach server 0; None if connected."""
    for flip in (False, True):
        neighbours: dict[int, list[int]] = {}
        for source, target in adjacent:
            a, b = (target, source) if flip else (source, target)
            neighbours.setdefault(a, []).append(b)
        seen = {0}
        queue = deque([0])
        while queue:
            for server in neighbours.get(queue.popleft(), ()):
                if server not in seen:
                    seen.add(server)
                    queue.append(server)
        if len(seen) < count:
            return min(set(range(count)) - seen)
    return None


def _validate_groups(cluster: Cluster, groups: tuple[Group, ...]) -> None:
    for i, group in enumerate(groups):
        where = f"network.groups[{i}]"
        check_servers(f"{where}.servers", group.servers, cluster.servers)
        if len(group.servers) > 1 and not group.rings:
            raise DocumentError(f"{where}.rings: a group of {len(group.servers)} needs a ring")
        for j, ring in enumerate(group.rings):
            check_servers(f"{where}.rings[{j}].servers", ring.servers, cluster.servers)
            if set(ring.servers) != set(group.servers):
                raise DocumentError(
                    f"{where}.rings[{j}].servers: must visit each server of the group once"
                )
            if not ring.share > 0:
                raise DocumentError(f"{where}.rings[{j}].share: {ring.share} is not above 0")
        total = sum(ring.share for ring in group.rings)
        if group.rings and abs(total - 1) > 1e-9:
            raise DocumentError(f"{where}.rings: shares sum to {total}, not 1")


def validate_network(cluster: Cluster, network: Network) -> Network:
    """Returns `network`, or raises DocumentError for the first of these rules that is broken.

    Ports exist and are used once; duplex links come in pairs; every server reaches every other;
    every ring visits each server of its group exactly once and shares sum to 1; routes use existing
    links, visit no server twice, cover every pair without a link, and weights sum to 1 per pair.
    """
    _validate_links(cluster, network.links)
    adjacent = {(link.source, link.target) for link in network.links}
    lost = _unreachable(cluster.servers, adjacent)
    if lost is not None:
        raise DocumentError(
            f"network.links: disconnected, server {lost} and server 0 cannot reach each other"
        )
    _validate_groups(cluster, network.groups)
    validate_routes(network.routes, adjacent, cluster.servers)
    return network
