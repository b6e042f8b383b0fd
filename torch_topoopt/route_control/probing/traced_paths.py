"""The paths of connections, traced from a host: packets that expire at each switch.

A packet with the addresses, protocol and ports of a connection takes the connection's path. The
switch at which its time to live ends reports it, from an address of its own. The network file maps
addresses to switches. In each round, packets live one switch longer, until they reach the target's
ToR, so that none gets to the target itself.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.probing.probed_flow import TCP, UDP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.route_control.network_file import NetworkFile
    from torch_topoopt.route_control.probing.probed_flow import ProbedFlow

    Path = tuple[str, ...]

_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_TCP_HEADER = struct.Struct("!HHIIBBHHH")
_UDP_HEADER = struct.Struct("!HHHH")
_SYN = 0x02
_TIME_EXCEEDED = 11
_AT_ONCE = 32  # packets per batch, since switches rate-limit their answers
_ATTEMPTS = 4


class PathTracer:
    """Traces from the host that this process is on; its `address` is the source of all packets.

    An answer may take `answer_s`; unanswered packets are sent again, a few times. Needs the right
    to open raw sockets (CAP_NET_RAW): raises FabricError without it. Use it in a `with`.
    """

    def __init__(self, network: NetworkFile, address: str, *, answer_s: float = 0.5) -> None:
        self._switches = {
            address: switch.name for switch in network.switches for address in switch.addresses
        }
        self._tor_of = {host.name: host.switch for host in network.hosts}
        self._address_of = {host.name: host.addresses[:1] for host in network.hosts}
        self._longest = len(network.switches)
        self._own = address
        self._answer_s = answer_s
        self._marks = itertools.cycle(range(1, 2**16))
        try:
            self._answers = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            self._packets = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        except PermissionError:
            raise FabricError(
                "probing: needs the right to open raw sockets (CAP_NET_RAW); start it as root, or "
                "with setcap cap_net_raw+ep on the interpreter"
            ) from None

    def __enter__(self) -> PathTracer:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._packets.close()

    def trace(self, flows: Sequence[ProbedFlow]) -> list[Path | None]:
        """The switches that each flow passes, from ToR to ToR; None where one does not answer.

        Raises FabricError for a target without an address, a protocol other than TCP and UDP, and
        an answer from an address that is not in the network file.
        """
        for flow in flows:
            if not self._address_of[flow.target]:
                raise FabricError(f"probing: the network file has no address of {flow.target}")
            if flow.protocol not in (TCP, UDP):
                raise FabricError(f"probing: protocol {flow.protocol} is neither 6 nor 17")
        paths: list[tuple[str, ...]] = [() for _ in flows]
        under_way = set(range(len(flows)))
        for hops in range(1, self._longest + 1):
            answered: set[int] = set()
            for _ in range(_ATTEMPTS):
                for number, switch in self._round(flows, sorted(under_way - answered), hops):
                    answered.add(number)
                    paths[number] = (*paths[number], switch)
                if answered == under_way:
                    break
            under_way = {i for i in answered if paths[i][-1] != self._tor_of[flows[i].target]}
            if not under_way:
                break
        return [
            path if path and path[-1] == self._tor_of[flow.target] else None
            for path, flow in zip(paths, flows, strict=True)
        ]

    def _round(
        self, flows: Sequence[ProbedFlow], numbers: Sequence[int], hops: int
    ) -> Iterator[tuple[int, str]]:
        """Sends packets with a lifetime of `hops` switches; returns where flows' ones ended."""
        for begin in range(0, len(numbers), _AT_ONCE):
            sent: dict[bytes, int] = {}
            for number in numbers[begin : begin + _AT_ONCE]:
                target = self._address_of[flows[number].target][0]
                packet = _packet(self._own, target, flows[number], hops, next(self._marks))
                sent[_recognised(packet)] = number
                self._packets.sendto(packet, (target, 0))
            deadline = time.monotonic() + self._answer_s
            while sent:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                    break
                answer = _expired(self._answers.recv(65535))
                if answer is not None and answer[1] in sent:
                    yield sent.pop(answer[1]), self._named(answer[0])

    def _named(self, address: str) -> str:
        if address not in self._switches:
            raise FabricError(
                f"probing: a switch answers as {address}, an address that no switch of the network "
                "file has"
            )
        return self._switches[address]


def _packet(source: str, target: str, flow: ProbedFlow, hops: int, mark: int) -> bytes:
    """With `mark` in its IP header, which the answer repeats."""
    ends = socket.inet_aton(source), socket.inet_aton(target)
    if flow.protocol == TCP:
        ports = flow.source_port, flow.target_port
        fields = (*ports, mark, 0, 5 << 4, _SYN, 1024)
        length = _TCP_HEADER.size
        plain = _TCP_HEADER.pack(*fields, 0, 0)
        body = _TCP_HEADER.pack(*fields, _checksum(_pseudo(ends, TCP, length) + plain), 0)
    else:
        length = _UDP_HEADER.size
        body = _UDP_HEADER.pack(flow.source_port, flow.target_port, length, 0)  # 0: no checksum
    header = _IPV4.pack(
        0x45, 0, _IPV4.size + length, mark, 0, hops, flow.protocol, 0, ends[0], ends[1]
    )
    return header + body  # the kernel fills in the header's checksum


def _pseudo(ends: tuple[bytes, bytes], protocol: int, length: int) -> bytes:
    return b"".join(ends) + struct.pack("!BBH", 0, protocol, length)


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _recognised(packet: bytes) -> bytes:
    """The fields that a switch keeps and sends back: mark, protocol, addresses and ports."""
    size = (packet[0] & 15) * 4
    return packet[4:6] + packet[9:10] + packet[12:20] + packet[size : size + 4]


def _expired(data: bytes) -> tuple[str, bytes] | None:
    """(answering address, fields of the expired packet) of an ICMP message about expiry, which may
    be forged."""
    size = (data[0] & 15) * 4 if data else 0
    inner = data[size + 8 :]
    if size < _IPV4.size or len(inner) < _IPV4.size or data[size] != _TIME_EXCEEDED:
        return None
    return socket.inet_ntoa(data[12:16]), _recognised(inner)
