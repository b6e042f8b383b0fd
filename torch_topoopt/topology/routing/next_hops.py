"""Forwarding tables: one shortest way for every pair, on links that carry little so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from torch_topoopt.plan import Pair


def least_loaded_next_hops(
    servers: int, load: Mapping[Pair, float], rates: Mapping[Pair, float] | None = None
) -> tuple[tuple[int, ...], ...]:
    """`next_hops[source][target]`: the neighbour to go to, for all pairs of `servers` servers.

    `load` has every link, and what using it costs (bytes, or any figure). One target after the
    other, from 0: of all shortest ways to it, from each server the one with the least load on it,
    ties to the lower neighbour; then every link of these ways is loaded by 1 for each source that
    crosses it, so that the ways to the next target prefer others. All ways to one target form a
    tree, so following the table never loops. With `rates` of links that are not
    alike, in the unit that `load` was divided by, a source loads a link by 1 / rate, and what it
    costs counts before it does.

    Raises ValueError if some server cannot reach another.
    """
    table: list[list[int]] = [[] for _ in range(servers)]
    for source, target in sorted(load):
        table[source].append(target)
    degree = max(map(len, table))
    near = np.full((servers, degree), -1, dtype=np.int64)  # neighbours, ascending, then -1
    cost = np.full((servers, degree), np.inf)
    each = np.ones((servers, degree))
    for source, targets in enumerate(table):
        near[source, : len(targets)] = targets
        cost[source, : len(targets)] = [load[source, target] for target in targets]
        if rates is not None:
            each[source, : len(targets)] = [1 / rates[source, target] for target in targets]
    next_hops = np.empty((servers, servers), dtype=np.int64)
    for target in range(servers):
        next_hops[:, target] = _tree_to(target, near, cost, each, weighed=rates is not None)
    return tuple(tuple(row) for row in next_hops.tolist())


def _tree_to(
    target: int,
    near: NDArray[np.int64],
    load: NDArray[np.float64],
    each: NDArray[np.float64],
    *,
    weighed: bool,
) -> NDArray[np.int64]:
    """The next hop of every server towards `target`; adds to `load` what the sources cost that
    cross it, `each` per source. If `weighed`, a link costs a source before it crosses it."""
    price = load + each if weighed else load
    servers = len(near)
    hops = np.full(servers + 1, servers)  # one more for -1, which is never near
    hops[target] = 0
    layers: list[NDArray[np.int64]] = []
    left = servers - 1
    while left:
        closer = hops[near] == len(layers)
        layer = np.flatnonzero(closer.any(axis=1) & (hops[:servers] == servers))
        if not len(layer):
            lost = int(np.flatnonzero(hops[:servers] == servers)[0])
            raise ValueError(f"links: no path from server {lost} to server {target}")
        hops[layer] = len(layers) + 1
        left -= len(layer)
        layers.append(layer)
    total = np.zeros(servers + 1)
    choice = np.zeros(servers, dtype=np.int64)
    for number, layer in enumerate(layers):
        around = near[layer]
        ways = np.where(hops[around] == number, price[layer] + total[around], np.inf)
        choice[layer] = ways.argmin(axis=1)
        total[layer] = ways.min(axis=1)
    following = near[np.arange(servers), choice]
    following[target] = target
    sources = np.ones(servers)
    for layer in reversed(layers):
        load[layer, choice[layer]] += sources[layer] * each[layer, choice[layer]]
        np.add.at(sources, following[layer], sources[layer])
    return following
