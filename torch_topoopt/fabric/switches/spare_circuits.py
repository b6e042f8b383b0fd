"""Moves a cable that stays lost to spare ports of its two servers, while a job runs.

The cable gets circuits between other sockets of the same switch. Its source opens the link there
(links/cable_keeper.py). Nothing else on the switch changes.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch_topoopt.fabric.switches.circuits import CircuitError, Difference, Fence
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.switch import NotSettled, cable_circuits
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.fabric.switches.circuits import Circuit
    from torch_topoopt.fabric.switches.light_watch import LightWatch
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.plan import Link


@dataclass(frozen=True)
class SwitchPort:
    """A port of a server, at `socket` of `switch`. A circuit may join two of one switch and
    `subnet`."""

    server: int
    port: int
    switch: str
    socket: str
    subnet: str = ""

    def joins(self, other: SwitchPort) -> bool:
        return (self.switch, self.subnet) == (other.switch, other.subnet)

    def __str__(self) -> str:
        return f"server {self.server} port {self.port} ({self.switch} socket {self.socket})"


SwitchedCable: TypeAlias = "tuple[SwitchPort, SwitchPort]"  # the ends of the source and the target


@dataclass(frozen=True)
class SpareMove:
    """The ends of the cable of `link` now, `seconds` after the request.

    If they are those of before, `why` says why it was not moved, else why other ports were not
    taken.
    """

    link: Link
    before: SwitchedCable
    after: SwitchedCable
    seconds: float
    why: str = ""

    @property
    def moved(self) -> bool:
        return self.after != self.before


class SpareCircuits:
    """The `cables` of a job, by links of sockets.connections(), and its `spares`.

    `switches` has the driver of each switch, and its watch. Circuits of a moved cable must be up
    within `limit_s` seconds. Methods raise FabricError if a device does not answer; one thread at a
    time.
    """

    def __init__(
        self,
        switches: Mapping[str, tuple[CircuitSwitch, LightWatch]],
        cables: Mapping[Link, SwitchedCable],
        spares: Sequence[SwitchPort],
        *,
        limit_s: float,
    ) -> None:
        self._switches = dict(switches)
        self._planned = dict(cables)
        self._cables = dict(cables)
        self._spares = list(spares)
        self._limit_s = limit_s
        self._failed: dict[Link, set[SwitchedCable]] = {link: set() for link in cables}

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(self._cables)

    def circuits_of(self, link: Link) -> tuple[Circuit, ...]:
        """The current ones."""
        return self._circuits(self._cables[link])

    def dark(self) -> set[Link]:
        """The links whose circuits are down."""
        circuits = {link: self.circuits_of(link) for link in self._cables}
        found = set()
        for name, (_, watch) in self._switches.items():
            own = {link for link, (end, _) in self._cables.items() if end.switch == name}
            dark = watch.dark([circuit for link in own for circuit in circuits[link]])
            found |= {link for link in own if dark & set(circuits[link])}
        return found

    def move(self, link: Link) -> SpareMove:
        """Gives the cable of `link` circuits between other ports: both ends on spare ones, else one
        end.

        Ports between which it was lost before are not tried again. If no others come up, its
        circuits stay, so that it can come back where it was.
        """
        began = time.monotonic()
        before = self._cables[link]
        self._failed[link].add(before)
        possible = self._possible(link)
        if not possible:
            why = f"there are no spare ports for it on {before[0].switch}"
            return SpareMove(link, before, before, 0.0, why)
        switch, _ = self._switches[before[0].switch]
        old = self._circuits(before)
        configure(switch, (), _fence_of(old), timeout_s=self._limit_s)
        reasons = []
        for cable in possible:
            try:
                self._light(cable)
            except FabricError as error:
                self._failed[link].add(cable)
                reasons.append(str(error))
                continue
            self._cables[link] = cable
            return SpareMove(link, before, cable, time.monotonic() - began, "; ".join(reasons))
        switch.apply(Difference((), old))
        return SpareMove(link, before, before, time.monotonic() - began, "; ".join(reasons))

    def is_back(self, link: Link) -> None:
        """The link is open again, so after its next loss all ports may be tried."""
        self._failed[link].clear()

    def close(self) -> None:
        """Ends the connections to the switches; circuits stay."""
        for switch, _ in self._switches.values():
            switch.close()

    def _possible(self, link: Link) -> list[SwitchedCable]:
        """The pairs of ports to try, in this order."""
        used = {end for other, cable in self._cables.items() if other != link for end in cable}
        choices = [
            [end, *(s for s in self._spares if s.server == end.server and s not in used)]
            for end in self._planned[link]
        ]
        pairs = [(near, far) for near, far in itertools.product(*choices) if near.joins(far)]
        planned = self._planned[link]
        pairs.sort(key=lambda cable: sum(map(lambda a, b: a == b, cable, planned)))
        return [cable for cable in pairs if cable not in self._failed[link]]

    def _light(self, cable: SwitchedCable) -> None:
        """Raises FabricError, without circuits between the two ports, if they do not come up, or
        the ports have circuits of others."""
        switch, watch = self._switches[cable[0].switch]
        circuits = self._circuits(cable)
        fence = _fence_of(circuits)
        if present := fence.own(switch.circuits()):
            names = ", ".join(sorted(map(str, present)))
            raise CircuitError(f"{switch.name}: its ports are in use by {names}")
        configure(switch, circuits, fence, timeout_s=self._limit_s)
        if dark := watch.dark(circuits):  # a port of a host may be down
            configure(switch, (), fence, timeout_s=self._limit_s)
            names = ", ".join(sorted(map(str, dark)))
            raise NotSettled(f"{switch.name}: no light on {names}", dark)

    def _circuits(self, cable: SwitchedCable) -> tuple[Circuit, ...]:
        near, far = cable
        return cable_circuits(self._switches[near.switch][0], near.socket, far.socket)


def _fence_of(circuits: Sequence[Circuit]) -> Fence:
    return Fence(frozenset(port for circuit in circuits for port in circuit.ports))
