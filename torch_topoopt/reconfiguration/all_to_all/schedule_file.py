"""A schedule as a file: JSON that is verified on reading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PART,
    PORT,
    SLOT,
    SOURCE,
    TARGET,
    AllToAllSchedule,
)
from torch_topoopt.reconfiguration.all_to_all.verification import ScheduleError, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ScheduledTopology:
    """`links[server][port]` is the server that a port sends to, its own if it is dark; `rounds`
    are the slots of each round."""

    links: tuple[tuple[int, ...], ...]
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class AllToAllScheduleFile(Document):
    """The document of a schedule. Each chunk is a list: source, target, and a slot and a port for
    each hop; a pair with several has as many lists, and `counts` has their numbers. For
    `translated` see schedule.py."""

    KIND = "all-to-all schedule"
    VERSION = 1

    version: int
    servers: int
    degree: int
    translated: bool
    topologies: tuple[ScheduledTopology, ...]
    chunks: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[int, ...], ...] | None = None

    def validate(self) -> AllToAllScheduleFile:
        """Returns self, or raises DocumentError unless it delivers every chunk."""
        try:
            verify(self.schedule())
        except ScheduleError as error:
            raise DocumentError(str(error)) from None
        return self

    def schedule(self) -> AllToAllSchedule:
        """The arrays; raises DocumentError for lists of a wrong length or numbers out of range."""
        n, k = self.servers, self.degree
        if n < 2 or k < 1 or not self.topologies:
            raise DocumentError("servers, degree, topologies: expected at least 2, 1 and 1")
        for i, topology in enumerate(self.topologies):
            where = f"topologies[{i}]"
            if len(topology.links) != n or any(len(ports) != k for ports in topology.links):
                raise DocumentError(f"{where}.links: expected {n} lists of {k} servers")
            if not all(0 <= server < n for ports in topology.links for server in ports):
                raise DocumentError(f"{where}.links: expected servers from 0 to {n - 1}")
            if not all(0 <= slots < 2**31 for slots in topology.rounds):
                raise DocumentError(f"{where}.rounds: expected numbers of slots from 0 on")
        links = np.array([topology.links for topology in self.topologies], dtype=np.int32)
        rounds = tuple(topology.rounds for topology in self.topologies)
        ends = np.cumsum([sum(slots) for slots in rounds])
        rows: list[tuple[int, int, int, int, int, int]] = []
        parts: Counter[tuple[int, int]] = Counter()
        for i, chunk in enumerate(self.chunks):
            if len(chunk) < 4 or len(chunk) % 2 or not 0 <= min(chunk) <= max(chunk) < 2**31:
                raise DocumentError(
                    f"chunks[{i}]: expected source, target, and a slot and a port for each hop"
                )
            source, target, *moves = chunk
            if max(source, target) >= n or max(moves[1::2]) >= k or max(moves[::2]) >= ends[-1]:
                raise DocumentError(
                    f"chunks[{i}]: expected servers below {n}, slots below {ends[-1]} and ports "
                    f"below {k}"
                )
            at, part = source, parts[source, target]
            parts[source, target] += 1
            for slot, port in zip(moves[::2], moves[1::2], strict=True):
                rows.append((slot, at, port, source, target, part))
                at = int(links[np.searchsorted(ends, slot, side="right"), at, port])
        sends = np.array(rows, dtype=np.int32).reshape(-1, 6)
        return AllToAllSchedule(links, rounds, sends, self.translated, self._counts())

    def _counts(self) -> NDArray[np.int32] | None:
        if self.counts is None:
            return None
        n = self.servers
        if len(self.counts) != n or any(len(row) != n for row in self.counts):
            raise DocumentError(f"counts: expected {n} lists of {n} numbers of chunks")
        if not all(0 <= count <= len(self.chunks) for row in self.counts for count in row):
            raise DocumentError("counts: expected numbers from 0 to that of all chunks")
        return np.array(self.counts, dtype=np.int32)


def schedule_file(schedule: AllToAllSchedule) -> AllToAllScheduleFile:
    """The file of `topoopt alltoall --schedule`."""
    by = (SLOT, PART, TARGET, SOURCE)
    sends = schedule.sends[np.lexsort([schedule.sends[:, column] for column in by])]
    names = sends[:, [SOURCE, TARGET, PART]]
    first = np.flatnonzero(np.any(names[1:] != names[:-1], axis=1)) + 1
    return AllToAllScheduleFile(
        version=AllToAllScheduleFile.VERSION,
        servers=schedule.servers,
        degree=schedule.degree,
        translated=schedule.translated,
        topologies=tuple(
            ScheduledTopology(tuple(map(tuple, links.tolist())), rounds)
            for links, rounds in zip(schedule.links, schedule.rounds, strict=True)
        ),
        chunks=tuple(
            (*part[0, [SOURCE, TARGET]].tolist(), *part[:, [SLOT, PORT]].ravel().tolist())
            for part in np.split(sends, first)
        ),
        counts=None if schedule.counts is None else tuple(map(tuple, schedule.counts.tolist())),
    )
