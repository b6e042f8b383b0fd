"""Circuits for the demand of the moment (TopoOpt paper, Appendix E.4, Algorithm 5).

Greedy: the pair with the most unsatisfied bytes gets a circuit, and with `halve` its bytes count
half for the next one (the paper's Discount, equation 2); without it they do not (Appendix F,
Discount = 1: SiP-ML). Ports that no demand asks for keep their circuits or are joined at random.
Circuits are directed: every server has `degree` transmitters and receivers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan import Pair


def choose_circuits(
    servers: int,
    degree: int,
    unsatisfied: Mapping[Pair, float],
    rng: random.Random,
    *,
    present: Sequence[Pair] = (),
    halve: bool,
    connect: bool,
) -> list[Pair]:
    """The circuits (source, target), in ascending order; parallel ones are listed again.

    `unsatisfied` holds bytes by ordered pair. Ports that no demand asks for keep those of the
    circuits `present` that they have, where both ends are free. With `connect`,
    two-edge replacement makes the graph strongly connected where circuits use every port.
    """
    transmit, receive = [degree] * servers, [degree] * servers
    heap = [(-size, pair) for pair, size in unsatisfied.items() if size > 0]
    heapq.heapify(heap)
    circuits: list[Pair] = []
    left = servers * degree
    while heap and left:
        size, (source, target) = heap[0]
        if not (transmit[source] and receive[target]):
            heapq.heappop(heap)
            continue
        transmit[source] -= 1
        receive[target] -= 1
        left -= 1
        circuits.append((source, target))
        heapq.heapreplace(heap, (size / 2 if halve else size, (source, target)))
    kept = Counter(circuits)
    for source, target in present:
        if kept[source, target]:
            kept[source, target] -= 1  # that one is chosen already
        elif transmit[source] and receive[target]:
            transmit[source] -= 1
            receive[target] -= 1
            circuits.append((source, target))
    _fill(circuits, transmit, receive, rng)
    if connect:
        _connect(servers, circuits, unsatisfied)
    return sorted(circuits)


def _fill(
    circuits: list[Pair], transmit: list[int], receive: list[int], rng: random.Random
) -> None:
    """Joins the free transmitters to the free receivers at random, none to its own server."""
    sources = [server for server, free in enumerate(transmit) for _ in range(free)]
    targets = [server for server, free in enumerate(receive) for _ in range(free)]
    rng.shuffle(targets)
    for i, source in enumerate(sources):
        if targets[i] == source:
            for j, other in enumerate(sources):
                if source not in (other, targets[j]):
                    targets[i], targets[j] = targets[j], targets[i]
                    break
    loops = []
    for source, target in zip(sources, targets, strict=True):
        if source != target:
            circuits.append((source, target))
        else:
            loops.append(source)
    for server in loops:  # goes into the middle of a circuit that does not touch it
        around = [i for i, circuit in enumerate(circuits) if server not in circuit]
        if around:
            source, target = circuits[i := rng.choice(around)]
            circuits[i] = (source, server)
            circuits.append((server, target))


def _connect(servers: int, circuits: list[Pair], unsatisfied: Mapping[Pair, float]) -> None:
    """Two-edge replacement (OWAN): exchanges the targets of two circuits in different parts.

    Every server sends and receives on as many circuits, so each part is one closed walk, and the
    exchange joins the two walks. The circuits with the least bytes are taken.
    """
    while True:
        part = _parts(servers, circuits)
        least: dict[int, int] = {}
        for i, pair in enumerate(circuits):
            label = part[pair[0]]
            other = least.get(label)
            if other is None or _bytes(unsatisfied, pair) < _bytes(unsatisfied, circuits[other]):
                least[label] = i
        if len(least) < 2:
            return
        first, second = list(least.values())[:2]
        (a, b), (c, d) = circuits[first], circuits[second]
        circuits[first], circuits[second] = (a, d), (c, b)


def _bytes(unsatisfied: Mapping[Pair, float], pair: Pair) -> float:
    return unsatisfied.get(pair, 0.0)


def _parts(servers: int, circuits: list[Pair]) -> list[int]:
    """For every server a label that it shares with those that circuits join it to."""
    label = list(range(servers))

    def root(server: int) -> int:
        while label[server] != server:
            label[server] = label[label[server]]
            server = label[server]
        return server

    for source, target in circuits:
        a, b = root(source), root(target)
        label[max(a, b)] = min(a, b)
    return [root(server) for server in range(servers)]
