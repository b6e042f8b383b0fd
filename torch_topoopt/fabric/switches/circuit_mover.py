"""Moves the circuits of a running job through a sequence of topologies, and back to the plan's.

A topology has the servers of one group. Several can be installed at the same time, on different
servers. Circuits of the plan stay between servers without a topology; others are dark.

Connections stay open. Every host has a routing table for each of its topologies
(netns/kernel_tables.py). So the packets of a connection between two servers of a topology, or
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

    def release(self) -> None:
        """Lets another thread go on."""
        ...


@dataclass(frozen=True)
class _Topology:
    servers: frozenset[int]
    links: tuple[Link, ...]


class RoutedCircuitMover:
    """Moves the circuits of `plan`, all of whose `ports` are on switches; one thread at a time.

    `switches` has the driver of each switch, and its watch, which notices lost circuits. All
    circuits of a topology must be up within `limit_s` seconds. Methods raise FabricError, the
    constructor for a switch of duplex circuits, too.
    """

    def __init__(
        self,
        plan: Plan,
        switches: Mapping[str, tuple[CircuitSwitch, LightWatch]],
        ports: Iterable[SwitchPort],
        routes: CircuitRoutes,
        *,
        limit_s: float,
    ) -> None:
        for name, (device, _) in switches.items():
            if device.capabilities().duplex:
                raise FabricError(
                    f"{name}: its circuits are duplex, and those that move in a job lead one way"
                )
        self._plan = plan
        self._switches = dict(switches)
        self._routes = routes
        self.limit_s = limit_s
        self._servers = range(plan.cluster.servers)
        self._ports = {(end.server, end.port): end for end in ports}
        self._switch_of = {port: end.switch for port, end in self._ports.items()}
        self._fibres = {
            port: self._switches[end.switch][0].fibres(end.socket)
            for port, end in self._ports.items()
        }
        moved_links(self._targets(), (), self._switch_of)  # raises for unequal servers
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
        before = like[-1] if like else self._plan.network.links
        links = moved_links(rows, before, self._switch_of)
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
        """Moves to the circuits and routes of the plan; does nothing if they are current.

        If a host does not answer, the others have the plan's routes, and the switches its circuits.
        """
        try:
            self._routes.select({})
        finally:
            self._configure(self._plan.network.links)

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

    def reached(self, numbers: Iterable[int]) -> dict[int, frozenset[int]]:
        """Of each server the ones that it exchanges messages with while exactly these topologies
        are installed, itself included."""
        found: dict[int, frozenset[int]] = {}
        for number in numbers:
            topology = self._topologies[number]
            firsts = first_links(len(self._servers), topology.links)
            for server in topology.servers:
                found[server] = frozenset({server, *firsts[server]})
        others = [server for server in self._servers if server not in found]
        routes = self._plan.network.heaviest_routes()
        lit = {pair for pair, visited in routes.items() if found.keys().isdisjoint(visited)}
        for server in others:
            both = {other for other in others if {(server, other), (other, server)} <= lit}
            found[server] = frozenset({server} | both)
        return found

    def events(self) -> socket.socket:
        """Readable when something may have changed at the ports or circuits of a switch.

        Where there are several switches, they are polled, and one watch wakes for all of them.
        """
        _, watch = next(iter(self._switches.values()))
        return watch.events()

    def lost(self, number: int) -> str:
        """The circuits of an installed topology that are down, as text; "" if none is."""
        lost = []
        for name, circuits in self._circuits(self._topologies[number].links).items():
            dark = self._switches[name][1].dark(circuits)
            names = ", ".join(str(circuit) for circuit in sorted(dark, key=circuit_order))
            lost += [f"{name}: lost the light on {names} while it was used"] if dark else []
        if lost:
            self._written.clear()  # the kernel removes the routes of a port that goes down
            self._routes.forget()
        return "; ".join(lost)

    def close(self) -> None:
        """Closes the connections to hosts and switches; circuits stay as they are.

        Another thread may use it afterwards: connections reopen on demand.
        """
        self._routes.release()
        for device, _ in self._switches.values():
            device.close()

    def _targets(self) -> list[list[int]]:
        """Those of the plan's ports."""
        rows = [[server] * self._plan.cluster.degree for server in self._servers]
        for link in self._plan.network.links:
            rows[link.source][link.source_port] = link.target
        return rows

    def _write_routes(self, number: int) -> None:
        topology = self._topologies[number]
        firsts = first_links(len(self._servers), topology.links)
        self._routes.write(number, {server: firsts[server] for server in sorted(topology.servers)})
        self._written.add(number)

    def _configure(self, links: Iterable[Link]) -> None:
        """A device that restarts during the change is read again, and changed once more."""
        for name, circuits in self._circuits(links).items():
            device, _ = self._switches[name]
            own = [port for port, end in self._ports.items() if end.switch == name]
            fence = Fence(frozenset(end for port in own for end in self._fibres[port]))
            try:
                configure(device, circuits, fence, timeout_s=self.limit_s)
            except SwitchUnreachable:
                configure(device, circuits, fence, timeout_s=self.limit_s)

    def _circuits(self, links: Iterable[Link]) -> dict[str, list[Circuit]]:
        """By switch."""
        circuits: dict[str, list[Circuit]] = {name: [] for name in self._switches}
        for link in links:
            near, far = (link.source, link.source_port), (link.target, link.target_port)
            circuits[self._switch_of[near]].append(
                Circuit(self._fibres[near][0], self._fibres[far][1])
            )
        return circuits
