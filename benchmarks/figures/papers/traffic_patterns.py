"""Programs of well-known traffic patterns on a Topology: all-to-all, permutation, AllReduce.

Those of the HammingMesh paper's section V-A. Every flow has one shortest path, the first that the
topology's adaptive routing allows; with `path_choice="adaptive"` packets choose for themselves.

Where servers are one switch apart and have several ports to it, as single accelerators of a
HammingMesh, every ring has ports of its own. Where packets choose between ports instead, rings meet
there and wait for each other, and no ring can make up for that: it has one chunk at every server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.architectures.adaptive import adaptive_routing
from torch_topoopt.plan.network import hops_around

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.architectures.topology import Topology


@dataclass(frozen=True)
class PatternProgram:
    """A program of flows; `routing` gave their paths, and gives the packet level its choices,
    unless flows `keep_ports`: then their paths are what they are."""

    program: _core.FlowProgram
    routing: _core.AdaptiveRouting
    keep_ports: bool = False


@dataclass
class _Flows:
    """Flows under construction: numbers, and (flow that waits, flow that it waits for)."""

    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    size_bytes: list[float] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    def send(self, source: int, target: int, size_bytes: float, after: Iterable[int] = ()) -> int:
        """A flow that starts when those of `after` are delivered; its number."""
        flow = len(self.source)
        self.source.append(source)
        self.target.append(target)
        self.size_bytes.append(size_bytes)
        for before in after:
            self.before.append(before)
            self.after.append(flow)
        return flow

    def program(self, topology: Topology, *, on_rings: bool = False) -> PatternProgram:
        """With `on_rings`, and servers one switch apart at most, flows of different servers that
        pass the same two nodes are dealt to the links between these.

        Raises ValueError for a size that is not above 0, and as `adaptive_routing`.
        """
        program = _core.FlowProgram(topology.nodes, topology.servers)
        for link in topology.links:
            program.add_link(link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9)
        routing = adaptive_routing(topology)
        paths = self._dealt_paths(topology, routing) if on_rings else None
        if paths is None:
            source, target = (np.array(ends, dtype=np.int32) for ends in (self.source, self.target))
            routing.add_flows(program, source, target, np.array(self.size_bytes, dtype=np.float64))
        else:
            for start, end, size in zip(self.source, self.target, self.size_bytes, strict=True):
                program.add_flow(start, end, size, paths[start, end])
        before, after = (np.array(tasks, dtype=np.int32) for tasks in (self.before, self.after))
        _core.add_dependencies(program, before, after)
        return PatternProgram(program, routing, keep_ports=paths is not None)

    def _dealt_paths(
        self, topology: Topology, routing: _core.AdaptiveRouting
    ) -> dict[tuple[int, int], list[int]] | None:
        """The first path of each pair, on links of its own while there are enough; None where one
        passes more than a switch."""
        parallel: dict[tuple[int, int], list[int]] = {}
        for number, link in enumerate(topology.links):
            parallel.setdefault((link.source, link.target), []).append(number)
        taken: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        paths: dict[tuple[int, int], list[int]] = {}
        for pair in dict.fromkeys(zip(self.source, self.target, strict=True)):
            path = paths[pair] = []
            for link in (topology.links[number] for number in routing.path(*pair)):
                ports = parallel[link.source, link.target]
                users = taken.setdefault((link.source, link.target), {})
                path.append(ports[users.setdefault(pair, len(users)) % len(ports)])
            if len(path) > 2:
                return None
        return paths


def shifted_all_to_all(
    topology: Topology, size_bytes: float, *, shifts: Sequence[int] | None = None
) -> PatternProgram:
    """Server j sends `size_bytes` to j + s mod p for every s of `shifts`, by default 1 to p - 1.

    All may start at once, as with an eager protocol; with `start_order="given"` and
    `sends_at_once=4` (Table III: four send machines) a server sends them in this order. Raises
    ValueError for a shift outside 1..p-1.
    """
    servers = topology.servers
    chosen = range(1, servers) if shifts is None else shifts
    for shift in chosen:
        if not 0 < shift < servers:
            raise ValueError(f"shifts: {shift} is not in 1..{servers - 1}")
    flows = _Flows()
    for shift in chosen:
        for server in range(servers):
            flows.send(server, (server + shift) % servers, size_bytes)
    return flows.program(topology)


def random_permutation(topology: Topology, size_bytes: float, *, seed: int = 0) -> PatternProgram:
    """Every server sends `size_bytes` to another, and receives as much, all at once: a cycle
    through all servers that `seed` draws, so that nobody sends to itself. Flow i is server i's."""
    order = list(range(topology.servers))
    random.Random(seed).shuffle(order)
    peer = dict(hops_around(order))
    flows = _Flows()
    for server in range(topology.servers):
        flows.send(server, peer[server], size_bytes)
    return flows.program(topology)


