"""The fabric of emulated servers on one Linux machine, without root.

Every port of every server has a loopback address of its own: 127.J.S.P+1 is port P of server S of
the job with block number J. A link is a TCP connection between two of those addresses, so
`ss -tn` shows the planned network and nothing else; its rate is limited by the kernel
(SO_MAX_PACING_RATE), which counts and delays the sender's packets as a NIC of that rate would.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from typing import TYPE_CHECKING

from torch_topoopt.links import sockets, verify_link
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, Wiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.plan import Link, Plan

MAX_SERVERS = 255
MAX_DEGREE = 254

_BLOCKS = 250  # second octets 2..251; other programs often use 127.0 and 127.1
_ATTEMPTS = 16
_TCP_PORTS = range(20000, 30000)  # below the range that Linux gives to outgoing connections


class LoopbackFabric:
    """Driver of the fabric "loopback".

    `gbps` is the rate of every link per direction (None: as fast as the machine is). `job` keeps
    jobs of the same plan apart (the launcher passes its process id). `timeout_s` bounds the
    verification of each link. `close()`, or the end of this process, frees the block of addresses.
    """

    name = "loopback"

    def __init__(self, *, job: int, gbps: float | None = None, timeout_s: float = 5.0) -> None:
        self._job = job
        self._gbps = gbps
        self._timeout_s = timeout_s
        self._reservation: socket.socket | None = None

    def connect(self, plan: Plan) -> Wiring:
        """Opens exactly the plan's links, verifies each from both ends, and closes them again.

        The ranks open them again from the Wiring; the block of addresses stays reserved.
        Raises FabricError naming the link, or the address that is in use.
        """
        if self._reservation is not None:
            raise FabricError("loopback: this driver has wired a plan already; close() it first")
        _check_size(plan)
        refusals = []
        for block, tcp_port in candidate_blocks(plan.digest(), self._job):
            reservation = _reserve(block)
            if reservation is None:
                refusals.append(f"127.{block}.0.0/16 belongs to another job")
                continue
            try:
                wiring = self._wire(plan, block, tcp_port)
            except _AddressInUse as error:
                reservation.close()
                refusals.append(str(error))
                continue
            except BaseException:
                reservation.close()
                raise
            self._reservation = reservation
            return wiring
        raise FabricError(
            f"loopback: no free block of addresses after {len(refusals)} attempts; the last: "
            f"{refusals[-1]}"
        )

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def _wire(self, plan: Plan, block: int, tcp_port: int) -> Wiring:
        ends = {(link.source, link.source_port) for link in plan.network.links}
        ends |= {(link.target, link.target_port) for link in plan.network.links}
        wiring = Wiring(
            version=Wiring.VERSION,
            fabric=self.name,
            plan_digest=plan.digest(),
            tcp_port=tcp_port,
            ports=tuple(
                PortAddress(server, port, f"127.{block}.{server}.{port + 1}", self._gbps)
                for server, port in sorted(ends)
            ),
        ).validate()
        listeners: dict[tuple[int, int], socket.socket] = {}
        try:
            for port in wiring.ports:
                listeners[port.server, port.port] = self._listen(port, tcp_port)
            for link in sockets.connections(plan):
                self._verify(link, wiring, listeners[link.target, link.target_port])
        finally:
            for listener in listeners.values():
                listener.close()
        return wiring.check(plan)

    def _listen(self, port: PortAddress, tcp_port: int) -> socket.socket:
        try:
            listener = sockets.listen(port.address, tcp_port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _AddressInUse(f"{port.address} port {tcp_port} is in use") from None
            raise FabricError(
                f"loopback: server {port.server} port {port.port} cannot listen on "
                f"{port.address}: {error.strerror}"
            ) from None
        return listener

    def _verify(self, link: Link, wiring: Wiring, listener: socket.socket) -> None:
        ports = wiring.by_port()
        near, far = ports[link.source, link.source_port], ports[link.target, link.target_port]
        verify_link.both_ways(
            link,
            wiring,
            listener,
            lambda: sockets.connect(near, far, wiring.tcp_port, self._timeout_s),
            self._timeout_s,
        )


class _AddressInUse(Exception):  # noqa: N818 - not an error yet: the next block is tried
    pass


def candidate_blocks(plan_digest: str, job: int) -> Iterator[tuple[int, int]]:
    """The (second octet, TCP port) pairs that a job tries, in order."""
    for attempt in range(_ATTEMPTS):
        digest = hashlib.sha256(f"{plan_digest}/{job}/{attempt}".encode()).digest()
        yield (
            2 + int.from_bytes(digest[:4]) % _BLOCKS,
            _TCP_PORTS[int.from_bytes(digest[4:8]) % len(_TCP_PORTS)],
        )


def _check_size(plan: Plan) -> None:
    if plan.cluster.servers > MAX_SERVERS:
        raise FabricError(
            f"servers: {plan.cluster.servers} is more than {MAX_SERVERS}, "
            "the most that the loopback fabric has addresses for"
        )
    if plan.cluster.degree > MAX_DEGREE:
        raise FabricError(
            f"degree: {plan.cluster.degree} is more than {MAX_DEGREE}, "
            "the most that the loopback fabric has addresses for"
        )


def _reserve(block: int) -> socket.socket | None:
    """Reserves a block until the socket is closed or this process ends; None if it is taken.

    An abstract Unix socket belongs to the loopback addresses' network namespace, has one owner, and
    vanishes with it, even after a kill.
    """
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0torch_topoopt/loopback/127.{block}")
    except OSError as error:
        reservation.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise FabricError(f"loopback: cannot reserve 127.{block}.0.0/16: {error}") from None
    return reservation
