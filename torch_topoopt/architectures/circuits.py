"""Circuits for the current demand (TopoOpt paper, Appendix E.4, Algorithm 5).

Greedy: the pair with the most unsatisfied bytes gets a circuit. With `halve` its bytes then count
half (the paper's Discount, equation 2); without, they do not (Appendix F, Discount = 1: SiP-ML).
Ports without demand keep their circuits or are joined at random. Circuits are directed: every
server has `degree` transmitters and receivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan import Pair


def choose_circuits(
    servers: int,
    degree: int,
    unsatisfied: Mapping[Pair, float] | _core.BytesOfPairs,
    rng: random.Random,
    *,
    present: Sequence[Pair] = (),
    halve: bool,
    connect: bool,
) -> list[Pair]:
    """The circuits (source, target), in ascending order; parallel ones are listed again.

    `unsatisfied` holds bytes by ordered pair. Ports without demand keep their circuits of `present`
    where both ends are free. With `connect`, two-edge replacement makes the graph strongly
    connected where circuits use every port. Raises ValueError for a pair with an unknown server.
    """
    if not isinstance(unsatisfied, _core.BytesOfPairs):
        unsatisfied = _core.BytesOfPairs(unsatisfied)
    circuits = _core.circuits_for(servers, degree, unsatisfied, present, halve)
    if len(circuits) < servers * degree:
        transmit, receive = [degree] * servers, [degree] * servers
        for source, target in circuits:
            transmit[source] -= 1
            receive[target] -= 1
        _fill(circuits, transmit, receive, rng)
    if connect:
        circuits = _core.connect_parts(servers, circuits, unsatisfied)
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
    for server in loops:  # splits a circuit that does not touch it
        around = [i for i, circuit in enumerate(circuits) if server not in circuit]
        if around:
            source, target = circuits[i := rng.choice(around)]
            circuits[i] = (source, server)
            circuits.append((server, target))
