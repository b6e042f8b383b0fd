"""The slowest cut of an AllGather, in exact fractions: by all subsets, or by flows of scipy."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Link = tuple[int, int, int]  # source, target, rate


def rate_matrix(servers: int, links: Sequence[Link]) -> NDArray[np.int64]:
    """Rates [source, target]; parallel links are added up."""
    rates = np.zeros((servers, servers), np.int64)
    for source, target, rate in links:
        rates[source, target] += rate
    return rates


def cut_seconds(rates: NDArray[np.int64], inside: NDArray[np.bool_]) -> Fraction:
    """The time of one shard from each server inside to those outside."""
    return Fraction(int(inside.sum()), int(rates[inside][:, ~inside].sum()))


def bound_by_subsets(rates: NDArray[np.int64]) -> Fraction:
    """The largest time of all cuts, of which there are 2^servers - 2."""
    servers = len(rates)
    sets = np.arange(1, 2**servers - 1)
    inside = (sets[:, None] >> np.arange(servers)) & 1
    out = np.einsum("si,ij,sj->s", inside, rates, 1 - inside, optimize=True)
    times = Counter(zip(inside.sum(axis=1).tolist(), out.tolist(), strict=True))
    return max(Fraction(shards, rate) for shards, rate in times)


def bound_by_flows(rates: NDArray[np.int64]) -> Fraction:
    """The same by flows from all servers to each, which find a slower cut while there is one."""
    servers = len(rates)
    inside = np.ones(servers, bool)
    inside[0] = False
    bound = cut_seconds(rates, inside)
    for sink in range(servers):
        while (slower := _slower(rates, sink, bound)) is not None:
            bound = slower
    return bound


def _slower(rates: NDArray[np.int64], sink: int, bound: Fraction) -> Fraction | None:
    servers = len(rates)
    capacity = np.zeros((servers + 1, servers + 1), np.int32)
    capacity[:servers, :servers] = rates * bound.numerator
    capacity[servers, :servers] = bound.denominator
    graph = csr_array(capacity)
    found = maximum_flow(graph, servers, sink)
    if found.flow_value == bound.denominator * servers:
        return None
    left = csr_array(graph - csr_array(found.flow))
    left.eliminate_zeros()
    inside = np.zeros(servers + 1, bool)
    inside[breadth_first_order(left, servers, return_predecessors=False)] = True
    return cut_seconds(rates, inside[:servers])
