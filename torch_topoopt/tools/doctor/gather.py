"""Gathers the facts of this host: reads the kernel, and probes the cables of a cluster file."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from torch_topoopt.links.addresses import (
    is_ipv6,
    is_routable,
    subnet_is_shared,
    without_zone,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.tools.doctor.facts import Answer, CableProbe, HostFacts, Reach
from torch_topoopt.tools.doctor.firewall import read_firewall
from torch_topoopt.tools.doctor.kernel import is_root, read_interfaces, read_kernel
from torch_topoopt.tools.doctor.probes import (
    Echo,
    answered_echoes,
    answered_sizes,
    arp_answers,
    echoing_hosts,
    source_towards,
)
from torch_topoopt.tools.doctor.rdma import read_rdma

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
    from torch_topoopt.tools.doctor.facts import InterfaceFacts

_SMALL_BYTES = 64
_SIZES_BYTES = (_SMALL_BYTES, 576, 1280, 1400, 1500, 2048, 4096, 8000, 9000)


def this_server(file: ClusterFile) -> str:
    """The server of `file` that this host is, by its addresses; raises FabricError."""
    interfaces = read_interfaces()
    here = {ip for interface in interfaces for ip in interface.ips} | {socket.gethostname()}
    macs = {interface.mac for interface in interfaces}
    found = [
        server.name
        for server in file.servers
        if server.management in here
        or any(port.ip in here or (port.mac and port.mac in macs) for port in server.ports)
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(found) or "none of its addresses is here"
    raise FabricError(
        f"it is unclear which server of cluster {file.name} this host is ({names}); name it: --host"
    )


def gather(file: ClusterFile | None, server: str, *, probing: bool = True) -> HostFacts:
    """The facts of this host, which is `server` of `file`. Without `probing`, sends nothing."""
    interfaces = read_interfaces()
    cables: tuple[CableProbe, ...] = ()
    claimed: tuple[Answer, ...] = ()
    reached: tuple[Reach, ...] = ()
    if probing:
        with ThreadPoolExecutor(3) as workers:
            doubled = workers.submit(_claimed, interfaces)
            if file is not None:
                entry = file.servers[file.server_number(server)]
                probed = workers.submit(_cables, file, entry, interfaces)
                others = workers.submit(_reached, file, entry)
                cables, reached = probed.result(), others.result()
            claimed = doubled.result()
    return HostFacts(
        version=HostFacts.VERSION,
        server=server,
        hostname=socket.gethostname(),
        root=is_root(),
        interfaces=interfaces,
        kernel=read_kernel(),
        firewall=read_firewall(),
        cables=cables,
        claimed=claimed,
        reached=reached,
        rdma=read_rdma([interface.name for interface in interfaces]),
    )


def find_port(port: PortEntry, interfaces: Sequence[InterfaceFacts]) -> InterfaceFacts | None:
    """The interface that a port of the file is: by name, else by MAC address, else by address."""
    for fits in (
        lambda i: i.name == port.interface,
        lambda i: port.mac is not None and i.mac == port.mac,
        lambda i: port.ip in i.ips,
    ):
        if found := next((i for i in interfaces if fits(i)), None):
            return found
    return None


def _claimed(interfaces: Sequence[InterfaceFacts]) -> tuple[Answer, ...]:
    asked = [i for i in interfaces if i.up and i.carrier and i.mac and i.ipv4]
    own = {i.mac for i in interfaces}
    found: list[Answer] = []
    if asked:
        with ThreadPoolExecutor(len(asked)) as workers:
            for answers in workers.map(lambda i: _ask(i, i.ipv4), asked):
                found += [answer for answer in answers or () if answer.mac not in own]
    return tuple(found)


def _ask(interface: InterfaceFacts, addresses: Sequence[str]) -> tuple[Answer, ...] | None:
    try:
        return arp_answers(interface.name, interface.mac or "", addresses)
    except OSError:
        return None  # not root, or no Ethernet


def _echoing(interface: InterfaceFacts, source: str) -> tuple[Answer, ...] | None:
    try:
        found = echoing_hosts(interface.name, source)
    except OSError:
        return None  # this user may not
    return tuple(Answer(address, "") for address in sorted(found))


def _cables(
    file: ClusterFile, entry: ServerEntry, interfaces: Sequence[InterfaceFacts]
) -> tuple[CableProbe, ...]:
    """One for each port that is up, cabled or not: a cable may be where the file has none."""
    far = {a: b for cable in file.cables for a, b in (cable, cable[::-1])}
    every = [port.ip for _, port in file.ports.values() if not is_ipv6(port.ip)]
    work = []
    for port in entry.ports:
        found = find_port(port, interfaces)
        if found is not None and found.up and found.carrier:
            work.append((port, found))

    def probe(one: tuple[PortEntry, InterfaceFacts]) -> CableProbe:
        port, interface = one
        ends = [f"{entry.name}:{port.name}"]
        ends += [far[ends[0]]] if ends[0] in far else []
        if is_ipv6(port.ip):
            source = port.ip if port.ip in interface.ips else _another_ipv6(port.ip, interface)
            answers = _echoing(interface, source)
        else:
            answers = _ask(interface, every)
        sent = back = 0
        if len(ends) == 2:
            # Where an end is one of several in its subnet, the answer to an echo takes any of them.
            by_arp = not is_ipv6(port.ip) and (
                any(map(file.shares_subnet, ends)) or subnet_is_shared(port.ip, interface.name)
            )
            sent, back = _largest(interface, file.ports[ends[1]][1].ip, by_arp=by_arp)
        return CableProbe(port.name, interface.name, answers, sent, back)

    if not work:
        return ()
    with ThreadPoolExecutor(len(work)) as workers:
        return tuple(workers.map(probe, work))


def _another_ipv6(ip: str, interface: InterfaceFacts) -> str:
    """An address that the interface has, where it does not have that of the file: of the same kind,
    if there is one; its neighbours answer that, too."""
    others = [own for own in interface.ips if is_ipv6(own)]
    return next((own for own in others if is_routable(own) is is_routable(ip)), ip)


def _largest(interface: InterfaceFacts, ip: str, *, by_arp: bool) -> tuple[int, int]:
    sizes = sorted({interface.mtu, *(s for s in _SIZES_BYTES if s < interface.mtu)})
    try:
        if by_arp:
            back = answered_sizes(interface.name, interface.mac or "", ip, sizes)
        else:
            echoes = [Echo(without_zone(ip), size) for size in sizes]
            back = {echo.size_bytes for echo in answered_echoes(echoes, interface.name)}
    except OSError:
        return 0, 0  # this user may not
    return sizes[-1], max(back, default=0)


def _reached(file: ClusterFile, entry: ServerEntry) -> tuple[Reach, ...]:
    others = [
        (server.name, port.ip)
        for server in file.servers
        if server.name != entry.name
        for port in server.ports
        if is_routable(port.ip)  # only what is at the other end of a cable reaches others
    ]
    if not others:
        return ()
    try:
        back = answered_echoes([Echo(ip, _SMALL_BYTES) for _, ip in others])
    except OSError:
        return ()
    return tuple(
        Reach(name, ip, source_towards(ip), Echo(ip, _SMALL_BYTES) in back) for name, ip in others
    )
