"""Sets of servers, as groups, routes and placements name them."""

from __future__ import annotations

from torch_topoopt.plan.codec import DocumentError


def check_servers(where: str, servers: tuple[int, ...], count: int) -> None:
    """Raises DocumentError unless `servers` are distinct and in 0..count-1."""
    if not servers:
        raise DocumentError(f"{where}: empty")
    for server in servers:
        if not 0 <= server < count:
            raise DocumentError(f"{where}: server {server} is not in 0..{count - 1}")
    if len(set(servers)) != len(servers):
        raise DocumentError(f"{where}: {list(servers)} names a server twice")
