"""Random faults of the cables of emulated hosts, one after the other, for what runs on them.

Needs root, `ip` and `nft` (see broken_cables.py).
"""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fault_injection.broken_cables import (
    INPUT_HOOK,
    REFUSED,
    Cable,
    Down,
    Rules,
    cables_of,
    is_connected,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from fault_injection.broken_cables import End
    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Plan

KINDS = ("down", "silent", "one way", "reset")
_RETURN_TURNS = 2  # a job may not have taken back a cable that was repaired in the last ones
_RULES = {"silent": "IN drop", "one way": "IN drop", "reset": REFUSED}


@dataclass(frozen=True)
class Fault:
    """One of the KINDS; at the source's end of the cable, or, if `reverse`, the target's."""

    cable: Cable
    kind: str
    reverse: bool

    def __str__(self) -> str:
        link = self.cable.link
        return (
            f"{self.kind} at server {self.cable.servers[self.reverse]} of the cable server "
            f"{link.source} port {link.source_port} - server {link.target} port {link.target_port}"
        )

    def ends(self) -> list[End]:
        """Where it happens."""
        return list(self.cable.ends) if self.kind == "silent" else [self.cable.ends[self.reverse]]

    def make(self) -> Down | Rules:
        """Breaks the cable; repair() of what is returned repairs it."""
        if self.kind == "down":
            return Down(*self.ends())
        return Rules(self.ends(), _RULES[self.kind], hook=INPUT_HOOK)


@dataclass(frozen=True)
class Turn:
    """From `begin_s` to `end_s` (time.monotonic) cables were cut and repaired; `cut` of them are
    cut afterwards."""

    begin_s: float
    end_s: float
    cut: int


class CableFaults:
    """Cuts and repairs cables of a fabric; one seed, one sequence of faults.

    At most `most` are cut at a time, and those left always connect all servers, also without those
    that were repaired in the last turns. Raises FileNotFoundError where `ip` or `nft` is missing.
    """

    def __init__(
        self,
        layout: NetnsLayout,
        plan: Plan,
        *,
        seed: int,
        most: int = 2,
        kinds: Sequence[str] = KINDS,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        for program in ("ip", "nft"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"{program}: not found; faults of cables need it")
        self._servers = plan.cluster.servers
        self._cables = cables_of(layout, plan)
        self._random = random.Random(seed)
        self._most = most
        self._kinds = tuple(kinds)
        self._log = log
        self.cut: dict[Fault, Down | Rules] = {}
        self._repaired: dict[Cable, int] = {}  # in which turn
        self.count = 0
        self.turns: list[Turn] = []

    def run(self, every_s: float, over: threading.Event) -> None:
        """A turn every `every_s` seconds, until `over`."""
        while not over.wait(every_s):
            self.turn()

    def turn(self) -> None:
        """Repairs cables, so that less than `most` are cut, and cuts one, where one may be cut."""
        begin_s = time.monotonic()
        left = self._random.randint(1, self._most) - 1
        while len(self.cut) > left:
            self._repair(self._random.choice(list(self.cut)))
        if cables := [cable for cable in self._cables if self._connected_without(cable)]:
            reverse = self._random.random() < 0.5
            kind = self._random.choice(self._kinds)
            self._make(Fault(self._random.choice(cables), kind, reverse))
        self._note(begin_s)

    def repair_all(self) -> None:
        begin_s = time.monotonic()
        for fault in list(self.cut):
            self._repair(fault)
        self._note(begin_s)

    def _note(self, begin_s: float) -> None:
        self.turns.append(Turn(begin_s, time.monotonic(), len(self.cut)))

    def _make(self, fault: Fault) -> None:
        self._log(f"cut: {fault}")
        self.cut[fault] = fault.make()
        self.count += 1

    def _repair(self, fault: Fault) -> None:
        self._log(f"repaired: {fault}")
        self.cut.pop(fault).repair()
        self._repaired[fault.cable] = len(self.turns)

    def _connected_without(self, cable: Cable) -> bool:
        """Whether `cable` is whole, and all servers would be connected without it."""
        gone = {fault.cable for fault in self.cut}
        if cable in gone:
            return False
        first = len(self.turns) - _RETURN_TURNS
        gone |= {other for other, turn in self._repaired.items() if turn >= first}
        left = [other for other in self._cables if other != cable and other not in gone]
        return is_connected(left, self._servers)
