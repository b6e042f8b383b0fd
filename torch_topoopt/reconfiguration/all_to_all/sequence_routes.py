"""Routes over a sequence of topologies, for any number of chunks of each pair.

Server x on topology i is a node; circuits lead to other servers on the same topology, and a waiting
chunk goes to x on the next one. A topology lasts as long as its busiest circuit needs. So routes
minimise the sum, over topologies, of the largest load of a circuit. Shortest-path trees are rebuilt
again and again, with weights that sum to one on each topology (the dual of that linear program) and
follow the loads. The chunks of a pair are cut into a few batches, each with a tree of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.forwarding import sent_slots
from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_POWERS = (2.0, 16.0)  # of load over mean load, in a circuit's weight: at the first and last pass
_LEAST_WEIGHT = 0.5  # of an idle circuit, compared with those raised to a power
_PASSES = 10  # of rebuilding all trees
_MOST_BATCHES = 6  # of the chunks of a pair,
_MOST_WORK = 2_000_000  # and limited so that all passes together visit at most these nodes
_WAIT = 1e-9  # weight of waiting for the next topology


class _Sequence:
    """The graph of nodes and circuits; parallel circuits of one topology are one edge with as many
    ports."""

    def __init__(self, links: NDArray[np.int32]) -> None:
        from scipy.sparse import csr_matrix

        d, n, degree = links.shape
        self.shape = (d, n, degree)
        ports = np.zeros((d, n, n), dtype=np.int64)
        for port in range(degree):
            ports[np.arange(d)[:, None], np.arange(n)[None], links[:, :, port]] += 1
        ports[:, np.arange(n), np.arange(n)] = 0  # dark ones
        layer, tail, head = np.nonzero(ports)
        self.layer, self.tail, self.head = layer, tail, head
        self.ports = ports[layer, tail, head].astype(np.float64)
        nodes = d * n
        waiting = np.arange(nodes - n)
        tails = np.concatenate([layer * n + tail, waiting])
        heads = np.concatenate([layer * n + head, waiting + n])
        order = np.lexsort((heads, tails))
        self._circuit = np.flatnonzero(order < len(layer))
        self._order = order[self._circuit]
        self._graph = csr_matrix(
            (np.full(len(tails), _WAIT), (tails[order], heads[order])), shape=(nodes, nodes)
        )
        self.edge = np.full((nodes, n), -1, dtype=np.int64)  # by node and next server
        self.edge[layer * n + tail, head] = np.arange(len(layer))
        of_port = self.edge[np.arange(nodes)[:, None], links.reshape(nodes, degree)]
        lit, ports_lit = np.nonzero(of_port >= 0)
        self._port = np.zeros((len(layer), degree), dtype=np.int64)
        self._port[of_port[lit, ports_lit], _rank(of_port[lit, ports_lit])] = ports_lit

    def tree(
        self, source: int, weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """(lengths, nodes before) of shortest paths from `source` on the first topology."""
        from scipy.sparse.csgraph import dijkstra

        self._graph.data[self._circuit] = weights[self._order]
        length, before = dijkstra(self._graph, indices=source, return_predecessors=True)
        return length, before

    def weights(self, load: NDArray[np.float64], power: float) -> NDArray[np.float64]:
        """The weight of each circuit; those of a topology sum to one."""
        d = self.shape[0]
        each = load / self.ports
        circuits = np.bincount(self.layer, minlength=d)
        mean = np.bincount(self.layer, weights=each, minlength=d) / np.maximum(circuits, 1)
        raised = (each / np.maximum(mean, 1e-12)[self.layer]) ** power + _LEAST_WEIGHT
        total = np.bincount(self.layer, weights=raised, minlength=d)
        weights: NDArray[np.float64] = raised / total[self.layer] + 2 * _WAIT
        return weights

    def links(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """The links, server x k + port, of chunks on these edges; chunks of an edge take turns."""
        port = self._port[edges, _rank(edges) % self.ports[edges].astype(np.int64)]
        taken: NDArray[np.int64] = self.tail[edges] * self.shape[2] + port
        return taken

    def slots(self, load: NDArray[np.float64]) -> float:
        """The sum of the busiest circuits' loads over all topologies."""
        most = np.zeros(self.shape[0])
        np.maximum.at(most, self.layer, np.ceil(load / self.ports))
        return float(most.sum())


@dataclass(eq=False)
class _Tree:
    """Routes of one batch of a source's chunks: nodes before, and the load of each edge."""

    source: int
    amounts: NDArray[np.int64]
    before: NDArray[np.int32]
    load: NDArray[np.float64]


def sequence_schedule(links: NDArray[np.int32], counts: NDArray[np.int32]) -> AllToAllSchedule:
    """The schedule of `counts[source, target]` chunks over the topologies `links`, in this order.

    Topologies without sends are omitted. Raises ValueError for a chunk without a path to its
    target.
    """
    graph = _Sequence(links)
    affordable = _MOST_WORK // (links.shape[0] * len(counts) ** 2 * _PASSES)
    batches = max(1, min(_MOST_BATCHES, int(counts.max()), affordable))
    trees = _balanced(graph, counts, batches)
    return schedule_along(links, counts, *_paths(graph, trees))


