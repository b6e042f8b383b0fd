"""The links with the most bytes: an exact matching with several ports per server.

The paper wires one maximum-weight matching after the other (Algorithm 1, lines 13-17), so a round
may use ports that a later one could use better. This is one maximum-weight b-matching over all
ports, as an integer program (HiGHS). On simplex its linear program is already integral; on duplex
branching resolves the odd cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan import Pair


MOST_NODES = 500  # of branching; counted, so that the result does not depend on a machine's speed


def exact_links(
    weights: Mapping[Pair, int], free: Sequence[int], *, duplex: bool, copies: int = 2
) -> tuple[Pair, ...]:
    """Links (source, target), sorted, of the greatest worth in all; duplex: cables, lower first.

    Server s has `free[s]` ports (simplex: as many transmitters and as many receivers). The first
    link of a pair is worth its weight, each further one half of the one before, up to `copies`: as
    in Algorithm 1, a hot pair may get parallel links. On duplex the weights of both directions add
    up. Of several best sets, which one comes back is a matter of the arguments alone. Past
    `MOST_NODES` of branching the best set found so far is returned.

    Raises ValueError for a pair of a server with itself, a server without an entry in `free`, a
    negative number of ports, or fewer copies than one.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    if copies < 1:
        raise ValueError(f"copies: {copies} is not at least 1")
    for server, ports in enumerate(free):
        if ports < 0:
            raise ValueError(f"free: {ports} ports of server {server} are fewer than none")
    worth = _added(weights, len(free), duplex=duplex)
    pairs = sorted(pair for pair in worth if free[pair[0]] and free[pair[1]])
    if not pairs:
        return ()
    # one variable per link, in [0, 1]; the relaxed program uses valuable copies first
    values = np.array([worth[p] / 2**k for k in range(copies) for p in pairs])
    ends = np.array(pairs * copies)
    columns = np.arange(len(ends))
    rows = np.concatenate([ends[:, 0], ends[:, 1] + (0 if duplex else len(free))])
    count = len(free) * (1 if duplex else 2)
    uses = coo_array(
        (np.ones(len(rows)), (rows, np.concatenate([columns, columns]))), shape=(count, len(ends))
    )
    room = np.array(list(free) * (1 if duplex else 2), dtype=float)
    found = milp(
        -values / values.max(),
        integrality=np.full(len(ends), 1 if duplex else 0),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(uses.tocsr(), ub=room),
        options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return ()
    return tuple(sorted(map(tuple, ends[found.x > 0.5].tolist())))


def _added(weights: Mapping[Pair, int], servers: int, *, duplex: bool) -> dict[Pair, int]:
    worth: dict[Pair, int] = {}
    for (source, target), weight in weights.items():
        if source == target:
            raise ValueError(f"weights: server {source} is paired with itself")
        if not (0 <= source < servers and 0 <= target < servers):
            raise ValueError(f"weights: {(source, target)} are not servers 0..{servers - 1}")
        if weight > 0:
            pair = (min(source, target), max(source, target)) if duplex else (source, target)
            worth[pair] = worth.get(pair, 0) + weight
    return worth
