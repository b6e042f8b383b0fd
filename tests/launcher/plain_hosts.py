"""A foreign cluster: network namespaces as hosts, made with plain `ip` commands only.

Host i is a namespace with one interface `nicN` for each of its cables and `manage`, a port of the
management bridge. Hosts do not forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.launcher import forked

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from support.launcher import Launcher
    from support.plain_namespaces import Namespaces

TOKEN = "TOPOOPT_DISCOVER_TOKEN"


@dataclass
class Hosts:
    """Namespaces, their management addresses, and (host, interface, address) of cable ends."""

    namespaces: Namespaces
    managements: list[str] = field(default_factory=list)
    cables: list[list[tuple[int, str, str]]] = field(default_factory=list)
    bridge: str = ""

    @property
    def names(self) -> list[str]:
        return self.namespaces.names

    def cluster(self, *, gbps: float | None = None) -> ClusterFile:
        """The cluster file of what is plugged; port pK of a host is its K-th cable."""
        ports: list[list[PortEntry]] = [[] for _ in self.names]
        cables = []
        for cable in self.cables:
            ends = []
            for host, _, address in cable:
                name = f"p{len(ports[host])}"
                ports[host].append(PortEntry(name, address, gbps))
                ends.append(f"h{host}:{name}")
            cables.append((ends[0], ends[1]))
        servers = tuple(
            ServerEntry(f"h{host}", management, ports=tuple(ports[host]))
            for host, management in enumerate(self.managements)
        )
        return ClusterFile(1, "foreign", servers, tuple(cables)).validate()


def make_hosts(count: int, cables: Sequence[tuple[int, int]], hosts: Hosts) -> Hosts:
    """Fills in `hosts`."""
    hosts.bridge = hosts.namespaces.add_managed(count)
    network = hosts.namespaces.network
    hosts.managements = [f"{network}.0.{host + 1}" for host in range(count)]
    hosts.cables = hosts.namespaces.add_cables(cables, "nic")
    return hosts


def within(hosts: Hosts, host: int) -> tuple[str, ...]:
    return ("ip", "netns", "exec", hosts.names[host], *forked())


def start_agents(launcher: Launcher, hosts: Hosts, token: str) -> list[subprocess.Popen[str]]:
    """One agent on each host, all of them listening."""
    agents = [
        launcher.start("discover", "--agent", command=within(hosts, host), **{TOKEN: token})
        for host in range(len(hosts.names))
    ]
    for agent in agents:
        assert agent.stdout is not None
        assert "listening at 0.0.0.0:29501" in agent.stdout.readline()
    return agents
