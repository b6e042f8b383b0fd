"""The rules of a cluster file beyond the types of its fields: what is unique, exists and fits."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from torch_topoopt.fabric.ssh import check_host
from torch_topoopt.links.addresses import (
    PORT_ADDRESSES,
    is_link_local,
    parse_port_ip,
    share_subnet,
    zone_of,
)
from torch_topoopt.plan.codec import DocumentError, brief, brief_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.fabric.cluster_file.entries import ClusterEntries, PortEntry

_INTERFACE = re.compile(r"(?!-|\.\.?$)[!-~]{1,15}")  # and no "/" or ":", as in the kernel
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_MTU = range(68, 65536)  # RFC 791: what every IPv4 link can carry, and the most a packet can be


def check_cluster(cluster: ClusterEntries) -> None:
    """Raises DocumentError naming the first rule that is broken."""
    _check_name("name", cluster.name)
    if not cluster.servers:
        raise DocumentError("servers: a cluster has at least one server")
    names, addresses, macs = _Unique(), _Unique(), _Unique()
    managements: dict[str, tuple[str, str]] = {}
    for i, server in enumerate(cluster.servers):
        path = f"servers[{i}]"
        _check_name(f"{path}.name", server.name)
        names.add(server.name, f"{path}.name")
        _check_management(server.management, f"{path}.management")
        machine, first = managements.setdefault(server.management, (server.machine, path))
        if machine != server.machine:
            raise DocumentError(
                f"{path}.management: {brief(server.management)} is already {first}.management; "
                "servers of one machine say so with the same host"
            )
        if server.accelerators < 1:
            raise DocumentError(f"{path}.accelerators: {server.accelerators} is not at least 1")
        port_names = _Unique()
        for j, port in enumerate(server.ports):
            where = f"{path}.ports[{j}]"
            _check_port(port, where)
            port_names.add(port.name, f"{where}.name")
            # Link-local addresses are of one cable each: two hosts may have the same.
            own = f"{server.name} " if is_link_local(port.ip) else ""
            addresses.add(f"{own}{port.ip}", f"{where}.address")
            if port.mac:
                macs.add(port.mac, f"{where}.mac")
    plugged = dict(_check_cables(cluster))
    _check_switches(cluster, plugged)
    _check_mesh(cluster)


class _Unique:
    """Values that may occur once only, each with the path of its first occurrence."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, value: str, path: str) -> None:
        first = self._paths.setdefault(value, path)
        if first != path:
            raise DocumentError(f"{path}: {brief(value)} is already {first}")


