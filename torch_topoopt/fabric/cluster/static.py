"""The fabric of fixed cables: finds each planned link on its cable and verifies it.

Every host runs its own driver. The drivers meet over the management network, open the plan's links
together, and agree on one result: either every link carries traffic over its own cable, or all
hosts fail with the same error.
"""

from __future__ import annotations

import json
import random
import secrets
import socket
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch_topoopt.fabric.cluster.static_check import (
    Senders,
    check_links,
    ends_of,
    outcome_of,
    verdict,
)
from torch_topoopt.fabric.cluster.static_plan import PortNames, place
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import exchange
from torch_topoopt.links.secret import fresh_secret
from torch_topoopt.links.sockets import listen
from torch_topoopt.links.wiring import PortAddress, Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry
    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.plan import Plan

_TCP_PORTS = range(20000, 30000)  # below the range that Linux gives to outgoing connections
_UDP_PORTS = range(20000, 30000)
_ATTEMPTS = 64
_MEET_S = 60.0  # for steps that take every host seconds
_LISTENING_S = 2.0  # for the other end of a cable to announce its name ten times


class Announcing(Protocol):
    """The ports of this host, announced to the other ends of their cables."""

    def wait(self, enough: Callable[[Senders], bool], deadline: float) -> Senders:
        """The senders, as soon as they are `enough` or at `deadline` (monotonic seconds)."""
        ...


class LocalHost(Protocol):
    """Facts of the machine that a driver runs on."""

    def interfaces(self) -> Mapping[str, str]:
        """Address -> interface, of all interfaces that are up."""
        ...

    def announce(
        self, token: str, udp_port: int, server: str, ports: Mapping[str, str]
    ) -> AbstractContextManager[Announcing]:
        """Announces the ports (port -> interface) of `server` to the other ends of their cables."""
        ...


@dataclass(frozen=True)
class _Session:
    """Server 0's values for all hosts: the token in announcements, and the secret (hexadecimal
    digits) that authenticates links."""

    token: str
    udp_port: int
    secret: str


