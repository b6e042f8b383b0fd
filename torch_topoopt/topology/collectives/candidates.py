"""The candidates for a collective on a graph of links, and the schedule of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt._core import GraphGroup
from torch_topoopt.plan.cluster import BYTES_PER_GBPS
from torch_topoopt.plan.network import Ring, hops_around
from torch_topoopt.topology.collectives.graph import graph_links, pair_rates
from torch_topoopt.topology.collectives.schedule_file import (
    ROOT,
    CollectiveScheduleFile,
    ScheduledPart,
    SchedulePhase,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt.plan import Pair
    from torch_topoopt.topology.collectives.schedule_file import Collective, PhaseKind

ALPHA_S, HOP_S = 2e-6, 1e-6  # latencies of a message and of each of its links
_OVER_LINKS = ("breadth_first", "packing", "flooding")  # these have plans


class NotOverLinksError(ValueError):
    """An algorithm whose messages are not parts of shards over links."""


@dataclass(frozen=True)
class PricedAlgorithm:
    """The prediction for one algorithm. Bytes are relative to the rate of the slowest link; the
    bound is that of the slowest cut, and its time is without latencies."""

    algorithm: str
    steps: int
    seconds: float
    busiest_link_bytes: float
    bound_bytes: float
    bound_seconds: float


@dataclass(frozen=True)
class PricedCollective:
    """The candidates for a collective on `size_bytes` of all blocks together. `auto` is the
    algorithm that the backend takes."""

    collective: Collective
    size_bytes: int
    auto: str
    candidates: tuple[PricedAlgorithm, ...]


class LinkGraph:
    """A graph of links with one rank on each server.

    `rates` has Gb/s by (source, target). Without `rings`, rings over the links are searched.
    """

    def __init__(
        self,
        servers: int,
        rates: Mapping[Pair, float],
        rings: Sequence[Ring] = (),
        *,
        alpha_s: float = ALPHA_S,
        hop_s: float = HOP_S,
    ) -> None:
        self.servers = servers
        self.rates = rates
        links = [(*pair, gbps * BYTES_PER_GBPS) for pair, gbps in sorted(rates.items())]
        self._group = GraphGroup(servers, links, rings, alpha_s, hop_s)

    def priced(self, collective: Collective, size_bytes: int) -> PricedCollective:
        """The time and the loads of every candidate."""
        found = self._group.candidates(collective, size_bytes)
        return PricedCollective(
            collective,
            size_bytes,
            found.chosen,
            tuple(
                PricedAlgorithm(
                    each.algorithm,
                    each.steps,
                    each.seconds,
                    each.busiest_link_bytes,
                    found.bound_bytes,
                    found.bound_seconds,
                )
                for each in found.list
            ),
        )

    def schedule(
        self, collective: Collective, size_bytes: int, algorithm: str
    ) -> CollectiveScheduleFile:
        """The steps of an algorithm; raises NotOverLinksError if its messages are not such."""
        shard_bytes = size_bytes / self.servers
        phases: tuple[PhaseKind, ...]
        if collective == "all_reduce" and algorithm == "flooding":
            phases, shard_bytes = ("all_gather",), float(size_bytes)
        elif collective == "all_reduce":
            phases = ("reduce_scatter", "all_gather")
        elif collective == "broadcast":
            phases, shard_bytes = ("broadcast",), float(size_bytes)
        else:
            phases = (collective,)
        return CollectiveScheduleFile(
            version=CollectiveScheduleFile.VERSION,
            collective=collective,
            servers=self.servers,
            bytes=size_bytes,
            algorithm=algorithm,
            links=graph_links(self.rates),
            phases=tuple(
                SchedulePhase(kind, shard_bytes, tuple(self._parts(kind, algorithm)))
                for kind in phases
            ),
        ).validate()

    def _parts(self, kind: PhaseKind, algorithm: str) -> Iterator[ScheduledPart]:
        if algorithm in _OVER_LINKS:
            return self._planned_parts(kind, algorithm)
        if algorithm == "ring":
            return self._ring_parts(kind, self._group.rings[:1])
        if algorithm == "multi_ring":
            return self._ring_parts(kind, self._group.rings)
        raise NotOverLinksError(
            f"{algorithm} sends messages over routes, not parts of shards over links"
        )

    def _planned_parts(self, kind: PhaseKind, algorithm: str) -> Iterator[ScheduledPart]:
        """By receiver and origin: the parts in their order in the shard."""
        backward = kind == "reduce_scatter"
        origin = ROOT if kind == "broadcast" else None
        received, units, steps = self._group.plan(algorithm, backward, origin)
        for receiver, pieces in enumerate(received):
            for sender, of, first, end, step in sorted(pieces, key=lambda piece: piece[1:3]):
                fraction = (end - first) / units
                if backward:
                    yield ScheduledPart(receiver, sender, of, fraction, steps - 1 - step)
                else:
                    yield ScheduledPart(sender, receiver, of, fraction, step)

    def _ring_parts(self, kind: PhaseKind, rings: Sequence[Ring]) -> Iterator[ScheduledPart]:
        """Every ring carries its share of each shard."""
        total = sum(ring.share for ring in rings)
        for ring in rings:
            if lost := [hop for hop in hops_around(ring.servers) if hop not in self.rates]:
                source, target = lost[0]
                raise NotOverLinksError(
                    f"its rings use relays: there is no link from server {source} to {target}"
                )
        last = self.servers - 2
        origins = (ROOT,) if kind == "broadcast" else range(self.servers)
        for origin in origins:
            for ring in rings:
                start = ring.servers.index(origin)
                order = [*ring.servers[start:], *ring.servers[:start]]
                if kind == "reduce_scatter":  # the sums end at the origin
                    order = [*order[1:], order[0]]
                for step in range(last + 1):
                    source, target = order[step], order[step + 1]
                    yield ScheduledPart(source, target, origin, ring.share / total, step)


def bound_bytes(schedule: CollectiveScheduleFile) -> float:
    """The least that the busiest link carries in any schedule of the same collective."""
    order = Ring(tuple(range(schedule.servers)), 1.0)  # any: the bound does not depend on rings
    graph = LinkGraph(schedule.servers, pair_rates(schedule.links), [order])
    return graph.priced(schedule.collective, schedule.bytes).candidates[0].bound_bytes