def ring_all_reduce(
    topology: Topology,
    orders: Sequence[Sequence[int]],
    size_bytes: float,
    *,
    steps: int | None = None,
) -> PatternProgram:
    """An AllReduce of `size_bytes` on pipelined rings, an equal share on each of `orders` (cycles
    of servers, directed): 2 (k - 1) steps, in each of which a server sends the chunk that it has
    received in the step before; with `steps` only the first so many.

    Raises ValueError for `steps` outside 1..2 (k - 1), or no orders.
    """
    if not orders:
        raise ValueError("orders: no ring")
    flows = _Flows()
    for order in orders:
        full = 2 * (len(order) - 1)
        if steps is not None and not 1 <= steps <= full:
            raise ValueError(f"steps: {steps} is not in 1..{full}")
        chunk_bytes = size_bytes / len(orders) / len(order)
        _rotate(flows, order, chunk_bytes, full if steps is None else steps, {})
    return flows.program(topology, on_rings=True)


def torus_all_reduce(
    topology: Topology, rows: int, columns: int, size_bytes: float
) -> PatternProgram:
    """The AllReduce of `size_bytes` on a logical torus, server number row * columns + column
    (HammingMesh paper, section V-A2): reduce-scatter along the rows, AllReduce of the chunks along
    the columns, allgather along the rows, each on rings in both directions; half of the data so,
    the other half at the same time with rows and columns exchanged.

    Raises ValueError unless rows * columns is the number of servers, and both are at least 2.
    """
    if rows * columns != topology.servers or min(rows, columns) < 2:
        raise ValueError(
            f"rows, columns: {rows} x {columns} is not a torus of {topology.servers} servers"
        )
    along_rows = [[row * columns + i for i in range(columns)] for row in range(rows)]
    along_columns = [[i * columns + column for i in range(rows)] for column in range(columns)]
    flows = _Flows()
    for first, second in ((along_rows, along_columns), (along_columns, along_rows)):
        chunk_bytes = size_bytes / 2 / len(first[0]) / 2  # of each half in each direction
        width, height = len(first[0]), len(second[0])
        done = _both_ways(flows, first, chunk_bytes, width - 1, {})
        done = _both_ways(flows, second, chunk_bytes / height, 2 * (height - 1), done)
        _both_ways(flows, first, chunk_bytes, width - 1, done)
    return flows.program(topology, on_rings=True)


def _both_ways(
    flows: _Flows,
    lines: list[list[int]],
    chunk_bytes: float,
    steps: int,
    before: dict[int, list[int]],
) -> dict[int, list[int]]:
    """`_rotate` of every line, and of its reverse; what each server waits for in the end."""
    done: dict[int, list[int]] = {}
    for line in lines:
        for order in (line, line[::-1]):
            for server, last in _rotate(flows, order, chunk_bytes, steps, before).items():
                done.setdefault(server, []).extend(last)
    return done


def _rotate(
    flows: _Flows,
    order: Sequence[int],
    chunk_bytes: float,
    steps: int,
    before: dict[int, list[int]],
) -> dict[int, list[int]]:
    """So many steps of a ring in which every server sends a chunk to its successor. A server sends
    none before `before[server]` is delivered, and after the first only what it has received in the
    step before; returns what each received last."""
    last: dict[int, list[int]] = {}
    for _ in range(steps):
        received: dict[int, list[int]] = {}
        for place, server in enumerate(order):
            target = order[(place + 1) % len(order)]
            after = (*last.get(server, ()), *before.get(server, ()))
            received[target] = [flows.send(server, target, chunk_bytes, after)]
        last = received
    return last