class StaticFabric:
    """Driver of the fabric "static", for server number `server` of the cluster file.

    `timeout_s` bounds the verification of each link; `meeting` is where the hosts meet, with
    servers as ranks.
    """

    name = "static"

    def __init__(
        self,
        file: ClusterFile,
        server: int,
        meeting: Meeting,
        host: LocalHost,
        *,
        timeout_s: float = 5.0,
    ) -> None:
        self._file = file
        self._server = server
        self._meeting = meeting
        self._host = host
        self._timeout_s = timeout_s
        self._reservation: socket.socket | None = None

    def connect(self, plan: Plan) -> Wiring:
        """Opens this server's part of the plan's links, verifies them, and closes them again.

        The ranks open them again from the Wiring; the TCP port stays reserved. Raises the same
        FabricError on all hosts: for a planned cable that the cluster file lacks, an address that
        its host lacks, a missing host, or failed links, with the actual ends of their cables.
        """
        if self._reservation is not None:
            raise FabricError("static: this driver has wired a plan already; close() it first")
        placed = place(plan, self._file)
        try:
            return self._connect(plan, placed)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def _connect(self, plan: Plan, placed: PortNames) -> Wiring:
        session = self._meet_session()
        claim: dict[str, Any]
        with ExitStack() as stack:
            listeners: dict[tuple[int, int], socket.socket] = {}
            try:
                present = self._present_ports(placed)
                tcp_port = self._listen(placed, present, listeners, stack)
                announcing = stack.enter_context(
                    self._host.announce(session.token, session.udp_port, self._name, present)
                )
                claim = {"error": "", "tcp_port": tcp_port, "interfaces": present}
            except FabricError as error:
                claim = {"error": str(error)}
            claims = self._exchange("ports", claim)
            if errors := [claim["error"] for claim in claims if claim["error"]]:
                raise FabricError("; ".join(errors))
            wiring = self._wiring(plan, placed, claims)
            secret = bytes.fromhex(session.secret)
            failures = check_links(plan, wiring, self._server, listeners, secret, self._timeout_s)
            suspects = {placed[end] for link in failures for end in ends_of(link)}
            own = {end.partition(":")[2] for end in suspects if self._owns(end)}
            senders = announcing.wait(
                lambda so_far: all(so_far[port] for port in own),
                time.monotonic() + _LISTENING_S,
            )
            # announce this host's ports until all hosts have sent their outcomes
            outcomes = self._exchange("verified", outcome_of(failures, senders))
        if problem := verdict(self._file, plan, placed, outcomes):
            raise FabricError(problem)
        return wiring

    @property
    def _name(self) -> str:
        return self._file.servers[self._server].name

    def _owns(self, end: str) -> bool:
        return self._file.ports[end][0] == self._server

    def _meet_session(self) -> _Session:
        if self._server == 0:
            udp_port = random.choice(_UDP_PORTS)
            session = _Session(secrets.token_hex(8), udp_port, fresh_secret().hex())
            self._meeting.publish("session", json.dumps(asdict(session)))
        deadline = time.monotonic() + _MEET_S
        return _Session(**json.loads(self._meeting.collect("session", [0], deadline)[0]))

    def _exchange(self, topic: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Broadcasts `own`, returns every host's value; FabricError names one that is missing."""
        everyone = range(len(self._file.servers))
        return exchange(self._meeting, topic, own, everyone, time.monotonic() + _MEET_S)

    def _present_ports(self, placed: PortNames) -> dict[str, str]:
        """The ports of this server that are up -> their interfaces; all planned ones must be."""
        interfaces = self._host.interfaces()
        planned = {end for end in placed.values() if self._owns(end)}
        present = {}
        for port in self._file.servers[self._server].ports:
            interface = interfaces.get(port.ip)
            end = f"{self._name}:{port.name}"
            if interface is None:
                if end in planned:
                    raise FabricError(_absent(end, port, interfaces))
            elif port.interface not in (None, interface):
                raise FabricError(
                    f"{end} is {port.interface} in the cluster file, but {port.ip} is on "
                    f"{interface} of this host"
                )
            else:
                present[port.name] = interface
        return present

    def _listen(
        self,
        placed: PortNames,
        present: Mapping[str, str],
        listeners: dict[tuple[int, int], socket.socket],
        stack: ExitStack,
    ) -> int:
        """Listens at all planned ports of this server, and reserves their TCP port."""
        own = {port: end for port, end in placed.items() if self._owns(end)}
        refusal = "none of them was free"
        for tcp_port in random.sample(_TCP_PORTS, _ATTEMPTS):
            reservation = _reserve(tcp_port)
            if reservation is None:
                continue
            with ExitStack() as attempt:
                try:
                    for port, end in own.items():
                        address = self._file.ports[end][1].ip
                        interface = present[end.partition(":")[2]]
                        opened = listen(address, tcp_port, interface)
                        listeners[port] = attempt.enter_context(opened)
                except OSError as error:
                    refusal = f"{end} ({address}) TCP port {tcp_port}: {error.strerror}"
                    reservation.close()
                    continue
                self._reservation = reservation
                stack.enter_context(attempt.pop_all())
                return tcp_port
        raise FabricError(f"{self._name}: cannot listen at its ports; the last refusal: {refusal}")

    def _wiring(self, plan: Plan, placed: PortNames, claims: list[dict[str, Any]]) -> Wiring:
        ports = []
        for (server, port), end in sorted(placed.items()):
            entry = self._file.ports[end][1]
            ports.append(
                PortAddress(
                    server,
                    port,
                    entry.ip,
                    None,  # a cable limits itself
                    tcp_port=claims[server]["tcp_port"],
                    speed_gbps=entry.gbps,
                    interface=claims[server]["interfaces"][entry.name],
                )
            )
        wiring = Wiring(
            Wiring.VERSION, self.name, plan.digest(), claims[0]["tcp_port"], tuple(ports)
        )
        return wiring.validate().check(plan)


def _absent(end: str, port: PortEntry, interfaces: Mapping[str, str]) -> str:
    here = ", ".join(f"{address} on {name}" for address, name in interfaces.items())
    return (
        f"{end}: this host ({socket.gethostname()}) has no address {port.ip} on an interface that "
        f"is up, as the cluster file says; it has {here or 'none'}"
    )


def _reserve(tcp_port: int) -> socket.socket | None:
    """Reserves a TCP port until the socket is closed or this process ends; None if taken.

    The socket's name belongs to the addresses' network namespace, and vanishes with its owner.
    """
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0torch_topoopt/static/{tcp_port}")
    except OSError:
        reservation.close()
        return None
    return reservation
