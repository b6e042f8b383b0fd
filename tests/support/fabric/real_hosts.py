"""Hosts for tests: network namespaces with cables that are not set up yet, as root.

Interface `p<k>` of a host is its port k of the plan. Beside its cables a host has nothing: whatever
gets through comes by the cables. `state` is all that a script may change, to compare.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.plain_namespaces import LIMIT_S, End, Namespaces, ip, run, wait_for_carrier

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

# State that the kernel changes by itself: caches, counters, IPv6 where a link goes up.
_OF_ITS_OWN = ("/neigh/", "random_secret", "ipv4/fib_", "ipv4/route/", "fe80:", "::")
# State that follows from the carrier, which the kernel notices up to a second later.
_OPERATIONAL = re.compile(r"NO-CARRIER,|,?LOWER_UP|,?M-DOWN| state \S+| linkdown")
_STATE = r"""
show() { echo "=== $*"; "$@" || true; }
show ip -o -d link show
show ip -4 address show
show ip route show table all
show ip rule show
show ip neigh show nud permanent
show tc qdisc show
for name in $(ip -o link show | sed 's/^[0-9]*: \([^:@]*\).*/\1/'); do
  show tc filter show dev "$name" ingress 2>/dev/null
done
cd /proc/sys/net && show grep -rs . ipv4 core/rmem_max core/wmem_max
"""


@dataclass
class Hosts:
    """Namespace names by server number; `file` is the cluster file that describes them."""

    names: list[str]
    file: ClusterFile
    folder: Path

    def inside(self, server: int) -> tuple[str, ...]:
        """The prefix of a command that runs it on a host."""
        state = f"TOPOOPT_STATE_DIR={self.folder / str(server)}"
        return "env", state, "nsenter", f"--net=/run/netns/{self.names[server]}"

    def on(self, server: int, *command: str, given: str | None = None, check: bool = True) -> str:
        """Runs a command on a host; returns what it prints."""
        return run(*self.inside(server), *command, given=given, check=check)

    def script(self, server: int, text: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell script on a host."""
        return subprocess.run(
            [*self.inside(server), "sh"],
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def state(self, server: int) -> dict[str, list[str]]:
        """Links, addresses, routes, rules, permanent neighbours, tc and sysctls."""
        found: dict[str, list[str]] = {}
        for line in self.on(server, "sh", "-c", _STATE).splitlines():
            if line.startswith("=== "):
                lines = found.setdefault(line[4:], [])
            elif not any(word in line for word in _OF_ITS_OWN):
                lines.append(_OPERATIONAL.sub("", line))
        assert len(found) > 7, found
        return found

    def sent(self, server: int, port: int) -> int:
        """Bytes that a port has sent so far."""
        shown = json.loads(self.on(server, *f"ip -s -j link show dev p{port}".split()))
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def interface(self, server: int, port: int, *words: str) -> str:
        """`ip link set dev p<port> WORDS` on a host."""
        return self.on(server, "ip", "link", "set", "dev", f"p{port}", *words)


def cluster_of(
    plan: Plan,
    *,
    gbps: float = 1.0,
    mtu: int | None = 1500,
    address: str = "10.77.{cable}.{last}/30",
) -> ClusterFile:
    """A cluster file with exactly the cables that `plan` needs: by default, a /30 each.

    `address` has {cable}, its number, and {last}: 1 and 2 at its ends.
    """
    ports: dict[tuple[int, int], PortEntry] = {}
    cables = []
    for link in plan.network.links:
        if (link.source, link.source_port) > (link.target, link.target_port):
            continue
        ends = ((link.source, link.source_port), (link.target, link.target_port))
        for last, (server, port) in enumerate(ends, start=1):
            ports[server, port] = PortEntry(
                name=f"p{port}",
                address=address.format(cable=len(cables), last=last),
                gbps=gbps,
                interface=f"p{port}",
                mac=f"02:00:5e:00:{server:02x}:{port:02x}",
                mtu=mtu,
            )
        cables.append(
            (f"h{link.source}:p{link.source_port}", f"h{link.target}:p{link.target_port}")
        )
    servers = tuple(
        ServerEntry(
            name=f"h{server}",
            management=f"10.200.0.{server + 1}",
            ports=tuple(ports[end] for end in sorted(ports) if end[0] == server),
        )
        for server in range(plan.cluster.servers)
    )
    return ClusterFile(1, "lab", servers, tuple(cables)).validate()


@contextmanager
def real_hosts(plan: Plan, folder: Path, file: ClusterFile | None = None) -> Iterator[Hosts]:
    """Namespaces with the plan's cables; interfaces are down and have nothing but their MAC."""
    file = file or cluster_of(plan)
    with Namespaces("tc", "nsenter") as namespaces:
        names = [namespaces.add() for _ in range(plan.cluster.servers)]
        for cable in file.cables:
            ports = (file.ports[end] for end in cable)
            ends = (End(names[server], str(port.interface), port.mac) for server, port in ports)
            namespaces.cable(*ends)
        for name, server in zip(names, file.servers, strict=True):
            # as after a start: the queueing is the default's
            lines = [
                f"link set dev {p.interface} {way}" for way in ("up", "down") for p in server.ports
            ]
            ip(f"-n {name} -batch -", given="\n".join(lines))
        yield Hosts(names, file, folder)


def wait_until_up(hosts: Hosts) -> None:
    """Returns when every cable has carrier."""
    wait_for_carrier(
        (hosts.names[number], str(port.interface))
        for number, server in enumerate(hosts.file.servers)
        for port in server.ports
    )
