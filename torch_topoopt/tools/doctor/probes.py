"""Probes the other end of a cable: ARP, IPv6 echoes to all nodes, and unfragmented echoes.

The other hosts' kernels answer, so nothing has to run there. ARP needs root. Its requests carry no
address of the sender (RFC 5227), so that no host learns anything from them.

A kernel routes the answer to an IPv4 echo, so with several ports in one subnet it may use another
port. It answers ARP and IPv6 echoes on the port of the request.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.links.addresses import family_of, is_ipv6, without_zone
from torch_topoopt.tools.doctor.facts import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WAIT_S = 0.5  # for an answer; a neighbour takes a millisecond, a relay some
_ROUNDS = 3
_TOO_LATE_S = 5.0  # while other packets keep arriving

_ETH_P_ARP = 0x0806
_ETHERNET_HEADER_BYTES = 14
_ARP = struct.Struct("!6s6sHHHBBH6s4s6s4s")
_REQUEST, _REPLY = 1, 2
_EVERYBODY = b"\xff" * 6

# <linux/in.h>, <linux/icmp.h>
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_ECHO_REPLY, _ECHO = 0, 8
# <linux/in6.h>, <linux/icmpv6.h>
_IPV6_MTU_DISCOVER, _IPV6_PMTUDISC_PROBE = 23, 3
_ECHO_REPLY6, _ECHO6 = 129, 128
_ALL_NODES = "ff02::1"
_HEADER = struct.Struct("!BBHHH")
_OVERHEAD, _OVERHEAD6 = 28, 48  # of IPv4 or IPv6, and ICMP


def arp_answers(interface: str, mac: str, addresses: Sequence[str]) -> tuple[Answer, ...]:
    """All hosts on the cable (or segment) of `interface` that claim one of `addresses`.

    Raises OSError without root, or if the interface is gone.
    """
    own = bytes.fromhex(mac.replace(":", ""))
    found: dict[Answer, None] = {}
    wanted = {socket.inet_aton(address): address for address in addresses}
    # protocol 0 at first: otherwise packets of all interfaces arrive until the bind
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as line:
        line.bind((interface, _ETH_P_ARP))
        for _ in range(_ROUNDS):
            for target in wanted:
                line.send(_request(own, target))
            for _ in _until(line, time.monotonic() + WAIT_S / _ROUNDS):
                frame = line.recv(1 << 16)
                if len(frame) < _ARP.size:
                    continue
                _, _, kind, _, _, _, _, operation, sender, ip, _, _ = _ARP.unpack_from(frame)
                if kind == _ETH_P_ARP and operation == _REPLY and ip in wanted and sender != own:
                    found[Answer(wanted[ip], sender.hex(":"))] = None
    return tuple(sorted(found, key=lambda answer: (answer.address, answer.mac)))


def answered_sizes(interface: str, mac: str, address: str, sizes_bytes: Iterable[int]) -> set[int]:
    """The sizes of unfragmented packets that reach `address` at the other end of a cable.

    They are ARP requests with padding. Raises OSError without root, or if the interface is gone.
    """
    own, target = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address)
    answered = set()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as line:
        line.bind((interface, _ETH_P_ARP))
        for size in sorted(sizes_bytes):
            for _ in range(_ROUNDS):
                with contextlib.suppress(OSError):  # larger than the interface takes
                    line.send(_request(own, target).ljust(_ETHERNET_HEADER_BYTES + size, b"\0"))
                if _is_answered(line, own, target):
                    answered.add(size)
                    break
            else:
                return answered  # larger ones do not get there either
    return answered


def _is_answered(line: socket.socket, own: bytes, target: bytes) -> bool:
    for _ in _until(line, time.monotonic() + WAIT_S / _ROUNDS):
        frame = line.recv(1 << 16)
        if len(frame) >= _ARP.size:
            _, _, kind, _, _, _, _, operation, sender, ip, _, _ = _ARP.unpack_from(frame)
            if kind == _ETH_P_ARP and operation == _REPLY and ip == target and sender != own:
                return True
    return False


def _request(own: bytes, target: bytes) -> bytes:
    return _ARP.pack(
        *(_EVERYBODY, own, _ETH_P_ARP, 1, 0x0800, 6, 4, _REQUEST),
        *(own, bytes(4), bytes(6), target),
    )


def _until(line: socket.socket, deadline: float) -> Iterator[None]:
    """Yields when packets have arrived; those waiting at the deadline still count."""
    while True:
        left = deadline - time.monotonic()
        if left < -_TOO_LATE_S or not select.select([line], [], [], max(0.0, left))[0]:
            return
        yield


@dataclass(frozen=True)
class Echo:
    """A packet of `size_bytes` in all to `address`."""

    address: str
    size_bytes: int


def answered_echoes(echoes: Iterable[Echo], interface: str | None = None) -> set[Echo]:
    """The echoes that came back whole. `interface` forces the way.

    Link-local addresses are without zone, and need `interface`. Raises OSError where this user may
    not send echoes.
    """
    every = list(dict.fromkeys(echoes))
    return {
        echo
        for ipv6 in (False, True)
        if (chosen := [echo for echo in every if is_ipv6(echo.address) is ipv6])
        for echo in _answered(chosen, interface, ipv6=ipv6)
    }


def _answered(echoes: Sequence[Echo], interface: str | None, *, ipv6: bool) -> set[Echo]:
    """`answered_echoes` of one family."""
    missing = dict(enumerate(echoes))
    answered: set[Echo] = set()
    with _echo_socket(ipv6, interface) as line:
        mark = os.urandom(2)
        for _ in range(_ROUNDS):
            for number, echo in missing.items():
                with contextlib.suppress(OSError):  # no route, or larger than the interface takes
                    line.sendto(
                        _echo(mark, number, echo.size_bytes, ipv6=ipv6), _to(echo, interface)
                    )
            for _ in _until(line, time.monotonic() + WAIT_S):
                came, size = _read(*line.recvfrom(1 << 16), line, mark, missing)
                if came is not None and missing[came].size_bytes == size:
                    answered.add(missing.pop(came))
                if not missing:
                    return answered
    return answered


def echoing_hosts(interface: str, source: str) -> set[str]:
    """The IPv6 addresses, without zone, of hosts on an interface's cable (or segment) that answer
    an echo to all nodes; of the kind of `source`, the interface's own address.

    Raises OSError where this user may not send it, or the interface does not have that address.
    """
    found: set[str] = set()
    with _echo_socket(True, interface) as line:
        line.bind((without_zone(source), 0, 0, socket.if_nametoindex(interface)))
        mark = os.urandom(2)
        everybody = Echo(_ALL_NODES, 64)
        for _ in range(_ROUNDS):
            line.sendto(_echo(mark, 0, 64, ipv6=True), _to(everybody, interface))
            for _ in _until(line, time.monotonic() + WAIT_S / _ROUNDS):
                packet, sender = line.recvfrom(1 << 16)
                if packet[:1] == bytes([_ECHO_REPLY6]) and packet[8:10] == mark:
                    found.add(str(sender[0]).partition("%")[0])
    return found


def _to(echo: Echo, interface: str | None) -> tuple[object, ...]:
    if not is_ipv6(echo.address):
        return echo.address, 0
    return echo.address, 0, 0, socket.if_nametoindex(interface) if interface else 0


def _echo_socket(ipv6: bool, interface: str | None) -> socket.socket:
    """A socket without fragmentation: raw as root, else an unprivileged ping socket."""
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    protocol = socket.IPPROTO_ICMPV6 if ipv6 else socket.IPPROTO_ICMP
    try:
        line = socket.socket(family, socket.SOCK_RAW, protocol)
    except PermissionError:
        line = socket.socket(family, socket.SOCK_DGRAM, protocol)
    try:
        if ipv6:
            line.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _IPV6_PMTUDISC_PROBE)
            line.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        else:
            line.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        if interface is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except BaseException:
        line.close()
        raise
    return line


def _echo(mark: bytes, number: int, size_bytes: int, *, ipv6: bool) -> bytes:
    overhead = _OVERHEAD6 if ipv6 else _OVERHEAD
    payload = (mark * size_bytes)[: max(2, size_bytes - overhead)]
    identity = int.from_bytes(mark, "big")
    if ipv6:  # the kernel fills in the checksum, which covers addresses
        return _HEADER.pack(_ECHO6, 0, 0, identity, number) + payload
    checksum = _checksum(_HEADER.pack(_ECHO, 0, 0, identity, number) + payload)
    return _HEADER.pack(_ECHO, 0, checksum, identity, number) + payload


def _read(
    packet: bytes,
    sender: tuple[str, int],
    line: socket.socket,
    mark: bytes,
    missing: dict[int, Echo],
) -> tuple[int | None, int]:
    """The number and size of an answer to one of ours."""
    ipv6 = line.family == socket.AF_INET6
    if line.type & 0xF == socket.SOCK_RAW and not ipv6:  # IPv6 gives no header
        packet = packet[(packet[0] & 0xF) * 4 :]
    if len(packet) < _HEADER.size + 2:
        return None, 0
    what, _, _, _, number = _HEADER.unpack_from(packet)
    ours = packet[_HEADER.size : _HEADER.size + 2] == mark
    if what != (_ECHO_REPLY6 if ipv6 else _ECHO_REPLY) or not ours or number not in missing:
        return None, 0
    if missing[number].address != sender[0].partition("%")[0]:
        return None, 0
    return number, len(packet) + (40 if ipv6 else 20)


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def source_towards(address: str) -> str | None:
    """The own address from which packets to `address` would go; None where there is no route."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as line:
        try:
            line.connect((address, 9))
        except OSError:
            return None
        return str(line.getsockname()[0])
