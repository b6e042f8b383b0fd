"""Random faults of the cables of emulated hosts, for what runs on them.

Hosts are network namespaces, and a fault is one of a real kernel network: an interface that is set
down, packets that vanish at one end or both, connections that are reset. Needs root, `ip`, `nft`.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.links import connections
from torch_topoopt.fabric.netns.layout import port_interface

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Link, Plan

KINDS = ("down", "silent", "one way", "reset")
_COMMAND_LIMIT_S = 60.0
_RETURN_TURNS = 2  # a job may not have taken back a cable that was repaired in the last ones
_DROP = "drop"
_RESET = "meta l4proto tcp reject with tcp reset"


@dataclass(frozen=True)
class Fault:
    """One of the KINDS; at the source's end of the cable, or, if `reverse`, the target's."""

    cable: Link
    kind: str
    reverse: bool

    def __str__(self) -> str:
        cable = self.cable
        end = cable.target if self.reverse else cable.source
        return (
            f"{self.kind} at server {end} of the cable server {cable.source} port "
            f"{cable.source_port} - server {cable.target} port {cable.target_port}"
        )

    def ends(self) -> list[tuple[int, str]]:
        """(server, interface) where it happens."""
        ends = [
            (self.cable.source, port_interface(self.cable.source_port)),
            (self.cable.target, port_interface(self.cable.target_port)),
        ]
        return ends if self.kind == "silent" else ends[1:] if self.reverse else ends[:1]


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
        self._layout = layout
        self._servers = plan.cluster.servers
        self._cables = list(connections(plan))
        self._random = random.Random(seed)
        self._most = most
        self._kinds = tuple(kinds)
        self._log = log
        self.cut: list[Fault] = []
        self._repaired: dict[Link, int] = {}  # in which turn
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
            self._repair(self._random.choice(self.cut))
        if cables := [cable for cable in self._cables if self._connected_without(cable)]:
            reverse = self._random.random() < 0.5
            kind = self._random.choice(self._kinds)
            self._make(Fault(self._random.choice(cables), kind, reverse))
        self._note(begin_s)

    def repair_all(self) -> None:
        begin_s = time.monotonic()
        while self.cut:
            self._repair(self.cut[-1])
        self._note(begin_s)

    def _note(self, begin_s: float) -> None:
        self.turns.append(Turn(begin_s, time.monotonic(), len(self.cut)))

    def _make(self, fault: Fault) -> None:
        self._log(f"cut: {fault}")
        for server, interface in fault.ends():
            self._apply(fault.kind, server, interface)
        self.cut.append(fault)
        self.count += 1

    def _repair(self, fault: Fault) -> None:
        self._log(f"repaired: {fault}")
        for server, interface in fault.ends():
            if fault.kind == "down":
                self._in_host(server, f"ip link set {interface} up")
            else:
                self._in_host(server, f"nft delete table inet cut_{interface}")
        self.cut.remove(fault)
        self._repaired[fault.cable] = len(self.turns)

    def _apply(self, kind: str, server: int, interface: str) -> None:
        if kind == "down":
            return self._in_host(server, f"ip link set {interface} down")
        table = f"cut_{interface}"
        verdict = _RESET if kind == "reset" else _DROP
        self._in_host(
            server,
            "nft -f -",
            f"add table inet {table}\n"
            f"add chain inet {table} in {{ type filter hook input priority 0 ; }}\n"
            f"add rule inet {table} in iifname {interface} {verdict}\n",
        )

    def _in_host(self, server: int, command: str, text: str = "") -> None:
        subprocess.run(
            ["ip", "netns", "exec", self._layout.namespace(server), *command.split()],
            input=text,
            text=True,
            capture_output=True,
            check=True,
            timeout=_COMMAND_LIMIT_S,
        )

    def _connected_without(self, cable: Link) -> bool:
        """Whether `cable` is whole, and all servers would be connected without it."""
        gone = {fault.cable for fault in self.cut}
        if cable in gone:
            return False
        first = len(self.turns) - _RETURN_TURNS
        gone |= {other for other, turn in self._repaired.items() if turn >= first}
        left = [other for other in self._cables if other != cable and other not in gone]
        reached, fresh = {0}, [0]
        while fresh:
            server = fresh.pop()
            for other in left:
                ends = {other.source, other.target}
                if server in ends and (new := ends - reached):
                    reached |= new
                    fresh.extend(new)
        return len(reached) == self._servers
