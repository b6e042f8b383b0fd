"""Collectives that ranks have requested of the circuit service, and the finished ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.choice import Choice


@dataclass(frozen=True)
class MovedExchange:
    """One finished all-to-all; `matrix[i, j]` are the bytes of member i for member j. `error` is
    why it was stopped, or "". `of_all`: its group has all ranks."""

    matrix: NDArray[np.int64]
    choice: Choice
    seconds: float
    moving_s: float  # part of it, until circuits were up
    error: str = ""
    of_all: bool = True

    @property
    def total_bytes(self) -> int:
        return int(self.matrix.sum())

    @property
    def members(self) -> int:
        return len(self.matrix)


@dataclass(frozen=True)
class MovedCollective:
    """Another finished collective, of a name of `phases.COLLECTIVES`."""

    collective: str
    total_bytes: int
    members: int
    choice: Choice
    seconds: float
    moving_s: float
    error: str = ""


@dataclass(frozen=True)
class CollectiveRequest:
    """A rank's request of a collective; `arguments` differ if ranks have called different ones."""

    collective: str
    total_bytes: int
    arguments: str
    planned_s: float


@dataclass
class RequestedCall:
    """A requested collective, by (channel, number)."""

    name: str
    members: tuple[int, ...]  # ranks
    servers: tuple[int, ...]  # of the members, each once, in the order of the first members on them
    requests: dict[int, list[int] | CollectiveRequest] = field(default_factory=dict)
    # Rank -> servers of its messages since its request before, which were not requested.
    used: dict[int, frozenset[int]] = field(default_factory=dict)
    matrix: NDArray[np.int64] | None = None  # of an all-to-all, after all requests
    choice: Choice | None = None
    runs: bool = False
    ready: set[int] = field(default_factory=set)
    ready_at: float = 0.0  # when the last member was
    topology: int = 0  # the next one
    # The mover's numbers of its topologies; None: the plan has its circuits.
    numbers: list[int | None] = field(default_factory=list)
    done: set[int] = field(default_factory=set)  # ranks that finished on the plan's circuits
    there: int | None = None  # the topology that it uses; None: the plan's circuits
    began: float = 0.0
    moving_s: float = 0.0

    @property
    def complete(self) -> bool:
        return len(self.requests) == len(self.members)

    @property
    def scheduled(self) -> bool:
        """Whether it goes from topology to topology, even if the plan has all of them."""
        return self.choice is not None and self.choice.schedule is not None

    @property
    def moves(self) -> bool:
        return self.choice is not None and self.choice.moves > 0

    @property
    def waits_for_circuits(self) -> bool:
        return self.runs and self.scheduled and len(self.ready) == len(self.members)

    @property
    def next(self) -> int | None:
        """The mover's number of the next topology; None for the plan's circuits."""
        return self.numbers[self.topology] if self.topology < len(self.numbers) else None

    @property
    def ends(self) -> bool:
        """Whether all of its topologies are done."""
        return self.runs and self.scheduled and self.topology >= len(self.numbers)

    def key(self) -> Hashable:
        """Equal for the same request in every step; after its choice."""
        request = self.collective()
        if request is not None:
            return self.channel, request.collective, request.total_bytes
        return self.channel, None if self.choice is None else id(self.choice.schedule)

    @property
    def channel(self) -> str:
        """Of the group."""
        return self.name.partition(" ")[0]

    def shares_servers(self, other: RequestedCall) -> bool:
        return not set(self.servers).isdisjoint(other.servers)

    def excludes(self, other: RequestedCall) -> bool:
        """Whether both may not run at the same time."""
        if self.moves and other.moves:
            return self.shares_servers(other)
        return self.moves or other.moves

    def rows(self) -> list[list[int]] | None:
        """Of an all-to-all, in the order of the members."""
        rows = [self.requests[rank] for rank in self.members]
        found = [row for row in rows if isinstance(row, list)]
        return found if len(found) == len(rows) else None

    def collective(self) -> CollectiveRequest | None:
        """If all members have requested the same one."""
        requests = [self.requests[rank] for rank in self.members]
        first = requests[0]
        if not isinstance(first, CollectiveRequest):
            return None
        same = all(
            isinstance(one, CollectiveRequest) and one.arguments == first.arguments
            for one in requests
        )
        return first if same else None

    def ended(self, error: str, *, of_all: bool) -> MovedExchange | MovedCollective | None:
        """None if it was not started with a choice."""
        if self.choice is None or not self.runs:
            return None
        seconds = time.monotonic() - self.began
        if self.matrix is not None:
            return MovedExchange(self.matrix, self.choice, seconds, self.moving_s, error, of_all)
        request = self.collective()
        if request is None:
            return None
        return MovedCollective(
            request.collective,
            request.total_bytes,
            len(self.members),
            self.choice,
            seconds,
            self.moving_s,
            error,
        )
