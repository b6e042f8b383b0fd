"""A schedule: the sequence of topologies, and the link and slot of every hop of a chunk.

A chunk is the content of a link in a slot: all bytes of one server for another, or a part of them
if pairs have unequal numbers of chunks. It is named by the two servers and the part. The slots of a
topology are cut into rounds; in a schedule with barriers, a chunk leaves and arrives in one round.

A translated schedule, on circulants, lists the sends of server 0's chunks alone: for server x, add
x to every server, modulo n. So a ring of 4096 servers takes some millions of rows instead of
billions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SLOT, SENDER, PORT, SOURCE, TARGET, PART = range(6)  # columns of `AllToAllSchedule.sends`


@dataclass(frozen=True, eq=False)
class AllToAllSchedule:
    """`links[topology, server, port]` is the server that a port sends to; its own if it is dark.

    `rounds` holds the slots of each round of each topology. `sends` has a row for each chunk and
    hop, (slot, sender, port, source, target, part), with slots counted from 0 through all
    topologies. `counts[source, target]` are the chunks of each pair; None: one of every pair.
    """

    links: NDArray[np.int32]
    rounds: tuple[tuple[int, ...], ...]
    sends: NDArray[np.int32]
    translated: bool
    counts: NDArray[np.int32] | None = None

    @property
    def servers(self) -> int:
        """n."""
        return int(self.links.shape[1])

    @property
    def degree(self) -> int:
        """k, circuits out of and into every server."""
        return int(self.links.shape[2])

    @property
    def reconfigurations(self) -> int:
        """d, with the first topology."""
        return len(self.links)

    @property
    def slots(self) -> int:
        """Slots of all topologies."""
        return sum(map(sum, self.rounds))

    def first_slots(self) -> NDArray[np.int64]:
        """The first slot of each topology, and finally the number of all slots."""
        return np.cumsum([0, *map(sum, self.rounds)])

    def topology_of(self, sends: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The topology of each of these rows."""
        return np.searchsorted(self.first_slots()[1:], sends[:, SLOT], side="right")

    def chunk_counts(self) -> NDArray[np.int32]:
        """Chunks of each pair."""
        if self.counts is not None:
            return self.counts
        return np.ones((self.servers,) * 2, dtype=np.int32) - np.eye(self.servers, dtype=np.int32)

    def relabelled(self, unit: int) -> AllToAllSchedule:
        """The same schedule with server `unit` x in the place of server x, modulo n; `unit` and n
        have no common divisor."""
        servers = self.servers
        place = np.arange(servers) * unit % servers  # of each server
        links = np.empty_like(self.links)
        links[:, place] = self.links * unit % servers
        sends = self.sends.copy()
        for column in (SENDER, SOURCE, TARGET):
            sends[:, column] = sends[:, column] * unit % servers
        counts = None
        if self.counts is not None:
            counts = np.empty_like(self.counts)
            counts[np.ix_(place, place)] = self.counts
        return AllToAllSchedule(links, self.rounds, sends, self.translated, counts)

    def whole(self) -> AllToAllSchedule:
        """The same schedule with the sends of every server listed."""
        if not self.translated:
            return self
        servers = self.servers
        sends = np.repeat(self.sends[None], servers, axis=0)
        by = np.arange(servers, dtype=np.int32)[:, None]
        for column in (SENDER, SOURCE, TARGET):
            sends[:, :, column] = (sends[:, :, column] + by) % servers
        return AllToAllSchedule(self.links, self.rounds, sends.reshape(-1, 6), translated=False)


def circulant_links(servers: int, strides: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """The links of circulant topologies: port p of server x leads to x + `strides[topology][p]`."""
    offsets = np.array(strides, dtype=np.int32)[:, None, :]
    links: NDArray[np.int32] = (np.arange(servers, dtype=np.int32)[:, None] + offsets) % servers
    return links
