"""A foreign cluster: network namespaces as hosts, made with plain `ip` commands only.

Host i is a namespace with one interface `nicN` for each of its cables and `manage`, a port of the
management bridge. Hosts do not forward.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from conftest import COMMAND

from torch_topoopt.fabric.cluster.cluster_file import ClusterFile, PortEntry, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Launcher

TOKEN = "TOPOOPT_DISCOVER_TOKEN"

_numbers = itertools.count()


@dataclass
class Hosts:
    """Namespaces, their management addresses, and (host, interface, address) of cable ends."""

    names: list[str] = field(default_factory=list)
    managements: list[str] = field(default_factory=list)
    cables: list[list[tuple[int, str, str]]] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    bridge: str = ""

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
    """Fills in `hosts` step by step, so that `remove_hosts` finds whatever was made."""
    mark = f"{os.getpid()}x{next(_numbers)}"
    network = f"10.{120 + os.getpid() % 60}"
    hosts.bridge = f"tof{mark}"
    ip(f"link add {hosts.bridge} type bridge")
    ip(f"link set {hosts.bridge} up")
    for host in range(count):
        name = f"foreign-{mark}-{host}"
        ip(f"netns add {name}")
        hosts.names.append(name)
        outside = f"tox{mark}.{host}"
        ip(f"link add {outside} type veth peer name manage netns {name}")
        hosts.outside.append(outside)
        ip(f"link set {outside} master {hosts.bridge} up")
        hosts.managements.append(f"{network}.0.{host + 1}")
        up(name, "manage", f"{network}.0.{host + 1}/24")
        ip(f"-n {name} link set lo up")
    for number, (a, b) in enumerate(cables):
        interface = f"nic{number}"
        end = f"name {interface} netns"
        ip(f"link add {end} {hosts.names[a]} type veth peer {end} {hosts.names[b]}")
        ends = []
        for last, host in enumerate((a, b), start=1):
            address = f"{network}.{number + 1}.{last}/30"
            up(hosts.names[host], interface, address)
            ends.append((host, interface, address))
        hosts.cables.append(ends)
    for cable in hosts.cables:
        for host, interface, _ in cable:
            wait_until_up(hosts.names[host], interface)
    return hosts


def remove_hosts(hosts: Hosts) -> None:
    for outside in hosts.outside:
        ip(f"link del {outside}")
    for name in hosts.names:
        ip(f"netns del {name}")
    if hosts.bridge:
        ip(f"link del {hosts.bridge}")


def up(namespace: str, interface: str, address: str) -> None:
    ip(f"-n {namespace} addr add {address} dev {interface}")
    ip(f"-n {namespace} link set {interface} up")


def wait_until_up(namespace: str, interface: str) -> None:
    deadline = time.monotonic() + 10
    while "state UP" not in ip(f"-n {namespace} -o link show {interface}"):
        assert time.monotonic() < deadline, f"{interface} of {namespace} has no carrier"


def ip(arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments.split()], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, f"ip {arguments}: {done.stderr}"
    return done.stdout


def skip_unless_possible() -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip (Debian: iproute2)")
    name = f"foreign-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if probe.returncode != 0:
        pytest.skip(f"this machine makes no network namespaces: {probe.stderr.strip()}")
    ip(f"netns del {name}")


def within(hosts: Hosts, host: int) -> tuple[str, ...]:
    return ("ip", "netns", "exec", hosts.names[host], *COMMAND)


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