def schedule_along(
    links: NDArray[np.int32],
    counts: NDArray[np.int32],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    paths: list[NDArray[np.int64]],
) -> AllToAllSchedule:
    """The schedule of chunks with these sources, targets and `paths` (_paths), slot by slot."""
    part = _rank(source * len(counts) + target)
    rows, rounds, kept = [], [], []
    first = 0
    for i, path in enumerate(paths):
        if not np.any(path >= 0):
            continue
        chunk, link, slot = sent_slots(path, links.shape[1] * links.shape[2])
        server, port = divmod(link, links.shape[2])
        row = (slot + first, server, port, source[chunk], target[chunk], part[chunk])
        rows.append(np.stack(row, axis=1))
        rounds.append((int(slot.max()) + 1,))
        kept.append(i)
        first += rounds[-1][0]
    sends = np.concatenate(rows).astype(np.int32)
    return AllToAllSchedule(links[kept], tuple(rounds), sends, translated=False, counts=counts)


def _balanced(graph: _Sequence, counts: NDArray[np.int32], batches: int) -> list[_Tree]:
    n = len(counts)
    load = np.zeros(len(graph.layer))
    trees: dict[tuple[int, int], _Tree] = {}
    best: tuple[float, list[_Tree]] = (np.inf, [])
    for now in range(_PASSES):
        power = _POWERS[0] + (_POWERS[1] - _POWERS[0]) * now / (_PASSES - 1)
        for batch in range(batches):
            amounts = counts // batches + (counts % batches > batch)
            for source in range(n):
                if not amounts[source].any():
                    continue
                if (old := trees.get((source, batch))) is not None:
                    load -= old.load
                tree = _tree(graph, source, amounts[source], graph.weights(load, power))
                trees[source, batch] = tree
                load += tree.load
        slots = graph.slots(load)
        if slots < best[0]:
            best = (slots, list(trees.values()))
    return best[1]


def _tree(
    graph: _Sequence, source: int, amounts: NDArray[np.int64], weights: NDArray[np.float64]
) -> _Tree:
    d, n, _ = graph.shape
    length, before = graph.tree(source, weights)
    last = (d - 1) * n
    if np.any(unreached := np.isinf(length[last:]) & (amounts > 0)):
        raise ValueError(
            f"topologies: nothing leads from server {source} to {int(unreached.argmax())}"
        )
    carried = [0] * last + amounts.tolist()
    previous = before.tolist()
    reached = np.flatnonzero(np.isfinite(length))
    for node in reached[np.argsort(-length[reached], kind="stable")].tolist():
        if previous[node] >= 0:
            carried[previous[node]] += carried[node]
    nodes = reached[before[reached] >= 0]
    nodes = nodes[nodes // n == before[nodes] // n]  # without waits
    load = np.zeros(len(graph.layer))
    load[graph.edge[before[nodes], nodes % n]] = np.array(carried)[nodes]
    return _Tree(source, amounts, before, load)


def _paths(
    graph: _Sequence, trees: list[_Tree]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """(source, target) of every chunk, and per topology its links, server x k + port: column h has
    the link with h more hops after it on this topology; -1 beyond the route."""
    walks = [walk for tree in trees for walk in _walks(graph, tree)]
    sources = np.concatenate([source for source, _, _ in walks])
    targets = np.concatenate([target for _, target, _ in walks])
    paths = []
    for i in range(graph.shape[0]):
        width = max(edges[i].shape[1] for _, _, edges in walks)
        table = np.full((len(sources), width), -1, dtype=np.int64)
        at = 0
        for source, _, edges in walks:
            table[at : at + len(source), : edges[i].shape[1]] = edges[i]
            at += len(source)
        used = table >= 0
        table[used] = graph.links(table[used])
        paths.append(table)
    return sources, targets, paths


def _walks(
    graph: _Sequence, tree: _Tree
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]]:
    """For one tree: source and target of every chunk, and per topology the edges of its route, the
    last one first."""
    d, n, _ = graph.shape
    targets = np.flatnonzero(tree.amounts)
    node = targets + (d - 1) * n
    found: list[list[NDArray[np.int64]]] = [[] for _ in range(d)]
    hops = np.zeros((len(targets), d), dtype=np.int64)
    while True:
        previous = tree.before[node]
        moving = np.flatnonzero(previous >= 0)
        if not len(moving):
            break
        hop = moving[previous[moving] // n == node[moving] // n]
        layer = node[hop] // n
        for i in np.unique(layer).tolist():
            mine = hop[layer == i]
            column = hops[mine, i]
            while len(found[i]) <= column.max():
                found[i].append(np.full(len(targets), -1, dtype=np.int64))
            edge = graph.edge[previous[mine], node[mine] % n]
            for c in np.unique(column).tolist():
                found[i][c][mine[column == c]] = edge[column == c]
            hops[mine, i] += 1
        node[moving] = previous[moving]
    amounts = tree.amounts[targets]
    edges = [
        np.repeat(
            np.stack(columns, axis=1) if columns else np.zeros((len(targets), 0), dtype=np.int64),
            amounts,
            axis=0,
        )
        for columns in found
    ]
    chunk_target = np.repeat(targets, amounts)
    yield np.full(len(chunk_target), tree.source), chunk_target, edges


def _rank(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per value the number of equal ones before it."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
    return rank
