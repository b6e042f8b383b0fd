"""The twin of a fabric whose circuits move, in memory."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryMover:
    """Remembers where it was moved; `dark` are topologies (by number) that do not come up."""

    def __init__(self) -> None:
        self.topologies: list[Sequence[Sequence[int]]] = []
        self.at: list[int | None] = [None]  # None: the plan's circuits
        self.dark: set[int] = set()
        self.closed = False
        self._lost = ""
        self._events, self._shown = socket.socketpair()

    def prepare(self, targets: Sequence[Sequence[int]]) -> int:
        self.topologies.append(targets)
        return len(self.topologies) - 1

    def move(self, number: int) -> None:
        if number in self.dark:
            self.restore()
            raise FabricError(f"topology {number} stays dark")
        self.at.append(number)

    def restore(self) -> None:
        if self.at[-1] is not None:
            self.at.append(None)

    def events(self) -> socket.socket:
        return self._shown

    def lost(self, number: int) -> str:
        assert self.at[-1] == number
        return self._lost

    def lose(self, why: str) -> None:
        """What is there is lost from now on, or with "" is not."""
        self._lost = why
        self._events.send(b"!")

    def close(self) -> None:
        self._events.close()
        self.closed = True
