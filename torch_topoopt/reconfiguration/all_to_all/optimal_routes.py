"""Routes by a linear program that minimises the load of the busiest circuits of all topologies.

DirectConnect ("Efficient Direct-Connect Topologies for Collective Communications", NSDI'25) routes
an all-to-all on one topology as a multi-commodity flow, a commodity for each source. Over several
topologies, server x on topology i is a node, and a chunk may wait there for the next topology. The
objective is the sum, over topologies, of the busiest circuit's load. The program's flows are
fractional; chunks are routed along them one by one, and the next source compensates for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.sequence_routes import schedule_along

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

MOST_VARIABLES = 8400  # 64 servers with two circuits on one topology, 32 on three
_HOP, _WAIT = 1e-4, 1e-5  # small weights besides the loads, so that no flow runs in cycles
_NONE = 1e-7


def variables(servers: int, degree: int, topologies: int) -> int:
    """An upper bound: for each source one per circuit, and one per wait."""
    return servers * servers * (degree * topologies + topologies - 1)


def optimal_schedule(
    links: NDArray[np.int32], counts: NDArray[np.int32]
) -> tuple[AllToAllSchedule, float]:
    """(schedule over the topologies `links[topology, server, port]`, the program's sum of the
    busiest circuits' chunks: a lower bound for schedules over them).

    Topologies without sends are omitted. Raises ValueError for a pair without a path of
    circuits lead to, and a program with more than MOST_VARIABLES.
    """
    d, n, degree = links.shape
    if variables(n, degree, d) > MOST_VARIABLES:
        raise ValueError(
            f"servers: {n} with {degree} circuits on {d} topologies make a linear program of "
            f"{variables(n, degree, d)} variables, more than {MOST_VARIABLES}"
        )
    graph = _TimedGraph.of(links)
    flows, least = _flows(graph, counts)
    source, target, walks = _rounded(graph, flows, counts)
    paths = _with_ports(links, graph, walks)
    return schedule_along(links, counts, source, target, paths), least


@dataclass(frozen=True, eq=False)
class _TimedGraph:
    """Edges between nodes, topology x n + server: circuits with their ports, then waits."""

    topologies: int
    servers: int
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    ports: NDArray[np.int64]  # of circuits alone

    @staticmethod
    def of(links: NDArray[np.int32]) -> _TimedGraph:
        d, n, degree = links.shape
        ports = np.zeros((d, n, n), dtype=np.int64)
        for port in range(degree):
            ports[np.arange(d)[:, None], np.arange(n)[None], links[:, :, port]] += 1
        ports[:, np.arange(n), np.arange(n)] = 0  # dark ones
        layer, tail, head = np.nonzero(ports)
        waiting = np.arange(d * n - n)
        return _TimedGraph(
            d,
            n,
            np.concatenate([layer * n + tail, waiting]),
            np.concatenate([layer * n + head, waiting + n]),
            ports[layer, tail, head],
        )


def _flows(graph: _TimedGraph, counts: NDArray[np.int32]) -> tuple[NDArray[np.float64], float]:
    """(chunks of each source on each edge, the least sum of the busiest circuits' loads)."""
    from scipy.optimize import linprog
    from scipy.sparse import block_diag, coo_matrix, csr_matrix, hstack

    d, n, edges, circuits = graph.topologies, graph.servers, len(graph.tails), len(graph.ports)
    column = np.arange(edges)
    incidence = np.zeros((d * n, edges))
    incidence[graph.heads, column] = 1.0
    incidence[graph.tails, column] -= 1.0
    others = [np.delete(np.arange(d * n), source) for source in range(n)]
    balance = block_diag([csr_matrix(incidence[rows]) for rows in others], format="csr")
    arriving = np.zeros((n, d * n))
    arriving[:, (d - 1) * n :] = counts
    wanted = np.concatenate([arriving[source, rows] for source, rows in enumerate(others)])
    equal = hstack([balance, csr_matrix((balance.shape[0], d))], format="csr")
    each = np.arange(circuits)
    one = coo_matrix((np.ones(circuits), (each, each)), shape=(circuits, edges))
    layer = graph.tails[:circuits] // n
    room = coo_matrix((-graph.ports.astype(float), (each, layer)), shape=(circuits, d))
    capacity = hstack([*[one] * n, room], format="csr")
    hop = np.where(column < circuits, _HOP, _WAIT) / (n * edges)
    cost = np.concatenate([np.tile(hop, n), np.ones(d)])
    found = linprog(cost, A_ub=capacity, b_ub=np.zeros(circuits), A_eq=equal, b_eq=wanted)
    if not found.success:
        raise ValueError(f"links: the linear program has no routes: {found.message}")
    return found.x[:-d].reshape(n, edges), float(found.x[-d:].sum())


def _rounded(
    graph: _TimedGraph, flows: NDArray[np.float64], counts: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[list[int]]]:
    """(source, target, edges from the last to the first) of every chunk."""
    n = len(counts)
    last = (graph.topologies - 1) * n
    left_over = np.zeros(len(graph.tails))
    sources, targets, walks = [], [], []
    tail_of = graph.tails.tolist()
    for source in range(n):
        left = (flows[source] + left_over).tolist()
        entering: list[list[int]] = [[] for _ in range(last + n)]
        for edge in np.flatnonzero(flows[source] > _NONE).tolist():
            entering[graph.heads[edge]].append(edge)
        for target in range(n):
            for _ in range(int(counts[source, target])):
                at, walk = last + target, []
                while at != source:
                    edge = max(entering[at], key=left.__getitem__)
                    left[edge] -= 1
                    walk.append(edge)
                    at = tail_of[edge]
                kept = _without_loops(walk, graph)
                for edge in set(walk) - set(kept):
                    left[edge] += edge < len(graph.ports)
                sources.append(source)
                targets.append(target)
                walks.append(kept)
        left_over = np.array(left)
    return np.array(sources), np.array(targets), walks


def _without_loops(walk: list[int], graph: _TimedGraph) -> list[int]:
    """The circuits of a walk, from the last to the first, without those between two visits of a
    server, where the chunk waits instead."""
    kept: list[int] = []
    for edge in reversed(walk):
        if edge < len(graph.ports):
            end = int(graph.heads[edge]) % graph.servers
            visited = [int(graph.tails[before]) % graph.servers for before in [*kept, edge]]
            if end in visited:
                del kept[visited.index(end) :]
            else:
                kept.append(edge)
    return kept[::-1]


def _with_ports(
    links: NDArray[np.int32], graph: _TimedGraph, walks: list[list[int]]
) -> list[NDArray[np.int64]]:
    """Per topology the links, server x k + port, of every chunk, the last one first; parallel
    circuits take chunks in turn."""
    d, n, degree = links.shape
    choices = []
    circuits = len(graph.ports)
    for tail, head in zip(graph.tails[:circuits].tolist(), graph.heads.tolist(), strict=False):
        layer, server = divmod(tail, n)
        ports = np.flatnonzero(links[layer, server] == head - layer * n).tolist()
        choices.append([(layer, server * degree + port) for port in ports])
    turn = [0] * len(choices)
    hops: list[list[list[int]]] = []
    for walk in walks:
        taken: list[list[int]] = [[] for _ in range(d)]
        for edge in walk:
            layer, link = choices[edge][turn[edge] % len(choices[edge])]
            taken[layer].append(link)
            turn[edge] += 1
        hops.append(taken)
    paths = []
    for layer in range(d):
        longest = max(len(taken[layer]) for taken in hops)
        path = np.full((len(walks), longest), -1, dtype=np.int64)
        for row, taken in zip(path, hops, strict=True):
            row[: len(taken[layer])] = taken[layer]
        paths.append(path)
    return paths
