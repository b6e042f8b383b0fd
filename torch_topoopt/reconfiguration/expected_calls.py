"""The collective that each rank of a job is expected to request next, and its first topology.

The steps of a training repeat their collectives, so every rank is expected to do what followed the
last time (request_sequence.py). Between two requests, a rank may send messages that it does not
request; the next request says to which servers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.reconfiguration.request_sequence import RequestSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

_LEAST_S = 1.0  # limit of circuits that wait for their collective
_GAPS = 4  # the same, in times between this collective and the one before it
_KEPT = 4096  # requests


@dataclass(frozen=True)
class FirstTopology:
    """Of a collective: the mover's number, and the ranks and servers that take part."""

    number: int
    ranks: tuple[int, ...]
    servers: frozenset[int]


@dataclass(frozen=True)
class Expectation:
    """The next request of a rank, and the servers of its messages until then."""

    request: Hashable
    used: frozenset[int]


@dataclass(frozen=True)
class _Messages:
    """An entry of a sequence: messages that were not requested."""

    servers: frozenset[int]


class ExpectedCalls:
    """Expectations of all ranks. Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._sequences: defaultdict[int, RequestSequence] = defaultdict(RequestSequence)
        self._first: dict[Hashable, FirstTopology] = {}
        self._gaps_s: dict[Hashable, float] = {}
        self._ended: dict[int, float] = {}  # rank -> end of its last collective
        self._expected: dict[int, Expectation | None] = {}  # cache
        # Rank whose server has circuits for the request that is expected next -> when they go.
        self._limits: dict[int, float] = {}

    def add(self, request: Hashable, used: Mapping[int, frozenset[int]], now: float) -> None:
        """All members have made a request; `used` are the servers of each one's messages since its
        request before."""
        if len(self._gaps_s) >= _KEPT:
            self._gaps_s.clear()
        for rank, servers in used.items():
            self._gaps_s[request] = now - self._ended.get(rank, now)
            before = Expectation(request, servers)
            if self._limits.pop(rank, None) is not None and self.of(rank) != before:
                self.doubt(rank)
            if servers:
                self._sequences[rank].add(_Messages(servers))
            self._sequences[rank].add(request)
            self._expected.pop(rank, None)

    def end(self, ranks: Iterable[int], now: float) -> None:
        """A collective of these ranks has ended."""
        self._ended.update(dict.fromkeys(ranks, now))

    def begin(self, request: Hashable, first: FirstTopology | None) -> None:
        """A request starts with this topology; None: with the plan's circuits."""
        if first is None:
            self._first.pop(request, None)
            return
        if len(self._first) >= _KEPT:
            self._first.clear()
        self._first[request] = first

    def of(self, rank: int) -> Expectation | None:
        if rank not in self._expected:
            used = frozenset[int]()
            found = self._sequences[rank].expected(2)
            if found and isinstance(found[0], _Messages):
                used, found = found[0].servers, found[1:]
            self._expected[rank] = Expectation(found[0], used) if found else None
        return self._expected[rank]

    def topologies(
        self,
        ranks_of: Mapping[int, Iterable[int]],
        waiting: Iterable[int],
        running: Iterable[int],
        installed: Mapping[int, frozenset[int]],
        reached: Callable[[int, int], frozenset[int]],
    ) -> dict[int, frozenset[int]]:
        """The topologies for servers without a running collective, by number: those of expected
        ones first, and then installed ones whose servers are not expected to use the plan's.

        `ranks_of` are the ranks of each server. Those that are `waiting` have requested a
        collective that cannot start yet; servers that are `running` have one. A topology
        `reached(number, server)` these servers.
        """
        firsts: dict[int, tuple[FirstTopology, frozenset[int]]] = {}
        late, taken = set(waiting), set(running)
        for server, ranks in ranks_of.items():
            for rank in ranks:
                expected = self.of(rank)
                first = None if expected is None else self._first.get(expected.request)
                if server not in taken and rank not in late and first is not None:
                    assert expected is not None
                    firsts[rank] = first, expected.used
        server_of = {rank: server for server, ranks in ranks_of.items() for rank in ranks}
        chosen: dict[int, frozenset[int]] = {}

        def fits(rank: int, number: int) -> bool:
            return firsts[rank][1] <= reached(number, server_of[rank])

        for first in {one.number: one for one, _ in firsts.values()}.values():
            same = all(rank in firsts and firsts[rank][0] == first for rank in first.ranks)
            if not same or not taken.isdisjoint(first.servers):
                continue
            if all(fits(rank, first.number) for rank in first.ranks):
                chosen[first.number] = first.servers
                taken |= first.servers
        for number, servers in installed.items():
            ranks = [rank for server in servers for rank in ranks_of.get(server, ())]
            if taken.isdisjoint(servers) and all(
                rank in late or (rank in firsts and fits(rank, number)) for rank in ranks
            ):
                chosen[number] = servers
                taken |= servers
        return chosen

    def wait(self, ranks: Iterable[int], now: float) -> None:
        """Exactly these ranks, of the ones that have requested nothing, have other circuits than
        the plan's."""
        limits = {}
        for rank in ranks:
            expected = self.of(rank)
            if expected is not None:
                gap_s = self._gaps_s.get(expected.request, 0.0)
                limits[rank] = self._limits.get(rank, now + max(_LEAST_S, _GAPS * gap_s))
        self._limits = limits

    @property
    def limit(self) -> float:
        """When give_up() is to be called."""
        return min(self._limits.values(), default=math.inf)

    def give_up(self, now: float = math.inf) -> None:
        """Doubts the expectations for which other circuits than the plan's have waited too long."""
        for rank in [rank for rank, limit in self._limits.items() if limit <= now]:
            self.doubt(rank)

    def doubt(self, rank: int) -> None:
        """The next request of a rank is another one than expected, or has messages before it."""
        self._limits.pop(rank, None)
        expected = self.of(rank)
        if expected is not None:
            following = _Messages(expected.used) if expected.used else expected.request
            self._sequences[rank].doubt(following)
        self._expected.pop(rank, None)
