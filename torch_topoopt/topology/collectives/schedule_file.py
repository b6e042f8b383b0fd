"""A schedule of a collective as a file, which is replayed on reading.

A phase is a reduce_scatter, an all_gather or a broadcast; an all_reduce has one of the first and
one of the second, or one all_gather of whole vectors (`flooding`). A step is a list:

    [source, target, origin, fraction, step]

In an all_gather or a broadcast, `source` sends a part of the shard of the server `origin` to
`target`. In a reduce_scatter, it sends its sum of a part of the shard that ends at `origin`. The
part has `fraction` of the shard's `shard_bytes`. All steps with one number, from 0, may run at a
time; a part is sent on in a later step than that in which it arrives.

The steps of one origin and one target are listed in the order of their parts in the shard, and
cover it once: the first begins at 0, and each other where the one before ends. In a reduce_scatter
this holds for the steps of one origin and one source.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from torch_topoopt.plan import limits
from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.topology.collectives.graph import GraphLink, check_graph, pair_rates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch_topoopt.plan import Pair

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
PhaseKind = Literal["all_gather", "reduce_scatter", "broadcast"]

ROOT = 0  # the origin of a broadcast
_MOST_BYTES = 10**18  # sizes are 64-bit integers in C++
_EPSILON = 1e-9  # sums of fractions are rounded


def check_size(size_bytes: int) -> None:
    """Raises DocumentError for the bytes of a collective that are none, or too many."""
    if not 1 <= size_bytes <= _MOST_BYTES:
        shown = limits.brief_number(size_bytes)
        raise DocumentError(f"bytes: {shown} is not from 1 to 10^18; write a size, as 1MB")


class ScheduledPart(NamedTuple):
    """A part of a shard that one server sends to another; see the module's docstring."""

    source: int
    target: int
    origin: int
    fraction: float
    step: int


@dataclass(frozen=True)
class SchedulePhase:
    """The steps of one collective over shards of `shard_bytes`."""

    collective: PhaseKind
    shard_bytes: float
    steps: tuple[ScheduledPart, ...]

    @functools.cached_property
    def count(self) -> int:
        """The steps that follow each other."""
        return 1 + max((part.step for part in self.steps), default=-1)


@dataclass(frozen=True)
class CollectiveScheduleFile(Document):
    """The document of `topoopt topology --schedule`."""

    KIND: ClassVar[str] = "collective schedule"
    VERSION: ClassVar[int] = 1
    TABLES: ClassVar[bool] = True

    version: int
    collective: Collective
    servers: int
    bytes: int
    algorithm: str
    links: tuple[GraphLink, ...]
    phases: tuple[SchedulePhase, ...]

    def validate(self) -> Self:
        """Returns self, or raises DocumentError with the first step that is wrong."""
        check_graph(self.servers, self.links)
        check_size(self.bytes)
        self._check_phases()
        linked = pair_rates(self.links).keys()
        for i, phase in enumerate(self.phases):
            _Replay(f"phases[{i}]", phase, self.servers).check(linked)
        return self

    @property
    def steps(self) -> int:
        """The steps of all phases."""
        return sum(phase.count for phase in self.phases)

    def busiest_link_bytes(self) -> float:
        """The bytes of the busiest link, as if it had the rate of the slowest link."""
        return self._busiest(self.phases)

    def phase_bytes(self) -> float:
        """The bytes of the busiest link of each phase, in total: at least the bound."""
        return sum(self._busiest([phase]) for phase in self.phases)

    def _busiest(self, phases: Iterable[SchedulePhase]) -> float:
        rates = pair_rates(self.links)
        carried: dict[Pair, float] = defaultdict(float)
        for phase in phases:
            for part in phase.steps:
                carried[part.source, part.target] += part.fraction * phase.shard_bytes
        slowest = min(rates.values())
        return max(sent * slowest / rates[pair] for pair, sent in carried.items())

    def _check_phases(self) -> None:
        """Whether the phases together are the collective."""
        kinds = ", ".join(phase.collective for phase in self.phases) or "none"
        shard = self.bytes / self.servers
        expected: dict[str, float] = {self.collective: shard}  # kinds -> bytes of a shard
        if self.collective == "broadcast":
            expected = {"broadcast": self.bytes}
        elif self.collective == "all_reduce":
            expected = {"reduce_scatter, all_gather": shard, "all_gather": self.bytes}
        if kinds not in expected:
            raise DocumentError(f"phases: {kinds}: {self.collective} has {' or '.join(expected)}")
        shard_bytes = expected[kinds]
        for i, phase in enumerate(self.phases):
            if not math.isclose(phase.shard_bytes, shard_bytes, rel_tol=1e-6):
                raise DocumentError(
                    f"phases[{i}].shard_bytes: {phase.shard_bytes:g} is not {shard_bytes:g}, "
                    f"which {self.bytes} bytes on {self.servers} servers need"
                )


