"""Moves the circuits of a running job through a sequence of topologies, and back to the plan's.

A topology has the servers of one group. Several can be installed at the same time, on different
servers. Circuits of the plan stay between servers without a topology; others are dark.

Connections stay open. Every host has a routing table for each of its topologies, written in
advance, with fixed neighbour entries. Routes name ports by addresses that no interface has. One
rule per host selects the current topology's table. So the packets of a connection between two
servers of a topology, or between ports of the plan's cables, use their circuit, or else the
shortest path; acknowledgements follow their own shortest path back.

The switch may be any driver with one circuit for each direction. Another device than the emulated
switch must steer the light between the hosts' ports (tests/backend/links/test_moving_switches.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.layout import port_interface, socket_name
from torch_topoopt.fabric.netns.routes import chosen_routes
from torch_topoopt.fabric.switches.circuits import Circuit, Fence, circuit_order
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.moved_links import first_links, moved_links
from torch_topoopt.fabric.switches.switch import SwitchUnreachable
from torch_topoopt.links import sockets as fabric_links
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.fabric.switches.light_watch import LightWatch
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.plan import Link, Plan

_TABLE = 2000  # of the first topology
_MOST_RETRANSMISSION_MS = 1000  # the least that Linux allows
_PRIORITY = 500  # of the rule: before those of relays and of the plan's routes


def retransmit_soon() -> None:
    """Limits the time between retransmissions of connections that are opened afterwards.

    While circuits of a group move, packets to other servers are lost. TCP would double the time
    after each loss, and wait on when the circuits are back.
    """
    ipv4 = Path("/proc/sys/net/ipv4")
    (ipv4 / "tcp_thin_linear_timeouts").write_text("1")
    with contextlib.suppress(FileNotFoundError):  # Linux before 6.15
        (ipv4 / "tcp_rto_max_ms").write_text(str(_MOST_RETRANSMISSION_MS))


@dataclass(frozen=True)
class _Topology:
    servers: frozenset[int]
    links: tuple[Link, ...]


class NetnsCircuitMover:
    """Moves the circuits of `plan`, which is wired through `switch`; one thread at a time.

    `watch` notices those that are lost. All circuits of a topology must be up within `limit_s`
    seconds. Methods raise FabricError, the constructor for a switch of duplex circuits, too.
    """

    def __init__(
        self,
        plan: Plan,
        layout: NetnsLayout,
        switch: CircuitSwitch,
        watch: LightWatch,
        *,
        limit_s: float,
    ) -> None:
        if switch.capabilities().duplex:
            raise FabricError(
                f"{switch.name}: its circuits are duplex, and those that move in a job lead one way"
            )
        self._plan = plan
        self._layout = layout
        self._switch = switch
        self._watch = watch
        self._limit_s = limit_s
        self._servers = range(plan.cluster.servers)
        degree = plan.cluster.degree
        self._fibres = {
            (server, port): switch.fibres(socket_name(server, port, degree))
            for server in self._servers
            for port in range(degree)
        }
        self._fence = Fence(frozenset(end for ends in self._fibres.values() for end in ends))
        self._addresses = layout.port_addresses(fabric_links.connections(plan))
        self._topologies: list[_Topology] = []
        self._written: set[int] = set()  # topologies whose routes the hosts have
        self._named: set[Link] = set()  # whose far ends the hosts have neighbour entries for
        self._selected: dict[int, int] = {}  # server -> the topology whose rule is set there
        for server in self._servers:
            netns_kernel.inside(layout.namespace(server), retransmit_soon)
        self._opened = contextlib.ExitStack()
        self._hosts: dict[int, Any] = {}  # server -> an IPRoute in its namespace

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
        self._select(moved)
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
        routes = chosen_routes(self._plan)
        lit = {pair for pair, visited in routes.items() if found.keys().isdisjoint(visited)}
        for server in others:
            both = {other for other in others if {(server, other), (other, server)} <= lit}
            found[server] = frozenset({server} | both)
        return found

    def events(self) -> socket.socket:
        """Readable when something may have changed at the switch's ports or circuits."""
        return self._watch.events()

    def lost(self, number: int) -> str:
        """The circuits of an installed topology that are down, as text; "" if none is."""
        dark = self._watch.dark(self._circuits(self._topologies[number].links))
        if not dark:
            return ""
        self._written.clear()  # the kernel removes the routes of a port that goes down
        self._named.clear()
        names = ", ".join(str(circuit) for circuit in sorted(dark, key=circuit_order))
        return f"{self._switch.name}: lost the light on {names} while it was used"

    def close(self) -> None:
        """Closes its connections to the kernel, and the switch's; circuits stay as they are.

        Another thread may use it afterwards: connections reopen on demand.
        """
        self._opened.close()
        self._hosts.clear()
        self._switch.close()

    @contextlib.contextmanager
    def _host(self, server: int) -> Iterator[Any]:
        """An IPRoute in a server's namespace; turns errors of the kernel into FabricError."""
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            if server not in self._hosts:
                opened = netns_kernel.open_route(self._layout.namespace(server))
                self._hosts[server] = self._opened.enter_context(opened)
            yield self._hosts[server]
        except (NetlinkError, OSError) as error:
            raise FabricError(f"netns: server {server}: {error}") from None

    def _write_routes(self, number: int) -> None:
        topology = self._topologies[number]
        firsts = first_links(len(self._servers), topology.links)
        for server in sorted(topology.servers):
            with self._host(server) as route:
                self._write(route, server, firsts[server], _TABLE + number)
        self._written.add(number)

    def _write(self, route: Any, server: int, firsts: dict[int, Link], table: int) -> None:
        ports = {
            port: route.link_lookup(ifname=port_interface(port))[0]
            for port in {link.source_port for link in firsts.values()}
        }
        layout = self._layout
        for other, link in firsts.items():
            far = layout.circuit_address(link.target, link.target_port)
            index = ports[link.source_port]
            if link not in self._named:
                self._named.add(link)
                mac = layout.port_mac(link.target, link.target_port)
                route.neigh(
                    "replace", dst=far, lladdr=mac, ifindex=index, state=netns_kernel.NUD_PERMANENT
                )
            entry: dict[str, Any] = {
                "table": table,
                "gateway": far,
                "oif": index,
                "flags": ["onlink"],
            }
            address = layout.server_address(other)
            own = layout.server_address(server)
            route.route("replace", dst=f"{address}/32", prefsrc=own, **entry)
            for (of, _), address in self._addresses.items():
                if of == other:
                    route.route("replace", dst=f"{address}/32", **entry)

    def _select(self, numbers: Mapping[int, int]) -> None:
        """Selects a topology's table for some servers, and the plan's for all others: adds the new
        rule first, so that there is always a route."""
        for server in self._servers:
            number, before = numbers.get(server), self._selected.get(server)
            if before == number:
                continue
            with self._host(server) as route:
                if number is not None:
                    route.rule("add", table=_TABLE + number, priority=_PRIORITY)
                    self._selected[server] = number
                if before is not None:
                    route.rule("del", table=_TABLE + before, priority=_PRIORITY)
                if number is None:
                    del self._selected[server]

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
