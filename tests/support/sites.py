"""Facts of hosts that are well, to change one thing at a time; and hosts in namespaces to ask."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from support.limits import limit_s
from torch_topoopt.tools.doctor.facts import (
    Answer,
    CableProbe,
    FirewallFacts,
    HostFacts,
    InterfaceFacts,
    KernelFacts,
    Reach,
)
from torch_topoopt.tools.doctor.findings import Site
from torch_topoopt.tools.doctor.gather import gather

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fabric.real_hosts import Hosts
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000


def healthy(file: ClusterFile) -> Site:
    """Every host of `file`, as it should be."""
    return Site({server.name: _host(file, server.name) for server in file.servers}, file)


def changed(site: Site, server: str, **changes: object) -> Site:
    """The site with other facts of one host."""
    return Site({**site.facts, server: replace(site.facts[server], **changes)}, site.file)


def changed_interface(site: Site, server: str, name: str, **changes: object) -> Site:
    interfaces = tuple(
        replace(i, **changes) if i.name == name else i for i in site.facts[server].interfaces
    )
    return changed(site, server, interfaces=interfaces)


def _host(file: ClusterFile, name: str) -> HostFacts:
    entry = file.servers[file.server_number(name)]
    far = {a: b for cable in file.cables for a, b in (cable, cable[::-1])}
    cables = []
    for port in entry.ports:
        other = file.ports[far[f"{name}:{port.name}"]][1]
        answers = (Answer(other.ip, str(other.mac)),)
        cables.append(CableProbe(port.name, str(port.interface), answers, 1500, 1500))
    return HostFacts(
        version=1,
        server=name,
        hostname=name,
        root=True,
        interfaces=tuple(
            InterfaceFacts(
                name=str(port.interface),
                mac=port.mac,
                mtu=port.mtu or 1500,
                up=True,
                carrier=True,
                addresses=(port.address,),
                gbps=port.gbps,
                rp_filter=0,
                forwarding=True,
                arp_ignore=1,
                arp_announce=2,
                lro=False,
                tso=True,
                gro=True,
            )
            for port in entry.ports
        ),
        kernel=KernelFacts(10**9, 10**9, 10**9, 10**9, True, "cubic", ("performance",)),
        firewall=FirewallFacts(("nft",), False, ()),
        cables=tuple(cables),
        reached=tuple(
            Reach(server.name, port.ip, entry.ports[-1].ip, True)
            for server in file.servers
            if server.name != name
            for port in server.ports
        ),
    )


def in_namespace(name: str, work: Callable[[], T]) -> T:
    """Runs `work` in a thread that is in a network namespace, with all that it starts."""

    def enter() -> None:
        descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(descriptor, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(1, initializer=enter) as thread:
        return thread.submit(work).result(timeout=limit_s(60))


@dataclass(frozen=True)
class InNamespace:
    """A `torch_topoopt.tools.doctor.hosts.Host`."""

    hosts: Hosts
    number: int

    def facts(self, *, probing: bool) -> HostFacts:
        server = f"h{self.number}"
        return in_namespace(
            self.hosts.names[self.number],
            lambda: gather(self.hosts.file, server, probing=probing),
        )

    def shell(self, command: str) -> None:
        self.hosts.on(self.number, "sh", "-c", command)


def examine(hosts: Hosts, *only: int) -> Site:
    """The self-descriptions of the hosts (default: all), asked at once."""
    numbers = only or range(len(hosts.names))
    with ThreadPoolExecutor(len(numbers)) as workers:
        asked = {
            f"h{n}": workers.submit(InNamespace(hosts, n).facts, probing=True) for n in numbers
        }
        return Site({name: answer.result() for name, answer in asked.items()}, hosts.file)