class _Arrival(NamedTuple):
    """The part [first, end) of a shard, and the step in which a server gets it."""

    first: float
    end: float
    step: int


class _Replay:
    """Follows the parts of one phase.

    A reduce_scatter is an all_gather run backwards: a server that has sent its sum of a part counts
    as one that receives the part, and the last step as the first.
    """

    def __init__(self, where: str, phase: SchedulePhase, servers: int) -> None:
        self._where = where
        self._phase = phase
        self._servers = servers
        self._origins = range(ROOT, ROOT + 1) if phase.collective == "broadcast" else range(servers)
        self._backward = phase.collective == "reduce_scatter"
        self._arrivals: dict[Pair, list[_Arrival]] = defaultdict(list)  # by receiver and origin
        self._of_row: list[_Arrival] = []

    def check(self, links: Collection[Pair]) -> None:
        """Raises DocumentError for the first step that is wrong, or a part that is missing."""
        for i, part in enumerate(self._phase.steps):
            where = f"{self._where}.steps[{i}]"
            self._check_row(where, part)
            if (part.source, part.target) not in links:
                raise DocumentError(
                    f"{where}: there is no link from server {part.source} to {part.target}"
                )
            self._receive(where, part)
        for i, (part, arrival) in enumerate(zip(self._phase.steps, self._of_row, strict=True)):
            self._check_sender(f"{self._where}.steps[{i}]", part, arrival)
        self._check_whole()

    def _receiver(self, part: ScheduledPart) -> int:
        return part.source if self._backward else part.target

    def _check_row(self, where: str, part: ScheduledPart) -> None:
        for name in ("source", "target", "origin"):
            server = getattr(part, name)
            if not 0 <= server < self._servers:
                raise DocumentError(f"{where}.{name}: {server} is not in 0..{self._servers - 1}")
        if not 0 < part.fraction <= 1 + _EPSILON:
            raise DocumentError(f"{where}.fraction: {part.fraction:g} is not above 0 and at most 1")
        if part.step < 0:
            raise DocumentError(f"{where}.step: {part.step} is not at least 0")
        if part.origin not in self._origins:
            raise DocumentError(f"{where}.origin: {part.origin} is not {ROOT}, the root")
        if self._receiver(part) == part.origin:
            does = "sends" if self._backward else "receives"
            raise DocumentError(f"{where}: server {part.origin} {does} a part of its own shard")

    def _receive(self, where: str, part: ScheduledPart) -> None:
        arrivals = self._arrivals[self._receiver(part), part.origin]
        first = arrivals[-1].end if arrivals else 0.0
        end = first + part.fraction
        if end > 1 + _EPSILON:
            does = "sends" if self._backward else "receives"
            raise DocumentError(
                f"{where}.fraction: with {part.fraction:g}, server {self._receiver(part)} {does} "
                f"{end:g} times the shard of server {part.origin}"
            )
        step = self._phase.count - 1 - part.step if self._backward else part.step
        arrivals.append(_Arrival(first, end, step))
        self._of_row.append(arrivals[-1])

    def _check_sender(self, where: str, part: ScheduledPart, moved: _Arrival) -> None:
        """Whether the sender has the part in an earlier step."""
        sender = part.target if self._backward else part.source
        if sender == part.origin:
            return
        first = moved.first
        for arrival in self._arrivals.get((sender, part.origin), ()):
            if arrival.end <= first + _EPSILON:
                continue
            if arrival.step >= moved.step or arrival.first > first + _EPSILON:
                break
            first = arrival.end
            if first >= moved.end - _EPSILON:
                return
        has = "send this part on after" if self._backward else "have this part before"
        raise DocumentError(
            f"{where}: server {sender} does not {has} step {part.step} (shard of server "
            f"{part.origin})"
        )

    def _check_whole(self) -> None:
        for receiver, origin in itertools.product(range(self._servers), self._origins):
            arrivals = self._arrivals.get((receiver, origin), ())
            share = arrivals[-1].end if arrivals else 0.0
            if receiver != origin and share < 1 - _EPSILON:
                does = "sends" if self._backward else "receives"
                raise DocumentError(
                    f"{self._where}.steps: server {receiver} {does} only {share:g} of the shard of "
                    f"server {origin}"
                )
