"""The hosts of a cluster file while they forward for each other, and their routes.

Every launcher sets up its own host. Then server 0 writes and selects the routes of all hosts, by
commands to the other launchers.
"""

from __future__ import annotations

import json
import queue
import select
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.cluster.host_connections import (
    HostListener,
    Purpose,
    connect_to_leader,
)
from torch_topoopt.fabric.cluster.host_forwarding import HostForwarding, HostPort, ports_here
from torch_topoopt.fabric.cluster.placed_routes import (
    PlacedRoutes,
    port_addresses,
    server_address,
)
from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.fabric.netns.kernel_tables import CircuitRoute
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.meeting import broadcast, exchange, failure_broadcast, receive
from torch_topoopt.links.rank_links import job_secret
from torch_topoopt.links.wiring import ServerAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.netns.kernel_tables import KernelTables
    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.plan import Link, Plan

_PORTS, _WRITTEN = "forwarding ports", "forwarding routes"  # topics
_MEET_S = 60.0
_ANSWER_S = 30.0  # for a host to carry out one command
_END_S = 10.0
_LAST_WORDS = b"left"  # instead of an answer, which a killed launcher does not send


class ForwardingHosts:
    """This host, `server` of `file`, among the hosts of a job; all of them make one.

    `file` has cables for all links of `plan`; `address` is one at which others reach server 0. The
    plan's routes are there once this is made. Raises the same FabricError on all hosts if one
    cannot. On server 0, it also has the routes of moved circuits, for one thread at a time.
    """

    def __init__(
        self, plan: Plan, file: ClusterFile, server: int, meeting: Meeting, address: str
    ) -> None:
        self._server = server
        self._servers = range(len(file.servers))
        self._names = [
            f"{entry.name} (node rank {number}, {entry.management})"
            for number, entry in enumerate(file.servers)
        ]
        self._address = address
        # Called with the connection of each rank of another host, on server 0.
        self.on_requests: Callable[[socket.socket], None] = lambda connection: connection.close()
        self._arrived: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        self._commands: dict[int, _CommandedHost] = {}
        # Server -> topology; None after a failure: not known.
        self._selected: dict[int, int] | None = {}
        self._own: HostForwarding
        self._connection: socket.socket  # for commands, on other hosts
        self._stale = False  # whether the kernels may have dropped the plan's routes
        placed = place(plan, file)
        addresses = port_addresses(file, placed)
        secret = job_secret(meeting, server, time.monotonic() + _MEET_S)
        self._identity = Identity(secret, plan.digest()).derived("hosts")
        with ExitStack() as stack:
            claims = self._claims(addresses, meeting, stack)
            ports = {
                (number, int(port)): HostPort(**found)
                for number, claim in enumerate(claims)
                for port, found in claim["ports"].items()
            }
            self._routes = PlacedRoutes(plan, addresses, ports)
            self._port = int(claims[0]["listens"])
            if server == 0:
                with failure_broadcast(meeting, _WRITTEN):
                    self._lead(stack)
                broadcast(meeting, _WRITTEN, None)
            else:
                self._follow(stack)
                receive(meeting, _WRITTEN, time.monotonic() + _MEET_S)
            self._stack = stack.pop_all()

    def addresses(self) -> tuple[ServerAddress, ...]:
        """Those of all servers, for forwarded connections."""
        return tuple(ServerAddress(server, server_address(server)) for server in self._servers)

    def connect_requests(self) -> socket.socket:
        """On other hosts than server 0: a connection for the requests of one rank."""
        return self._connect(Purpose.REQUESTS)

    def gone(self) -> list[int]:
        """On server 0: the servers whose launchers have ended without close()."""
        return [server for server, host in self._commands.items() if host.has_died()]

    def close(self) -> None:
        """Undoes all changes of this host, and ends its connections."""
        self._stack.close()

    # ---- routes, on server 0 -------------------------------------------------------------------

    def write(self, number: int, firsts: Mapping[int, Mapping[int, Link]]) -> None:
        """Writes the table of a topology (fabric/switches/circuit_mover.py)."""
        self._command_each(
            {
                server: {"write": number, "routes": _words(self._routes.of_topology(server, links))}
                for server, links in firsts.items()
            }
        )

    def select(self, numbers: Mapping[int, int]) -> None:
        """Selects topologies by server, and the plan's routes on all others."""
        if self._stale:
            self._write_plan()
        before, self._selected = self._selected, None
        self._command_each(
            {
                server: {"select": numbers.get(server)}
                for server in self._servers
                if before is None or numbers.get(server) != before.get(server)
            }
        )
        self._selected = dict(numbers)

    def forget(self) -> None:
        """Ports may have been down: kernels have dropped their routes and neighbours."""
        self._stale = True

    def release(self) -> None:
        """Lets another thread go on with the routes."""
        self._own.tables.close()

    def _write_plan(self) -> None:
        commands = {}
        for server in self._servers:
            own, relayed = self._routes.of_plan(server)
            by_source = {source: _words(routes) for source, routes in relayed.items()}
            commands[server] = {"plan": _words(own), "relayed": by_source}
        self._command_each(commands)
        self._stale = False

    def _command_each(self, commands: Mapping[int, dict[str, Any]]) -> None:
        """Other hosts carry out their commands at the same time."""
        others = [server for server in commands if server != 0]
        for server in others:
            self._commands[server].send(commands[server])
        errors = []
        if 0 in commands:
            errors.append(_error_of(self._own.tables, commands[0], self._names[0]))
        errors += [self._commands[server].error() for server in others]
        if error := "; ".join(filter(None, errors)):
            raise FabricError(error)

    # ---- setting up ----------------------------------------------------------------------------

    def _claims(
        self, addresses: Mapping[tuple[int, int], str], meeting: Meeting, stack: ExitStack
    ) -> list[dict[str, Any]]:
        """The ports of all hosts, and where server 0 listens; this host is set up."""
        own = {port: address for (of, port), address in addresses.items() if of == self._server}
        claim: dict[str, Any] = {"error": "", "listens": 0}
        try:
            claim["ports"] = self._set_up(own, stack)
            if self._server == 0:
                others = {s: self._names[s] for s in self._servers if s != 0}
                listener = HostListener(self._identity, self._address, others, self._accept)
                stack.callback(listener.close)
                claim["listens"] = listener.port
        except FabricError as error:
            claim["error"] = f"relay: kernel: {self._names[self._server]}: {error}"
        claims = exchange(meeting, _PORTS, claim, self._servers, time.monotonic() + _MEET_S)
        if errors := [claim["error"] for claim in claims if claim["error"]]:
            raise FabricError("; ".join(errors))
        return claims

    def _set_up(self, own: Mapping[int, str], stack: ExitStack) -> dict[int, dict[str, str]]:
        found = ports_here(own.values())
        if missing := [address for address in own.values() if address not in found]:
            raise FabricError(f"this host has no address {missing[0]}, as the cluster file says")
        interfaces = dict.fromkeys(found[address].interface for address in own.values())
        self._own = HostForwarding(interfaces, server_address(self._server))
        stack.callback(self._own.close)
        return {port: asdict(found[address]) for port, address in own.items()}

    def _accept(self, server: int, purpose: Purpose, connection: socket.socket) -> None:
        if purpose is Purpose.REQUESTS:
            self.on_requests(connection)
        else:
            self._arrived.put((server, connection))

    def _lead(self, stack: ExitStack) -> None:
        deadline = time.monotonic() + _MEET_S
        while missing := [s for s in self._servers if s != 0 and s not in self._commands]:
            try:
                server, connection = self._arrived.get(
                    timeout=max(0.0, deadline - time.monotonic())
                )
            except queue.Empty:
                raise FabricError(f"{self._names[missing[0]]}: its launcher is late") from None
            stack.callback(connection.close)
            self._commands[server] = _CommandedHost(self._names[server], connection)
        self._write_plan()
        self.release()

    def _follow(self, stack: ExitStack) -> None:
        self._connection = connection = self._connect(Purpose.COMMANDS)
        carrier = threading.Thread(
            target=_carry_out,
            args=(self._own.tables, connection, self._names[self._server]),
            name="topoopt routes",
            daemon=True,
        )
        carrier.start()
        stack.callback(_end, carrier, connection)

    def _connect(self, purpose: Purpose) -> socket.socket:
        return connect_to_leader(self._identity, self._server, purpose, self._address, self._port)


