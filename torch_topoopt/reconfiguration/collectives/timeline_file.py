"""A timeline as a file: JSON that is replayed on reading."""

from __future__ import annotations

from dataclasses import dataclass

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.collectives.phases import StridePart
from torch_topoopt.reconfiguration.collectives.planner import check
from torch_topoopt.reconfiguration.collectives.port_timeline import PortMove, PortSend, PortTimeline
from torch_topoopt.reconfiguration.collectives.replay import TimelineError, replay

_MOST_PIECES = 100_000


@dataclass(frozen=True)
class FiledSend:
    """A send of each of `senders` (none: all servers): `blocks`, counted from its own, modulo n, or
    the whole piece if none are listed."""

    port: int
    begin_s: float
    end_s: float
    piece: int
    blocks: tuple[int, ...]
    senders: tuple[int, ...]
    reduces: bool


@dataclass(frozen=True)
class CollectiveTimelineFile(Document):
    """The document of a timeline: the moves of each port's circuits, and its sends.

    After a move server x sends to x + `stride`, modulo n, on that port.
    """

    KIND = "collective timeline"
    VERSION = 1

    version: int
    collective: str
    servers: int
    degree: int
    total_bytes: float
    link_gbps: float
    latency_s: float
    reconfiguration_s: float
    pieces: int
    blocks: int
    moves: tuple[PortMove, ...]
    sends: tuple[FiledSend, ...]

    def validate(self) -> CollectiveTimelineFile:
        """Returns self, or raises DocumentError unless it performs the collective."""
        try:
            costs = CircuitCosts(self.link_gbps, self.latency_s, self.reconfiguration_s)
            check(self.collective, self.servers, self.degree, self.total_bytes)
            if not 1 <= self.pieces <= _MOST_PIECES:
                raise ValueError(f"pieces: {self.pieces} is not from 1 to {_MOST_PIECES}")
            for i, send in enumerate(self.sends):
                if not all(0 <= server < self.servers for server in send.senders):
                    raise ValueError(f"sends[{i}].senders: expected servers below {self.servers}")
            replay(self.timeline(), costs)
        except (TimelineError, ValueError) as error:
            raise DocumentError(str(error)) from None
        return self

    def timeline(self) -> PortTimeline:
        """The input of `replay`."""
        sends = tuple(
            PortSend(
                send.port,
                send.begin_s,
                send.end_s,
                send.piece,
                StridePart(0, send.blocks, send.senders or None),
                send.reduces,
            )
            for send in self.sends
        )
        return PortTimeline(
            self.collective,
            self.servers,
            self.degree,
            self.total_bytes,
            self.pieces,
            self.blocks,
            self.moves,
            sends,
        )


def timeline_file(timeline: PortTimeline, costs: CircuitCosts) -> CollectiveTimelineFile:
    """The file of `topoopt alltoall --collective ... --schedule`."""
    return CollectiveTimelineFile(
        version=CollectiveTimelineFile.VERSION,
        collective=timeline.collective,
        servers=timeline.servers,
        degree=timeline.degree,
        total_bytes=timeline.total_bytes,
        link_gbps=costs.link_gbps,
        latency_s=costs.latency_s,
        reconfiguration_s=costs.reconfiguration_s,
        pieces=timeline.pieces,
        blocks=timeline.blocks,
        moves=timeline.moves,
        sends=tuple(
            FiledSend(
                send.port,
                send.begin_s,
                send.end_s,
                send.piece,
                send.part.offsets,
                send.part.senders or (),
                send.reduces,
            )
            for send in timeline.sends
        ),
    )
