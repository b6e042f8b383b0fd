"""The rules of a valid network, one function each; `validate_network` calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.route_checks import validate_routes
from torch_topoopt.plan.server_sets import check_servers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
        for server, port in ((link.source, link.source_port), (link.target, link.target_port)):
            if not 0 <= port < cluster.ports_of(server):
                raise DocumentError(
                    f"{where}: port {port} is not in 0..{cluster.ports_of(server) - 1}, the ports "
                    f"of server {server}"
                )
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


def unreachable(servers: Sequence[int], adjacent: Collection[tuple[int, int]]) -> int | None:
    """A server that cannot reach the first of `servers`, or be reached from it; None: connected."""
    after: dict[int, int] = {}  # sets of servers as the bits of an integer
    before: dict[int, int] = {}
    for source, target in adjacent:
        after[source] = after.get(source, 0) | 1 << target
        before[target] = before.get(target, 0) | 1 << source
    for neighbours in (after, before):
        seen = queue = 1 << servers[0] if servers else 0
        while queue:
            server = queue.bit_length() - 1
            near = neighbours.get(server, 0) & ~seen
            seen |= near
            queue = queue ^ 1 << server | near
        if lost := [server for server in servers if not seen >> server & 1]:
            return min(lost)
    return None


def _validate_groups(groups: tuple[Group, ...], count: int, without: int | None) -> None:
    listed: dict[frozenset[int], int] = {}
    for i, group in enumerate(groups):
        where = f"network.groups[{i}]"
        check_servers(f"{where}.servers", group.servers, count)
        if without in group.servers:
            raise DocumentError(f"{where}.servers: server {without} is lost")
        if (first := listed.setdefault(frozenset(group.servers), i)) != i:
            raise DocumentError(f"{where}.servers: the same servers as network.groups[{first}]")
        if len(group.servers) > 1 and not group.rings:
            raise DocumentError(f"{where}.rings: a group of {len(group.servers)} needs a ring")
        for j, ring in enumerate(group.rings):
            check_servers(f"{where}.rings[{j}].servers", ring.servers, count)
            if set(ring.servers) != set(group.servers):
                raise DocumentError(
                    f"{where}.rings[{j}].servers: must visit each server of the group once"
                )
            if not ring.share > 0:
                raise DocumentError(f"{where}.rings[{j}].share: {ring.share} is not above 0")
        _validate_grid(where, group, count)
        total = sum(ring.share for ring in group.rings)
        if group.rings and abs(total - 1) > 1e-9:
            raise DocumentError(f"{where}.rings: shares sum to {total}, not 1")


def _validate_grid(where: str, group: Group, count: int) -> None:
    if not group.grid:
        return
    columns = len(group.grid[0])
    for i, row in enumerate(group.grid):
        if len(row) != columns:
            raise DocumentError(
                f"{where}.grid[{i}]: a row of {len(row)} servers, where the first has {columns}"
            )
    if min(len(group.grid), columns) < 2:
        raise DocumentError(f"{where}.grid: {len(group.grid)} x {columns} is not at least 2 x 2")
    listed = tuple(server for row in group.grid for server in row)
    check_servers(f"{where}.grid", listed, count)
    if set(listed) != set(group.servers):
        raise DocumentError(f"{where}.grid: must have each server of the group once")


def validate_network(cluster: Cluster, network: Network, *, without: int | None = None) -> Network:
    """Returns `network`, or raises DocumentError for the first of these rules that is broken.

    - Links: ports exist and are used once; duplex links come in pairs; all servers are connected.
    - Groups: no two have the same servers. Each ring and grid has every server of its group once;
      shares of rings sum to 1. A grid has rows of equal length and is at least 2 x 2.
    - Routes: they use existing links, visit no server twice and cover every pair without a link;
      weights sum to 1 per pair. A lost server, `without`, has no link, group or route.
    """
    _validate_links(cluster, network.links)
    servers = [server for server in range(cluster.servers) if server != without]
    adjacent = {(link.source, link.target) for link in network.links}
    for link in network.links:
        if without in (link.source, link.target):
            raise DocumentError(
                f"network.links: server {without} is lost, so nothing links "
                f"server {link.source} to {link.target}"
            )
    lost = unreachable(servers, adjacent)
    if lost is not None:
        raise DocumentError(
            f"network.links: disconnected, server {lost} and server {servers[0]} cannot reach "
            "each other"
        )
    _validate_groups(network.groups, cluster.servers, without)
    validate_routes(network.routes, adjacent, cluster.servers, without=without)
    return network
