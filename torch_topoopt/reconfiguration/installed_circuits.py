"""The installed circuits of a job: topologies of some servers, and the plan's elsewhere."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

_KEPT = 256  # sets of topologies whose reach is remembered


class CircuitMover(Protocol):
    """Moves the circuits of a job; methods raise FabricError (fabric/switches/circuit_mover.py)."""

    def prepare(self, targets: Mapping[int, Sequence[int]]) -> int:
        """Prepares a topology of some servers and returns its number; port p of s sends to
        `targets[s][p]`."""
        ...

    def move(self, numbers: Iterable[int]) -> None:
        """Returns when exactly these topologies are installed, of different servers, and the plan's
        circuits between all others. On failure the plan's circuits are installed."""
        ...

    def restore(self) -> None:
        """Restores the plan's circuits; harmless if they are installed."""
        ...

    def reached(self, numbers: Iterable[int]) -> Mapping[int, frozenset[int]]:
        """Of each server the ones that it exchanges messages with while exactly these topologies
        are installed, itself included."""
        ...

    def events(self) -> socket.socket:
        """Readable when circuits may have failed; the caller reads and closes it."""
        ...

    def lost(self, number: int) -> str:
        """Circuits of the current topology that are down; "" if there are none."""
        ...

    def close(self) -> None: ...


class InstalledCircuits:
    """What `mover` has installed: `topologies` has the servers of each, by its number.

    `move_s` is the duration of the last move.
    """

    def __init__(self, mover: CircuitMover) -> None:
        self._mover = mover
        self.topologies: dict[int, frozenset[int]] = {}
        self.move_s = 0.0
        self._known = True  # False: a move has failed, and so has restoring the plan's circuits
        # Servers and their links -> number; schedules share equal topologies.
        self._numbers: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], int] = {}
        self._servers: dict[int, frozenset[int]] = {}
        self._reached: dict[frozenset[int], Mapping[int, frozenset[int]]] = {}

    def number_of(self, links: Sequence[Sequence[int]], servers: tuple[int, ...]) -> int:
        """The number of a topology, which is prepared; links[i][p] is the place in `servers` to
        which port p of servers[i] sends. Raises FabricError."""
        key = (servers, tuple(map(tuple, links)))
        if key not in self._numbers:
            targets = {
                server: [servers[target] for target in ports]
                for server, ports in zip(servers, links, strict=True)
            }
            self._numbers[key] = number = self._mover.prepare(targets)
            self._servers[number] = frozenset(servers)
        return self._numbers[key]

    def have(self, servers: Iterable[int], number: int | None) -> bool:
        """Whether these servers have the topology of that number; None: the plan's circuits."""
        if number is not None:
            return number in self.topologies
        return all(of.isdisjoint(servers) for of in self.topologies.values())

    def move(self, numbers: Iterable[int]) -> None:
        """Installs exactly these topologies. Raises FabricError, with a note if the plan's circuits
        are not installed then."""
        topologies = {number: self._servers[number] for number in numbers}
        if self._known and topologies == self.topologies:
            return
        began = time.monotonic()
        try:
            self._mover.move(topologies)
        except FabricError as error:
            self._known = not getattr(error, "__notes__", ())
            self.topologies = {}
            raise
        self._known = True
        self.move_s = time.monotonic() - began
        self.topologies = topologies

    def servers_changed(self, numbers: Iterable[int]) -> frozenset[int]:
        """Servers whose circuits are others than now if exactly these topologies are installed."""
        changed = self.topologies.keys() ^ set(numbers)
        return frozenset[int]().union(*(self._servers[number] for number in changed))

    def reached(self, server: int, numbers: Iterable[int]) -> frozenset[int] | None:
        """Servers with which this one exchanges messages while exactly these topologies are
        installed; None: all."""
        key = frozenset(numbers)
        if not key:
            return None
        if key not in self._reached:
            if len(self._reached) >= _KEPT:
                self._reached.clear()
            self._reached[key] = self._mover.reached(key)
        return self._reached[key].get(server, frozenset({server}))

    def lost(self, number: int) -> str:
        """Circuits of an installed topology that are down, or why that is not known; "" if none
        is."""
        try:
            return self._mover.lost(number)
        except FabricError as error:
            return str(error)

    def close(self) -> None:
        """Restores the plan's circuits if that is possible, and closes the mover."""
        with suppress(FabricError):
            self._mover.restore()
        self._mover.close()
