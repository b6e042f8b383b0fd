"""Selectors: the 1x2 optical switches in front of server ports, and how all of them are flipped.

With one, a port reaches two sockets of circuit switches: the one that the cluster file calls
`switch`, and the one it calls `lookahead` (paper, Appendix C). While light takes one side, the
circuits of the next job are set on the other, and a flip of milliseconds (latching mechanical parts
are sold with 10 ms at most) replaces the settle time of a switch, or the minutes of a patch panel.

Such parts have no protocol: they are relays with one or two coils, driven by whatever board a
person has soldered them to. So the driver here (`kind: command`) runs a program of that person:

    PROGRAM get h0:p0 h1:p0                     prints a line per port: `h0:p0 switch`
    PROGRAM set h0:p0=lookahead h1:p0=lookahead   returns with exit code 0 once light takes them
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Literal, Protocol

from torch_topoopt.fabric.clock import HandClock
from torch_topoopt.fabric.switches.circuits import port_order
from torch_topoopt.fabric.switches.switch import SwitchError, SwitchUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch_topoopt.fabric.cluster_file.entries import SelectorEntry

Side = Literal["switch", "lookahead"]
SIDES: tuple[Side, Side] = ("switch", "lookahead")
_FLIP_S = 0.01  # of a selector in memory


class Selector(Protocol):
    """Controls the 1x2 switches of a cluster. Ports are "h0:p0". Methods raise SwitchError."""

    name: str

    def sides(self, ports: Iterable[str]) -> dict[str, Side]:
        """The current side of each of `ports`; always reads the device."""
        ...

    def set(self, sides: Mapping[str, Side]) -> None:
        """Moves the named ports only; idempotent."""
        ...


def flip(selector: Selector, sides: Mapping[str, Side]) -> dict[str, Side]:
    """Moves the ports of `sides` that are elsewhere, and reads them back; returns the moved ones.

    Raises SwitchError naming the ports that did not move.
    """
    before = selector.sides(sides)
    moves = {port: side for port, side in sides.items() if before[port] != side}
    if not moves:
        return {}
    selector.set(moves)
    after = selector.sides(moves)
    stuck = sorted((port for port, side in moves.items() if after[port] != side), key=port_order)
    if stuck:
        raise SwitchError(
            f"{selector.name}: {', '.join(stuck)} did not move to {moves[stuck[0]]}; light still "
            f"takes {after[stuck[0]]}"
        )
    return moves


class MemorySelector:
    """In memory; starts with all ports at `switch`. Ports in `stuck` do not move."""

    name = "selector"

    def __init__(self) -> None:
        self.clock = HandClock()
        self.stuck: set[str] = set()
        self.deaf = False
        self._sides: dict[str, Side] = {}

    def sides(self, ports: Iterable[str]) -> dict[str, Side]:
        self._answer()
        return {port: self._sides.get(port, "switch") for port in ports}

    def set(self, sides: Mapping[str, Side]) -> None:
        self._answer()
        self.clock.sleep(_FLIP_S)
        self._sides.update({p: side for p, side in sides.items() if p not in self.stuck})

    def _answer(self) -> None:
        if self.deaf:
            raise SwitchUnreachable(f"{self.name}: no answer")


class CommandSelector:
    """Runs the program of the cluster file; see the top of this module."""

    name = "selector"

    def __init__(self, program: tuple[str, ...], timeout_s: float) -> None:
        self._program = program
        self._timeout_s = timeout_s

    def sides(self, ports: Iterable[str]) -> dict[str, Side]:
        asked = list(ports)
        found: dict[str, Side] = {}
        for line in self._run("get", *asked).splitlines():
            port, _, side = line.strip().partition(" ")
            if port not in asked or side not in SIDES:
                raise SwitchError(
                    f"{self.name}: {self._program[0]} get said {line!r}, which is not one of the "
                    "ports that were asked for with switch or lookahead behind it"
                )
            found[port] = side
        missing = [port for port in asked if port not in found]
        if missing:
            raise SwitchError(f"{self.name}: {self._program[0]} get said nothing of {missing[0]}")
        return found

    def set(self, sides: Mapping[str, Side]) -> None:
        self._run("set", *(f"{port}={side}" for port, side in sides.items()))

    def _run(self, *arguments: str) -> str:
        what = f"{self.name}: {self._program[0]} {arguments[0]}"
        try:
            done = subprocess.run(
                [*self._program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
            )
        except OSError as error:
            raise SwitchUnreachable(f"{what}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SwitchUnreachable(f"{what}: no answer in {self._timeout_s:g} s") from None
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise SwitchError(f"{what}: exit code {done.returncode}: {said[-1] if said else ''}")
        return done.stdout


def open_selector(entry: SelectorEntry) -> Selector:
    """The selector that an entry of the cluster file describes."""
    if entry.kind == "memory":
        return MemorySelector()
    return CommandSelector(entry.program, entry.timeout_s)
