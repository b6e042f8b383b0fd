"""The circuits that a job has while none is moved: those of its plan, with the plan's routes."""

from __future__ import annotations

from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from torch_topoopt.plan import Plan


class PlanCircuits:
    """The plan's circuits between servers of a group; `servers` are always in the group's order."""

    def __init__(self, plan: Plan) -> None:
        self._routes = plan.network.heaviest_routes()
        self._joined: dict[tuple[int, ...], NDArray[np.bool_]] = {}

    def joined(self, servers: tuple[int, ...]) -> NDArray[np.bool_]:
        """`[i, j]`: the data of member i for member j takes one circuit; so has a member's own."""
        if servers not in self._joined:
            direct = [
                [self._routes.get((one, other)) == (one, other) for other in servers]
                for one in servers
            ]
            self._joined[servers] = np.array(direct) | np.eye(len(servers), dtype=bool)
        return self._joined[servers]

    def present(self, links: NDArray[np.int32], servers: tuple[int, ...]) -> tuple[bool, ...]:
        """Of each topology, whether the plan has all of its circuits: links[topology, member, port]
        is the member that a port sends to."""
        members = np.arange(len(servers))[None, :, None]
        found = self.joined(servers)[members, links]
        return tuple(bool(of_topology.all()) for of_topology in found)

    def strides(self, servers: tuple[int, ...]) -> frozenset[int]:
        """Each s for which every member i has a circuit to member i + s."""
        joined, members = self.joined(servers), np.arange(len(servers))
        return frozenset(
            stride
            for stride in range(1, len(servers))
            if joined[members, (members + stride) % len(servers)].all()
        )

    def busiest_bytes(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> int:
        """The bytes on the busiest link, if member i sends matrix[i, j] to member j."""
        loads: dict[tuple[int, int], int] = {}
        for i, source in enumerate(servers):
            for j, target in enumerate(servers):
                if i == j:
                    continue
                for hop in pairwise(self._routes.get((source, target), ())):
                    loads[hop] = loads.get(hop, 0) + int(matrix[i, j])
        return max(loads.values(), default=0)


def units(servers: int) -> Iterator[int]:
    """Each u for which x -> u x is a relabelling of the servers; it multiplies strides by u."""
    return (unit for unit in range(1, servers) if gcd(unit, servers) == 1)