def _check_name(path: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise DocumentError(
            f"{path}: {brief(name)} is not a name: at most 63 letters, digits, '.', '_' and '-', "
            "first a letter or digit"
        )


def _check_management(management: str, path: str) -> None:
    """It becomes part of commands: `doctor` and the queue reach hosts by it."""
    try:
        check_host(management)
    except ValueError as error:
        raise DocumentError(f"{path}: {error}") from None


def _check_port(port: PortEntry, path: str) -> None:
    _check_name(f"{path}.name", port.name)
    if is_link_local(port.address):
        _check_link_local(port, path)
    else:
        _check_routable(port, path)
    name = port.interface
    if name is not None and (not _INTERFACE.fullmatch(name) or "/" in name or ":" in name):
        raise DocumentError(
            f"{path}.interface: {brief(name)} is not the name of an interface: at most 15 "
            "characters without spaces, '/' and ':', first no '-'"
        )
    if port.gbps is not None and not port.gbps > 0:
        raise DocumentError(f"{path}.bandwidth: {port.gbps} Gb/s is not greater than 0")
    if port.mac is not None and not _MAC.fullmatch(port.mac):
        raise DocumentError(
            f"{path}.mac: {brief(port.mac)} is not an address such as 02:00:5e:10:00:01"
        )
    if port.mtu is not None and port.mtu not in _MTU:
        raise DocumentError(f"{path}.mtu: {port.mtu} is not in {_MTU[0]}..{_MTU[-1]}")


def _check_routable(port: PortEntry, path: str) -> None:
    try:
        address = ipaddress.ip_interface(port.address)
        parse_port_ip(port.ip)
    except ValueError:
        address = None
    if address is None or "/" not in port.address:
        raise _no_address(port, path)
    network = address.network
    if isinstance(network, ipaddress.IPv6Network):
        return  # its first address is for routers, which there may be none of, and it has no last
    if network.prefixlen < 31 and address.ip in (
        network.network_address,
        network.broadcast_address,
    ):
        raise DocumentError(
            f"{path}.address: {port.address} is the network or broadcast address of its subnet"
        )


def _no_address(port: PortEntry, path: str) -> DocumentError:
    return DocumentError(
        f"{path}.address: {brief(port.address)} is not an address with its prefix length, such as "
        f"10.201.0.1/30 or fd00:201::1/64 ({PORT_ADDRESSES})"
    )


def _check_link_local(port: PortEntry, path: str) -> None:
    try:
        parse_port_ip(port.ip)
        # IPv6Interface does not take a zone with a prefix length everywhere
        ipaddress.IPv6Interface(port.address.replace(f"%{zone_of(port.address)}", ""))
    except ValueError:
        raise _no_address(port, path) from None
    zone = zone_of(port.address)
    if port.interface not in (None, zone):
        raise DocumentError(
            f"{path}.interface: {brief(str(port.interface))} is not {brief(str(zone))}, the "
            "interface of its address"
        )
    if port.switch is not None:
        raise DocumentError(
            f"{path}.address: {brief(port.address)} is of one cable; ports of a circuit switch "
            "need addresses of a subnet, such as 10.201.0.1/24"
        )


def _check_cables(cluster: ClusterEntries) -> Iterator[tuple[str, str]]:
    """The ends of all cables, each with the path where it is."""
    used = _Unique()
    for i, cable in enumerate(cluster.cables):
        path = f"cables[{i}]"
        for j, end in enumerate(cable):
            _find_port(cluster, end, f"{path}[{j}]")
            used.add(end, f"{path}[{j}]")
            yield end, f"{path}[{j}]"
        (a_server, a), (b_server, b) = (cluster.ports[end] for end in cable)
        if a_server == b_server:
            raise DocumentError(f"{path}: both ends are ports of {cluster.servers[a_server].name}")
        if not share_subnet(a.address, b.address):
            raise DocumentError(
                f"{path}: {cable[0]} ({a.address}) and {cable[1]} ({b.address}) are not in one "
                "subnet, so they cannot talk over their cable"
            )


def _find_port(cluster: ClusterEntries, end: str, path: str) -> None:
    if end in cluster.ports:
        return
    server, colon, _ = end.partition(":")
    if not colon:
        raise DocumentError(f"{path}: {brief(end)} is not a port; write server:port, such as h0:p0")
    for entry in cluster.servers:
        if entry.name == server:
            known = brief_list([port.name for port in entry.ports])
            raise DocumentError(
                f"{path}: {brief(end)}: {server} has no such port (it has: {known})"
            )
    raise DocumentError(f"{path}: {brief(end)}: there is no server {brief(server)}")


def _check_switches(cluster: ClusterEntries, plugged: dict[str, str]) -> None:
    """`plugged`: ports that are in a cable, each with the path where it is."""
    names, used = _Unique(), _Unique()
    sockets: dict[str, tuple[str, ...]] = {}
    for i, switch in enumerate(cluster.switches):
        _check_name(f"switches[{i}].name", switch.name)
        names.add(switch.name, f"switches[{i}].name")
        own = _Unique()
        for j, socket in enumerate(switch.sockets):
            own.add(socket, f"switches[{i}].sockets[{j}]")
        sockets[switch.name] = switch.sockets
    if cluster.selector is not None:
        cluster.selector.validate()
    for i, server in enumerate(cluster.servers):
        for j, port in enumerate(server.ports):
            where = f"servers[{i}].ports[{j}]"
            for path, plug in (
                (f"{where}.switch", port.switch),
                (f"{where}.lookahead", port.lookahead),
            ):
                if plug is None:
                    continue
                _check_socket(plug, sockets, path)
                used.add(plug, path)
                if cable := plugged.get(f"{server.name}:{port.name}"):
                    raise DocumentError(f"{path}: {brief(plug)}, but the port is already {cable}")
            if port.lookahead is not None:
                _check_lookahead(cluster, port, f"{where}.lookahead")


def _check_mesh(cluster: ClusterEntries) -> None:
    mesh = cluster.hammingmesh
    if mesh is None:
        return
    if mesh.boards_per_leaf < 1:
        raise DocumentError(f"hammingmesh.boards_per_leaf: {mesh.boards_per_leaf} is not 1 or more")
    if mesh.servers != len(cluster.servers):
        (x, y), (a, b) = mesh.boards, mesh.board
        raise DocumentError(
            f"hammingmesh: {x}x{y} boards of {a}x{b} are {mesh.servers} servers, and the file has "
            f"{len(cluster.servers)}"
        )
    for name in ("cables", "switches", "selector"):
        if getattr(cluster, name):
            raise DocumentError(
                f"{name}: ports of a HammingMesh are on its boards and trees; leave out one of "
                f"{name} and hammingmesh"
            )
    for i, server in enumerate(cluster.servers):
        if not server.ports:
            raise DocumentError(f"servers[{i}].ports: a server of a HammingMesh has some")


def _check_socket(plug: str, sockets: dict[str, tuple[str, ...]], path: str) -> None:
    name, _, socket = plug.partition(":")
    if name not in sockets:
        raise DocumentError(f"{path}: {brief(plug)}: there is no switch {brief(name)}")
    if socket not in sockets[name]:
        raise DocumentError(
            f"{path}: {brief(plug)}: {brief(socket)} is not in the sockets of {name} (these are: "
            f"{brief_list(sockets[name])})"
        )


def _check_lookahead(cluster: ClusterEntries, port: PortEntry, path: str) -> None:
    if port.switch is None:
        raise DocumentError(
            f"{path}: {brief(port.lookahead)} without a switch; it is the second socket"
        )
    if cluster.selector is None:
        raise DocumentError(
            f"{path}: {brief(port.lookahead)}: something has to flip the 1x2 switch of this port; "
            "add selector: {kind: command, program: [...]} to the file"
        )