class _CommandedHost:
    """The connection to another launcher, called `name`, that carries out commands in turn."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self._name = name
        self._connection = connection
        connection.settimeout(_ANSWER_S)
        self._received = b""
        self._gone = ""
        self._has_left = False

    def send(self, command: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(command).encode() + b"\n")
        except OSError as error:
            self._gone = self._gone or str(error.strerror or error)

    def error(self) -> str:
        """The answer to the last command; "" if it was carried out."""
        if not self._gone:
            try:
                if line := self._line():
                    self._has_left = line == _LAST_WORDS
                    return f"{self._name} has left" if self._has_left else str(json.loads(line))
                self._gone = "its launcher has ended"
            except OSError as error:
                self._gone = str(error.strerror or error)
        return f"{self._name} is gone: {self._gone}"

    def has_died(self) -> bool:
        """Whether the connection ended without the launcher's last words."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if self._has_left or self._received or not poll.poll(0):
            return False
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _line(self) -> bytes:
        """Empty at the end of the connection."""
        while b"\n" not in self._received:
            if not (data := self._connection.recv(1 << 16)):
                return b""
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line


def _carry_out(tables: KernelTables, connection: socket.socket, name: str) -> None:
    """Answers commands until the connection ends."""
    with suppress(OSError), connection.makefile("r", encoding="utf-8") as commands:
        connection.settimeout(None)
        for line in commands:
            answer = json.dumps(_error_of(tables, json.loads(line), name))
            connection.sendall(answer.encode() + b"\n")
    tables.close()


def _error_of(tables: KernelTables, command: dict[str, Any], name: str) -> str:
    """Carries out a command; the reason if that fails, else ""."""
    try:
        if "write" in command:
            tables.write(command["write"], _routes(command["routes"]))
        elif "select" in command:
            tables.select(command["select"])
        else:
            tables.forget_neighbours()
            relayed = {s: _routes(words) for s, words in command["relayed"].items()}
            tables.write_plan(_routes(command["plan"]), relayed)
    except FabricError as error:
        return f"{name}: {error}"
    return ""


def _end(carrier: threading.Thread, connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(_LAST_WORDS + b"\n")
        connection.shutdown(socket.SHUT_RDWR)
    carrier.join(_END_S)
    connection.close()


def _words(routes: list[CircuitRoute]) -> list[tuple[str | None, ...]]:
    return [astuple(route) for route in routes]


def _routes(words: list[list[Any]]) -> list[CircuitRoute]:
    return [CircuitRoute(*one) for one in words]
