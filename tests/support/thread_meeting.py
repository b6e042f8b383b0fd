"""The rendezvous of threads that play the hosts, or the ranks, of one job."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Board:
    """Where they meet; `texts` by topic and rank."""

    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


@dataclass
class ThreadMeeting:
    """The board as thread `rank` sees it."""

    board: Board
    rank: int

    def publish(self, topic: str, text: str) -> None:
        with self.board.changed:
            self.board.texts[topic, self.rank] = text
            self.board.changed.notify_all()

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        keys = [(topic, rank) for rank in ranks]
        with self.board.changed:
            there = self.board.changed.wait_for(
                lambda: all(key in self.board.texts for key in keys), deadline - time.monotonic()
            )
            if not there:
                raise FabricError(f"no sign of {keys}")
            return {rank: self.board.texts[topic, rank] for _, rank in keys}
