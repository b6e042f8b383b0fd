"""Moves the circuits of a running job through a sequence of topologies, and back to the plan's.

A topology has the servers of one group. Several can be installed at the same time, on different
servers. Circuits of the plan stay between servers without a topology; others are dark.

Connections stay open. Every host has a routing table for each of its topologies
(hosts/kernel_tables.py). So the packets of a connection between two servers of a topology, or
between ports of the plan's cables, use their circuit, or else the shortest path; acknowledgements
follow their own shortest path back.

Switches may be any devices with one circuit for each direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.switches.circuits import Circuit, Fence, circuit_order
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.moved_links import first_links, moved_links
from torch_topoopt.fabric.switches.switch import SwitchUnreachable
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

    from torch_topoopt.fabric.switches.light_watch import LightWatch
    from torch_topoopt.fabric.switches.spare_circuits import SwitchPort
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.plan import Link, Plan


class CircuitRoutes(Protocol):
    """The routes of the hosts of a job, which follow its circuits; methods raise FabricError."""

    def write(self, number: int, firsts: Mapping[int, Mapping[int, Link]]) -> None:
        """Writes the table of topology `number` on its servers: `firsts[s][t]` is the first link
        from s to t."""
        ...

    def select(self, numbers: Mapping[int, int]) -> None:
        """Selects a topology's table on some servers, and the plan's routes on all others."""
        ...

    def forget(self) -> None:
        """Ports may have been down: neighbours are to be named again."""
        ...

    def close(self) -> None:
        """Ends connections, which open again on demand."""
        ...


@dataclass(frozen=True)
class _Topology:
    servers: frozenset[int]
    links: tuple[Link, ...]


class RoutedCircuitMover:
    """Moves the circuits of `plan`, whose ports are the `ports` of `switch`; one thread at a time.

    `watch` notices those that are lost. All circuits of a topology must be up within `limit_s`
    seconds. Methods raise FabricError, the constructor for a switch of duplex circuits, too.
    """

    def __init__(
        self,
        plan: Plan,
        ports: Iterable[SwitchPort],
        switch: CircuitSwitch,
        watch: LightWatch,
        routes: CircuitRoutes,
        *,
        limit_s: float,
    ) -> None:
        if switch.capabilities().duplex:
            raise FabricError(
                f"{switch.name}: its circuits are duplex, and those that move in a job lead one way"
            )
        self._plan = plan
        self._switch = switch
        self._watch = watch
        self._routes = routes
        self._limit_s = limit_s
        self._servers = range(plan.cluster.servers)
        self._fibres = {(end.server, end.port): switch.fibres(end.socket) for end in ports}
        self._fence = Fence(frozenset(end for ends in self._fibres.values() for end in ends))
        self._topologies: list[_Topology] = []
        self._written: set[int] = set()  # topologies whose routes the hosts have

    def prepare(self, targets: Mapping[int, Sequence[int]]) -> int:
        """Writes the routes of a topology of some servers for later; returns its number.

        Port p of server s sends to `targets[s][p]`; s itself, or no entry, means an unused port.
        """
        degree, servers = self._plan.cluster.degree, frozenset(targets)
        if not servers <= set(self._servers) or any(len(p) > degree for p in targets.values()):
            raise FabricError(
                f"links: expected {degree} targets at most for some of {len(self._servers)} servers"
            )
        for server, ports in targets.items():
            if outside := set(ports) - servers:
                raise FabricError(
                    f"links[{server}]: server {min(outside)} is not one of the topology"
                )
        rows = [list(targets.get(server, ())) for server in self._servers]
        for server, ports in enumerate(rows):
            ports += [server] * (degree - len(ports))
        like = [one.links for one in self._topologies if one.servers == servers]
        links = moved_links(rows, like[-1] if like else self._plan.network.links)
        self._topologies.append(_Topology(servers, links))
        number = len(self._topologies) - 1
        self._write_routes(number)
        return number

    def move(self, numbers: Iterable[int]) -> None:
        """Moves to exactly these prepared topologies, which have different servers; returns when
        all of their circuits are up.

        On failure it restores the plan's circuits; the error reports if that failed, too.
        """
        try:
            self._install(sorted(numbers))
        except BaseException as error:
            try:
                self.restore()
            except FabricError as second:
                error.add_note(f"the circuits of the plan are not back either: {second}")
            raise

    def restore(self) -> None:
        """Moves to the circuits and routes of the plan; does nothing if they are current."""
        self._install(())

    def _install(self, numbers: Sequence[int]) -> None:
        moved: dict[int, int] = {}  # server -> its topology
        links: list[Link] = []
        for number in numbers:
            topology = self._topologies[number]
            if both := topology.servers & moved.keys():
                raise FabricError(f"links: server {min(both)} is in two topologies")
            if number not in self._written:
                self._write_routes(number)
            moved |= dict.fromkeys(topology.servers, number)
            links += topology.links
        links += [
            link
            for link in self._plan.network.links
            if link.source not in moved and link.target not in moved
        ]
        self._routes.select(moved)
        self._configure(links)

    def events(self) -> socket.socket:
        """Readable when something may have changed at the switch's ports or circuits."""
        return self._watch.events()

    def lost(self, number: int) -> str:
        """The circuits of an installed topology that are down, as text; "" if none is."""
        dark = self._watch.dark(self._circuits(self._topologies[number].links))
        if not dark:
            return ""
        self._written.clear()  # the kernel removes the routes of a port that goes down
        self._routes.forget()
        names = ", ".join(str(circuit) for circuit in sorted(dark, key=circuit_order))
        return f"{self._switch.name}: lost the light on {names} while it was used"

    def close(self) -> None:
        """Closes the connections to the hosts and to the switch; circuits stay as they are.

        Another thread may use it afterwards: connections reopen on demand.
        """
        self._routes.close()
        self._switch.close()

    def _write_routes(self, number: int) -> None:
        topology = self._topologies[number]
        firsts = first_links(len(self._servers), topology.links)
        self._routes.write(number, {server: firsts[server] for server in sorted(topology.servers)})
        self._written.add(number)

    def _configure(self, links: Sequence[Link]) -> None:
        """A device that restarts during the change is read again, and changed once more."""
        circuits = self._circuits(links)
        try:
            configure(self._switch, circuits, self._fence, timeout_s=self._limit_s)
        except SwitchUnreachable:
            configure(self._switch, circuits, self._fence, timeout_s=self._limit_s)

    def _circuits(self, links: Sequence[Link]) -> list[Circuit]:
        return [
            Circuit(
                self._fibres[link.source, link.source_port][0],
                self._fibres[link.target, link.target_port][1],
            )
            for link in links
        ]
