"""Topologies made for a matrix of sizes: greedy circuits, and sums of permutations.

Greedy circuits are MixNet's wiring of a matrix: the largest demand first. Permutations are FAST's:
a matrix with equal row and column sums is a sum of permutations (Birkhoff and von Neumann). Each is
a topology with a direct link for every chunk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.architectures.circuits import choose_circuits
from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray


def greedy_links(
    counts: NDArray[np.int32], degree: int, topologies: int, *, seed: int = 0
) -> NDArray[np.int32]:
    """`links` of circuits for the largest demands; the first topology joins all servers.

    A pair with a circuit on one topology requests none on later ones.
    """
    n = len(counts)
    rng = random.Random(seed)
    links = np.repeat(np.arange(n, dtype=np.int32)[None, :, None], topologies, axis=0)
    links = np.repeat(links, degree, axis=2)
    left = counts.copy()
    for i in range(topologies):
        demand_left = {(int(a), int(b)): float(left[a, b]) for a, b in np.argwhere(left)}
        circuits = choose_circuits(n, degree, demand_left, rng, halve=True, connect=i == 0)
        port = [0] * n
        for source, target in circuits:
            links[i, source, port[source]] = target
            port[source] += 1
            left[source, target] = 0
    return links


def permutations(counts: NDArray[np.int32]) -> list[tuple[NDArray[np.int64], int]]:
    """(target of each server, slots) of permutations that carry all chunks, the longest first.

    The slots sum to the largest row or column sum, which is the minimum. Each permutation is one of
    the largest remaining. A server with nothing to send keeps its own number or sends dummies.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    left = _padded(counts)
    n = len(left)
    found = []
    while left.any():
        sizes = np.unique(left[left > 0])
        low, high = 0, len(sizes) - 1
        best = None
        while low <= high:
            middle = (low + high) // 2
            matched = maximum_bipartite_matching(
                csr_matrix(left >= sizes[middle]), perm_type="column"
            )
            if np.all(matched >= 0):
                best, low = matched.astype(np.int64), middle + 1
            else:
                high = middle - 1
        assert best is not None  # equal sums, so there is a matching (Hall)
        slots = int(left[np.arange(n), best].min())
        left[np.arange(n), best] -= slots
        found.append((best, slots))
    return sorted(found, key=lambda item: -item[1])


def permutation_schedule(
    counts: NDArray[np.int32], degree: int, *, at_once: int = 1
) -> AllToAllSchedule:
    """The schedule of `permutations`, as many in parallel as a server has circuits.

    Counts in units of `at_once` chunks, rounded up, give fewer permutations, which last longer.
    """
    n = len(counts)
    found = [(target, slots * at_once) for target, slots in permutations(-(-counts // at_once))]
    ports = np.repeat(np.arange(n, dtype=np.int32)[:, None], degree, axis=1)
    sent = np.zeros_like(counts)
    rows, rounds, topologies = [], [], []
    first = 0
    for i in range(0, len(found), degree):
        links = ports.copy()
        longest = 0
        for port, (target, slots) in enumerate(found[i : i + degree]):
            links[:, port] = target
            for source in range(n):
                part = int(sent[source, target[source]])
                more = min(slots, int(counts[source, target[source]]) - part)
                if target[source] != source and more > 0:
                    longest = max(longest, more)
                    sent[source, target[source]] += more
                    row = np.empty((more, 6), dtype=np.int64)
                    row[:, 0] = first + np.arange(more)
                    row[:, 1:5] = source, port, source, target[source]
                    row[:, 5] = part + np.arange(more)
                    rows.append(row)
        if longest:  # partly filled units leave some permutations empty
            topologies.append(links)
            rounds.append((longest,))
            first += longest
    sends = np.concatenate(rows).astype(np.int32)
    return AllToAllSchedule(
        np.stack(topologies), tuple(rounds), sends, translated=False, counts=counts
    )


def _padded(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """`counts` plus dummies, so that all rows and columns have the largest sum."""
    padded = counts.astype(np.int64)
    most = max(padded.sum(axis=0).max(), padded.sum(axis=1).max())
    rows, columns = most - padded.sum(axis=1), most - padded.sum(axis=0)
    for source in range(len(padded)):
        for target in range(len(padded)):
            more = min(rows[source], columns[target])
            padded[source, target] += more
            rows[source] -= more
            columns[target] -= more
    return padded
