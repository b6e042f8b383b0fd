"""Pairs of unequal size: chunks of one size, and as many per pair as it needs.

For every number of topologies several sequences are tried, each with its own routes
(sequence_routes.py), and the one with the fewest slots is kept. One is the strategy for equal
sizes, with servers assigned to its positions so that large demands have few hops ("To Reconfigure
or Not to Reconfigure", section 4.4, which leaves the method open). Another has circuits for the
largest demands. Direct permutations are one more strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.circulants import (
    circulant_routes,
    circulant_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.demand_topologies import (
    greedy_links,
    permutation_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.forwarding import forwarded
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.link_routes import balanced_routes
from torch_topoopt.reconfiguration.all_to_all.optimal_routes import (
    MOST_VARIABLES,
    optimal_schedule,
    variables,
)
from torch_topoopt.reconfiguration.all_to_all.schedule import SOURCE, TARGET, AllToAllSchedule
from torch_topoopt.reconfiguration.all_to_all.sequence_routes import sequence_schedule
from torch_topoopt.reconfiguration.all_to_all.stride_sets import StrideSets
from torch_topoopt.reconfiguration.all_to_all.sweep import Strategy
from torch_topoopt.reconfiguration.all_to_all.verification import verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CHUNKS = 4_000_000  # of all pairs together
_PASSES = 8  # of exchanges
_STARTS = 8  # besides the identity


def check_matrix(matrix: NDArray[np.float64], servers: int) -> NDArray[np.float64]:
    """Bytes between each two servers, with a diagonal of 0; raises ValueError otherwise."""
    if matrix.shape != (servers, servers):
        raise ValueError(
            f"matrix: has the shape {matrix.shape}, and {servers} servers need {servers, servers}"
        )
    if matrix.dtype.kind not in "iuf" or not np.all(np.isfinite(matrix)) or np.any(matrix < 0):
        raise ValueError("matrix: expected bytes, numbers from 0 on")
    cleared = matrix.astype(np.float64)
    np.fill_diagonal(cleared, 0.0)
    if not np.any(cleared):
        raise ValueError("matrix: no server has anything for another")
    return cleared


def chunks_of(matrix: NDArray[np.float64], chunk_bytes: float) -> NDArray[np.int32]:
    """Chunks of each pair, the last one perhaps partly full; raises ValueError for too many."""
    if not chunk_bytes > 0:
        raise ValueError(f"chunk: {chunk_bytes:g} bytes is not a size above 0")
    counts = np.ceil(matrix / chunk_bytes)
    if counts.sum() > MOST_CHUNKS:
        least = matrix.sum() / MOST_CHUNKS
        raise ValueError(
            f"chunk: {chunk_bytes:g} bytes makes more than {MOST_CHUNKS} chunks; use {least:.3g} "
            "bytes or more"
        )
    return counts.astype(np.int32)


def uneven_strategy(strategy: Strategy, counts: NDArray[np.int32], *, seed: int = 0) -> Strategy:
    """The best verified schedule of `counts` on as many topologies as `strategy` has, or fewer.

    Deterministic for a seed.
    """
    schedule = strategy.schedule
    d, degree = schedule.reconfigurations, schedule.degree
    sequences = [("greedy", greedy_links(counts, degree, d, seed=seed))]
    kinds = [(strategy.base, schedule)]
    if d == 1 < degree:
        kinds.append(_other_static(strategy))
    for base, even in kinds:
        parts = assigned(even, counts, seed=seed)
        sequences.append((base, relabelled_links(even.links, parts)))
        if d == 1:  # few hops in total may still crowd one link
            sequences.append((base, even.links))
    tried = [(base, sequence_schedule(links, counts)) for base, links in sequences]
    routed = d > 1 or degree > 1  # else there is one route
    if routed and variables(len(counts), degree, d) <= MOST_VARIABLES:
        tried += [(base, optimal_schedule(links, counts)[0]) for base, links in sequences]
    base, best = min(tried, key=lambda one: (one[1].slots, one[1].reconfigurations))
    return _verified(base, best)


def direct_strategies(counts: NDArray[np.int32], degree: int) -> list[Strategy]:
    """Permutations, with direct links for all chunks: the fewest slots first, then fewer and fewer
    topologies, for sizes in units of 2, 4, 8, ... chunks."""
    found = [_verified("permutations", permutation_schedule(counts, degree))]
    at_once = 2
    while at_once <= counts.max():
        coarse = permutation_schedule(counts, degree, at_once=at_once)
        if coarse.reconfigurations < found[-1].reconfigurations:
            found.append(_verified("permutations", coarse))
        at_once *= 2
    return found


def _other_static(strategy: Strategy) -> tuple[str, AllToAllSchedule]:
    """The alternative base: a circulant for a Kautz graph, a Kautz graph for a circulant."""
    n, degree = strategy.schedule.servers, strategy.schedule.degree
    if strategy.base == "kautz":
        strides = StrideSets(n).several(degree, restarts=2)[0]
        return "circulant", circulant_schedule(circulant_routes(n, degree, strides))
    return "kautz", forwarded(balanced_routes(kautz_links(n, degree)))


def _verified(base: str, schedule: AllToAllSchedule) -> Strategy:
    verify(schedule)
    shape = (schedule.servers, schedule.degree, schedule.reconfigurations, schedule.counts)
    return Strategy(base, schedule, uncarried_bound_slots(*shape), carried_bound_slots(*shape))


def assigned(
    schedule: AllToAllSchedule, counts: NDArray[np.int32], *, seed: int = 0
) -> NDArray[np.int64]:
    """Entry x: the server in the position of server x, so that chunks have few hops in total.

    Found by swapping two servers at a time; never worse than the identity.
    """
    n = schedule.servers
    hops = np.zeros((n, n), dtype=np.int64)
    sends = schedule.whole().sends
    np.add.at(hops, (sends[:, SOURCE], sends[:, TARGET]), 1)
    random = np.random.default_rng(seed)
    starts = [np.arange(n), *(random.permutation(n) for _ in range(_STARTS))]
    found = [_exchanged(start, counts, hops, random) for start in starts]
    return min(found, key=lambda one: one[0])[1]


def relabelled_links(links: NDArray[np.int32], servers: NDArray[np.int64]) -> NDArray[np.int32]:
    """The topologies in which `servers[x]` has the circuits of server x."""
    new = np.empty_like(links)
    new[:, servers] = servers[links]
    return new


def _exchanged(
    servers: NDArray[np.int64],
    counts: NDArray[np.int32],
    hops: NDArray[np.int64],
    random: np.random.Generator,
) -> tuple[int, NDArray[np.int64]]:
    """(hops of all chunks, servers) after swaps that reduce them."""
    n = len(servers)
    first, second = np.tril_indices(n, -1)
    least = int((counts[np.ix_(servers, servers)] * hops).sum())
    for _ in range(_PASSES):
        before = least
        order = random.permutation(len(first))
        at = 0
        while at < len(order):
            more = _more_hops(counts[np.ix_(servers, servers)], hops)[first, second][order[at:]]
            fewer = np.flatnonzero(more < 0)
            if not len(fewer):
                break
            at += int(fewer[0]) + 1
            a, b = first[order[at - 1]], second[order[at - 1]]
            servers = servers.copy()
            servers[[a, b]] = servers[[b, a]]
            least += int(more[fewer[0]])
        if least == before or n > 128:
            break
    return least, servers


def _more_hops(counts: NDArray[np.int32], hops: NDArray[np.int64]) -> NDArray[np.float64]:
    """Entry [a, b]: the change of hops if servers a and b swap positions.

    Both matrices have a diagonal of 0; sums are whole numbers, far below 2^53.
    """
    chunks, lengths = counts.astype(np.float64), hops.astype(np.float64)
    more = (chunks + chunks.T) * (lengths + lengths.T)
    for products in (chunks @ lengths.T, chunks.T @ lengths):
        own = np.diagonal(products)
        more += products + products.T - own[:, None] - own[None]
    return more
