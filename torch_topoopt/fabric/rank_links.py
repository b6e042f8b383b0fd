"""Opens every connection of one rank: to the ranks of its server, and its ports if it leads it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.links import ServerPorts
from torch_topoopt.fabric.local_links import LocalPort

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

    from torch_topoopt.fabric.links import OpenLink
    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import Plan
    from torch_topoopt.rank_layout import RankLayout


class Meeting(Protocol):
    """Where ranks tell each other what they must know to connect."""

    def publish(self, topic: str, text: str) -> None:
        """Tells all ranks; once per topic."""
        ...

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        """Waits until all of `ranks` have published; rank -> text. FabricError: who has not."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """`meet_s` for ranks that may start much later, `connect_s` for what is quick from then on."""

    meet_s: float
    connect_s: float


@dataclass(frozen=True)
class RankLinks:
    """What one rank holds: planned links (none unless it is a leader), and rank -> connection."""

    planned: list[OpenLink]
    local: dict[int, socket.socket]


def open_rank_links(
    plan: Plan,
    wiring: Wiring,
    layout: RankLayout,
    rank: int,
    meeting: Meeting,
    timeouts: Timeouts,
    listeners: Mapping[tuple[str, int], socket.socket],
) -> RankLinks:
    """Opens and verifies all connections of `rank`; raises FabricError, and leaves none open then.

    `listeners` (address and port -> socket) are those of this rank that are open already; they are
    closed in the end. The higher rank of a server connects to the lower one.
    """
    server = layout.server_of[rank]
    peers = layout.peers(rank)
    lower = [peer for peer in peers if peer < rank]
    with ExitStack() as stack:
        local = stack.enter_context(LocalPort(rank, wiring.plan_digest))
        ports = stack.enter_context(ServerPorts(plan, wiring, server, listeners))
        leads = layout.is_leader(rank)
        if leads:
            ports.listen()
        meeting.publish("listening", local.name)
        neighbours = {layout.leaders[link.target] for link in ports.outgoing} if leads else set()
        names = meeting.collect("listening", sorted(neighbours | set(lower)), _in(timeouts.meet_s))
        deadline = _in(timeouts.connect_s)
        if leads:
            ports.connect(deadline)
        local.connect({peer: names[peer] for peer in lower}, deadline)
        local.accept([peer for peer in peers if peer > rank], deadline)
        if leads:
            ports.accept(deadline)
            ports.check_answers(deadline)
        local.check_answers(deadline)
        return RankLinks(ports.take() if leads else [], local.take())


def _in(seconds: float) -> float:
    return time.monotonic() + seconds
