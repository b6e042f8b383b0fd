"""A placement in words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from torch_topoopt.plan import Placement

_MOST_LISTED = 4  # servers that are named one by one


def placement_text(placement: Placement) -> str:
    """ "whole on server 3", "samples in 2, columns in 4, on servers 0-7"."""
    servers = placement.servers
    if len(servers) == 1:
        return f"whole on server {servers[0]}"
    parts = [
        f"{name} in {degree}"
        for name, degree in (
            ("samples", placement.sample),
            ("columns", placement.columns),
            ("rows", placement.rows),
            ("experts", placement.experts),
            ("sequence", placement.attribute),
        )
        if degree > 1
    ]
    return f"{', '.join(parts)}, on {servers_text(servers)}"


def servers_text(servers: tuple[int, ...]) -> str:
    """ "servers 0-7", "servers 1, 5, 9", "8 servers 0, 16 .. 112"."""
    if len(servers) == 1:
        return f"server {servers[0]}"
    steps = {after - before for before, after in itertools.pairwise(servers)}
    if steps == {1}:
        return f"servers {servers[0]}-{servers[-1]}"
    if len(servers) <= _MOST_LISTED:
        return f"servers {', '.join(map(str, servers))}"
    count = counted(len(servers), "server")
    return f"{count} {servers[0]}, {servers[1]} .. {servers[-1]}"
