"""Routes on one topology by a linear program: the busiest circuit carries as little as it can.

DirectConnect ("Efficient Direct-Connect Topologies for Collective Communications", NSDI'25) routes
an all-to-all as a multi-commodity flow, a commodity for each source. The program's flows have
fractions; chunks are routed along them one by one, and what a circuit got too much or too little
from one source is made up for by the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.forwarding import sent_slots
from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ROUTED = 64  # servers; the program has a variable for each of them and each circuit
_HOP = 1e-4  # weight of a hop beside the busiest circuit's load: no flow runs in cycles
_NONE = 1e-7


def optimal_schedule(
    links: NDArray[np.int32], counts: NDArray[np.int32]
) -> tuple[AllToAllSchedule, float]:
    """(schedule on the topology `links[server, port]`, the program's load of the busiest circuit in
    chunks, which no schedule on this topology goes below).

    Raises ValueError for a pair that no circuits lead to, and more than MOST_ROUTED servers.
    """
    n, degree = links.shape
    if n > MOST_ROUTED:
        raise ValueError(f"servers: {n} is more than {MOST_ROUTED}, the most of a linear program")
    ports = np.zeros((n, n), dtype=np.int64)
    for port in range(degree):
        ports[np.arange(n), links[:, port]] += 1
    np.fill_diagonal(ports, 0)
    tails, heads = np.nonzero(ports)
    flows, least = _flows(tails, heads, ports[tails, heads], counts)
    source, target, walks = _rounded(flows, tails, heads, counts)
    path = _with_ports(links, tails, heads, walks)
    chunk, link, slot = sent_slots(path, n * degree)
    part = _ranks(source * n + target)
    server, port_of = divmod(link, degree)
    rows = (slot, server, port_of, source[chunk], target[chunk], part[chunk])
    sends = np.stack(rows, axis=1).astype(np.int32)
    rounds = ((int(slot.max()) + 1,),)
    schedule = AllToAllSchedule(links[None], rounds, sends, translated=False, counts=counts)
    return schedule, least


def _flows(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    ports: NDArray[np.int64],
    counts: NDArray[np.int32],
) -> tuple[NDArray[np.float64], float]:
    """(chunks of each source on each edge, the least load of the busiest circuit)."""
    from scipy.optimize import linprog
    from scipy.sparse import block_diag, csr_matrix, hstack, identity

    n, edges = len(counts), len(tails)
    column = np.arange(edges)
    incidence = np.zeros((n, edges))
    incidence[heads, column] = 1.0
    incidence[tails, column] -= 1.0
    others = [np.delete(np.arange(n), source) for source in range(n)]
    balance = block_diag([csr_matrix(incidence[rows]) for rows in others], format="csr")
    wanted = np.concatenate([counts[source, rows] for source, rows in enumerate(others)])
    equal = hstack([balance, csr_matrix((balance.shape[0], 1))], format="csr")
    capacity = hstack(
        [hstack([identity(edges)] * n), csr_matrix(-ports[:, None].astype(float))], format="csr"
    )
    cost = np.append(np.full(n * edges, _HOP / (n * edges)), 1.0)
    found = linprog(cost, A_ub=capacity, b_ub=np.zeros(edges), A_eq=equal, b_eq=wanted)
    if not found.success:
        raise ValueError(f"links: the linear program has no routes: {found.message}")
    return found.x[:-1].reshape(n, edges), float(found.x[-1])


def _rounded(
    flows: NDArray[np.float64],
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    counts: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[list[int]]]:
    """(source, target, edges from the last to the first) of every chunk."""
    n = len(counts)
    left_over = np.zeros(len(tails))
    sources, targets, walks = [], [], []
    tail_of = tails.tolist()
    for source in range(n):
        usable = flows[source] > _NONE
        left = (flows[source] + left_over).tolist()
        entering = [np.flatnonzero(usable & (heads == server)).tolist() for server in range(n)]
        for target in range(n):
            for _ in range(int(counts[source, target])):
                at, walk = target, []
                while at != source:
                    edge = max(entering[at], key=left.__getitem__)
                    left[edge] -= 1
                    walk.append(edge)
                    at = tail_of[edge]
                sources.append(source)
                targets.append(target)
                walks.append(walk)
        left_over = np.array(left)
    return np.array(sources), np.array(targets), walks


def _with_ports(
    links: NDArray[np.int32],
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    walks: list[list[int]],
) -> NDArray[np.int64]:
    """Links, server x k + port, of every chunk, as `LinkRoutes.paths` has them; circuits side by
    side take chunks in turn."""
    degree = links.shape[1]
    choices = [
        [int(tail) * degree + int(port) for port in np.flatnonzero(links[tail] == head)]
        for tail, head in zip(tails.tolist(), heads.tolist(), strict=True)
    ]
    turn = [0] * len(choices)
    path = np.full((len(walks), max(map(len, walks))), -1, dtype=np.int64)
    for row, walk in zip(path, walks, strict=True):
        for column, edge in enumerate(walk):
            row[column] = choices[edge][turn[edge] % len(choices[edge])]
            turn[edge] += 1
    return path


def _ranks(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each chunk how many of its pair come before it; those of a pair stand together."""
    return np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
