"""Cluster files of hosts that list an RDMA device for each other host, as JACCL and exo do.

Such a list has no addresses of cables, so every cable gets a subnet of its own: 10.201.0.0/30,
10.201.0.4/30, and so on.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.fabric.cluster_file.cluster_file import VERSION, ClusterFile
from torch_topoopt.fabric.cluster_file.entries import CableEnds, PortEntry, ServerEntry
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST_SUBNET = ipaddress.IPv4Address("10.201.0.0")
_SUBNET_SIZE = 4
_DEVICE_PREFIX = "rdma_"  # macOS: of the device of an interface


class ListedHost(NamedTuple):
    """`devices[i]` lead to host i, one for each cable."""

    name: str
    management: str
    devices: tuple[tuple[str, ...], ...]


def cluster_of_devices(name: str, hosts: Sequence[ListedHost]) -> ClusterFile:
    """The cluster of these hosts; raises DocumentError if the ends of cables do not match."""
    ports: list[list[PortEntry]] = [[] for _ in hosts]
    cables: list[CableEnds] = []
    for ends in _cables(hosts):
        subnet = _FIRST_SUBNET + _SUBNET_SIZE * len(cables)
        cable = []
        for side, (host, device) in enumerate(ends, start=1):
            port = device.removeprefix(_DEVICE_PREFIX)
            if port in (known.name for known in ports[host]):
                raise DocumentError(
                    f"rdma: {device} of {hosts[host].name} leads to several hosts, as behind a "
                    "switch; a cable has two ends"
                )
            interface = port if device.startswith(_DEVICE_PREFIX) else None
            ports[host].append(PortEntry(port, f"{subnet + side}/30", interface=interface))
            cable.append(f"{hosts[host].name}:{port}")
        cables.append((cable[0], cable[1]))
    servers = (
        ServerEntry(host.name, host.management.rpartition("@")[2], ports=tuple(own))
        for host, own in zip(hosts, ports, strict=True)
    )
    return ClusterFile(VERSION, name, tuple(servers), tuple(cables)).validate()


def _cables(hosts: Sequence[ListedHost]) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Both ends of every cable: host and device."""
    for a, host in enumerate(hosts):
        if len(host.devices) != len(hosts):
            raise DocumentError(
                f"[{a}].rdma: {len(host.devices)} entries of {host.name} for "
                f"{counted(len(hosts), 'host')}; null is for itself and for a host without a cable"
            )
    for a, one in enumerate(hosts):
        for b in range(a + 1, len(hosts)):
            there, back = one.devices[b], hosts[b].devices[a]
            if len(there) != len(back):
                raise DocumentError(
                    f"[{b}].rdma[{a}]: {counted(len(back), 'device')} of {hosts[b].name} for "
                    f"{one.name}, which has {counted(len(there), 'device')} for it"
                )
            yield from (((a, i), (b, j)) for i, j in zip(there, back, strict=True))
