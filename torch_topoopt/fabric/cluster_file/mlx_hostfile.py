"""Hostfiles of MLX (`mlx.launch`), read as cluster files.

Such a file lists hosts: the ssh name of each, and its addresses for the previous host in the ring.
`mlx.distributed_config` gives every cable a subnet with two addresses (/30). So each address
identifies its cable, and the address of the other end even if the file lacks it. Speeds are not in
the file.

With the backend jaccl, a host lists its RDMA device, or several, for each other host instead. These
identify the cables without their addresses.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from torch_topoopt.fabric.cluster_file.cluster_file import VERSION, ClusterFile
from torch_topoopt.fabric.cluster_file.entries import CableEnds, PortEntry, ServerEntry
from torch_topoopt.fabric.cluster_file.rdma_cables import ListedHost, cluster_of_devices
from torch_topoopt.fabric.cluster_file.strict_yaml import Fields, found, list_at, text_at
from torch_topoopt.plan.codec import DocumentError

_PREFIX_LENGTH = 30
_REMEDY = "find out how the hosts are connected with `topoopt discover --hostfile FILE`"

_End = tuple[int, ipaddress.IPv4Address]  # host, its address on the cable


class _HostfileEntry(NamedTuple):
    """An entry; `devices` are its RDMA devices for each host."""

    ssh: str
    ips: tuple[ipaddress.IPv4Address, ...]
    devices: tuple[tuple[str, ...], ...]


def is_hostfile(value: object) -> bool:
    """Whether a parsed file has the shape of a hostfile rather than of a cluster file."""
    return isinstance(value, list) or (
        isinstance(value, dict) and "hosts" in value and "servers" not in value
    )


def ssh_names(value: object) -> list[str]:
    """The ssh names of the hosts, in their order; raises DocumentError."""
    return [host.ssh for host in _hosts(value)]


def cluster_of_hostfile(value: object, name: str) -> ClusterFile:
    """The cluster of a hostfile; raises DocumentError if the cables are ambiguous."""
    hosts = _hosts(value)
    if len(hosts) < 2:
        raise DocumentError(f"hosts: {len(hosts)} host(s) have no cable")
    if any(any(host.devices) for host in hosts):
        listed = [ListedHost(h.ssh.rpartition("@")[2], h.ssh, h.devices) for h in hosts]
        return cluster_of_devices(name, listed)
    ports: list[list[PortEntry]] = [[] for _ in hosts]
    names = [host.ssh.rpartition("@")[2] for host in hosts]
    cables: list[CableEnds] = []
    for ends in _cables(hosts):
        cable = []
        for host, address in ends:
            port = f"p{len(ports[host])}"
            ports[host].append(PortEntry(port, f"{address}/{_PREFIX_LENGTH}"))
            cable.append(f"{names[host]}:{port}")
        cables.append((cable[0], cable[1]))
    servers = tuple(
        ServerEntry(host, host, ports=tuple(own)) for host, own in zip(names, ports, strict=True)
    )
    return ClusterFile(VERSION, name, servers, tuple(cables)).validate()


def _hosts(value: object) -> list[_HostfileEntry]:
    where = ""
    if isinstance(value, dict):  # with what to launch, which is not about the network
        fields = Fields(value, "", ("backend", "envs", "hosts"))
        value, where = fields.raw("hosts"), "hosts"
    return list(list_at(where, value, _host))


def _host(value: object, path: str) -> _HostfileEntry:
    fields = Fields(value, path, ("ssh", "ips", "rdma"))
    return _HostfileEntry(
        fields.text("ssh"), fields.list("ips", _address), fields.list("rdma", _devices)
    )


def _devices(value: object, path: str) -> tuple[str, ...]:
    """The RDMA devices for one host: none, one, or a list."""
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(text_at(f"{path}[{i}]", device) for i, device in enumerate(value))
    return (text_at(path, value),)


def _address(value: object, path: str) -> ipaddress.IPv4Address:
    try:
        return ipaddress.IPv4Address(text_at(path, value))
    except ipaddress.AddressValueError:
        raise DocumentError(f"{path}: {found(value)} is not an IPv4 address") from None


def _cables(hosts: list[_HostfileEntry]) -> list[tuple[_End, _End]]:
    """Both ends of every cable, in the order of the file."""
    by_subnet: dict[ipaddress.IPv4Network, list[_End]] = {}
    for host, (ssh, addresses, _) in enumerate(hosts):
        if not addresses:
            raise DocumentError(f"[{host}].ips: {ssh} has no address; {_REMEDY}")
        for i, address in enumerate(addresses):
            subnet = ipaddress.IPv4Network((address, _PREFIX_LENGTH), strict=False)
            if address not in subnet.hosts():
                raise DocumentError(
                    f"[{host}].ips[{i}]: {address} is no host's address in a subnet of one cable "
                    f"(/{_PREFIX_LENGTH}); {_REMEDY}"
                )
            by_subnet.setdefault(subnet, []).append((host, address))
    listed = 2 if len(hosts) == 2 else 1
    cables = []
    for subnet, ends in by_subnet.items():
        if len(ends) != listed or len({host for host, _ in ends}) != listed:
            named_ends = ", ".join(f"{address} of {hosts[host].ssh}" for host, address in ends)
            raise DocumentError(
                f"ips: subnet {subnet} has {named_ends}, but in a ring of {len(hosts)} hosts with "
                f"one subnet for each cable it would have {listed}; {_REMEDY}"
            )
        if listed == 1:
            host, address = ends[0]
            (other,) = (a for a in subnet.hosts() if a != address)
            ends = [((host - 1) % len(hosts), other), ends[0]]
        cables.append((ends[0], ends[1]))
    return cables
