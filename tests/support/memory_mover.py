"""The twin of a fabric whose circuits move, in memory."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from support.limits import limit_s
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class MemoryMover:
    """Remembers what was installed; `dark` are topologies (by number) that do not come up. The plan
    has a circuit between every two of the `servers`."""

    def __init__(self, servers: int = 4) -> None:
        self.servers = servers
        self.topologies: list[Mapping[int, Sequence[int]]] = []
        self.at: list[tuple[int, ...]] = [()]  # (): the plan's circuits
        self.dark: set[int] = set()
        self.closed = False
        self._moved = threading.Condition()
        self._lost = ("", -1)
        self._events, self._shown = socket.socketpair()

    def prepare(self, targets: Mapping[int, Sequence[int]]) -> int:
        self.topologies.append(targets)
        return len(self.topologies) - 1

    def move(self, numbers: Iterable[int]) -> None:
        installed = tuple(sorted(numbers))
        servers = [server for number in installed for server in self.topologies[number]]
        assert len(set(servers)) == len(servers), "a server is in two topologies"
        if dark := self.dark.intersection(installed):
            self.restore()
            raise FabricError(f"topology {min(dark)} stays dark")
        with self._moved:
            if installed != self.at[-1]:
                self.at.append(installed)
            self._moved.notify_all()

    def restore(self) -> None:
        self.move(())

    def reached(self, numbers: Iterable[int]) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for number in numbers:
            targets = self.topologies[number]
            for server in targets:
                reached = {server}
                for _ in targets:
                    reached.update(*(targets[one] for one in tuple(reached)))
                found[server] = frozenset(reached)
        others = frozenset(range(self.servers)) - found.keys()
        return found | dict.fromkeys(others, others)

    def number_of(self, servers: Iterable[int]) -> int:
        """Of the only topology of these servers."""
        (number,) = (
            number for number, one in enumerate(self.topologies) if one.keys() == set(servers)
        )
        return number

    def wait_for(self, numbers: tuple[int, ...]) -> None:
        """Until exactly these topologies are installed."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.at[-1] == numbers, limit_s(10))

    def events(self) -> socket.socket:
        return self._shown

    def lost(self, number: int) -> str:
        assert number in self.at[-1]
        why, lost = self._lost
        return why if lost in (-1, number) else ""

    def lose(self, why: str, number: int = -1) -> None:
        """This topology (-1: all) is lost from now on, or with "" is not."""
        self._lost = (why, number)
        self._events.send(b"!")

    def close(self) -> None:
        self._events.close()
        self.closed = True
