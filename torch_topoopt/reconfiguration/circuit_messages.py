"""The messages of the circuit service and the ranks (csrc/collectives/group/circuit_client.h)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PART,
    PORT,
    SENDER,
    SLOT,
    SOURCE,
    TARGET,
)
from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective
from torch_topoopt.reconfiguration.hop_order import without_waiting

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.hop_order import Hop


class RankConnection:
    """The connection of one rank; `number` and `server` are -1 until its first message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.number = self.server = -1
        self._begun = b""
        self._reach = "free"  # told last

    def lines(self) -> list[str] | None:
        """Received messages, after at least one read; None when the connection has ended."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [line.decode() for line in lines]

    def send(self, line: str) -> None:
        with suppress(OSError):  # disconnected; its end of the connection will report it
            self.connection.sendall(line.encode() + b"\n")

    def send_reach(self, reached: Iterable[int] | None, *, changes: bool) -> None:
        """Sends which servers this rank reaches, None for all and the plan's circuits, and whether
        circuits are being changed, unless it knows."""
        line = "free"
        if reached is not None:
            line = f"{'wait' if changes else 'hold'} {','.join(map(str, sorted(reached)))}"
        if line != self._reach:
            self._reach = line
            self.send(line)


def numbers_of(words: str) -> tuple[int, ...]:
    """Those of a list with commas."""
    return tuple(map(int, words.split(",")))


def program_line(schedule: AllToAllSchedule | SteppedCollective) -> str:
    """The line with its hops (circuit_client.h)."""
    if isinstance(schedule, SteppedCollective):
        made = schedule.timeline
        words = ["blocks", str(id(schedule)), str(made.pieces), str(made.blocks)]
        topologies: Iterable[Sequence[tuple[int, ...]]] = schedule.hops()
    else:
        words = ["schedule", str(id(schedule))]
        topologies = map(without_waiting, hops_of(schedule))
    for hops in topologies:
        words += [str(len(hops)), *(str(word) for hop in hops for word in hop)]
    return " ".join(words)


def hops_of(schedule: AllToAllSchedule) -> list[list[Hop]]:
    """Per topology its hops, by slots."""
    whole = schedule.whole()
    sends = whole.sends[np.argsort(whole.sends[:, SLOT], kind="stable")].astype(np.int64)
    topology = whole.topology_of(sends)
    receivers = whole.links[topology, sends[:, SENDER], sends[:, PORT]]
    hops = np.column_stack([sends[:, SENDER], receivers, sends[:, [SOURCE, TARGET, PART]]])
    of_topologies: list[list[Hop]] = [[] for _ in range(schedule.reconfigurations)]
    for number, hop in zip(topology.tolist(), hops.tolist(), strict=True):
        of_topologies[number].append(tuple(hop))
    return of_topologies
