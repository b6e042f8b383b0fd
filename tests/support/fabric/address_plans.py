"""Ways in which people give addresses to cabled hosts: each a small cluster of namespaces.

Port 1 of a host is cabled to port 0 of the next one, in a ring; two hosts have two cables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.device_tree import SPARK_PORTS
from support.fabric.cabled_machines import Machines
from support.plain_namespaces import End, ip, run, up

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from support.plain_namespaces import Namespaces

RATE = "100mbit"  # all cables at once, also on a busy machine: their rates are measured
Ends = tuple[tuple[int, str], tuple[int, str]]  # host and interface, of both ends of a cable


@dataclass(frozen=True)
class Cluster:
    """Hosts whose cables are in. `ipv6`: the addresses of ports are; `notes`: lines of `discover`
    that are right here."""

    machines: Machines
    cables: tuple[Ends, ...]
    ipv6: bool = False
    notes: int = 0
    started: list[subprocess.Popen[str]] = field(default_factory=list)


def _cable(machines: Machines) -> tuple[Ends, ...]:
    count = len(machines.hosts)
    cables = tuple(((host, "p1"), ((host + 1) % count, "p0")) for host in range(count))
    for (a, near), (b, far) in cables:
        machines.cable((a, (near,)), (b, (far,)), RATE)
    return cables


def _addressed(machines: Machines, cables: tuple[Ends, ...], form: str) -> None:
    """`form` has {cable}, and {last}: 1 and 2 at the ends; {every}: another number at each end."""
    every = 0
    for number, ends in enumerate(cables, start=1):
        for last, (host, interface) in enumerate(ends, start=1):
            every += 1
            address = form.format(cable=number, last=last, every=every)
            ip(f"-n {machines.namespaces.names[host]} addr add {address} dev {interface}")


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"box{host}" for host in range(count))


def cable_subnets(namespaces: Namespaces, folder: Path) -> Cluster:
    """A /30 of its own for each cable."""
    machines = Machines.make(namespaces, folder, _names(3))
    cables = _cable(machines)
    _addressed(machines, cables, f"{namespaces.network}.{{cable}}.{{last}}/30")
    return Cluster(machines, cables)


def one_subnet(namespaces: Namespaces, folder: Path) -> Cluster:
    """One /24 for all ports."""
    machines = Machines.make(namespaces, folder, _names(3))
    cables = _cable(machines)
    _addressed(machines, cables, f"{namespaces.network}.9.{{every}}/24")
    return Cluster(machines, cables)


def self_assigned(namespaces: Namespaces, folder: Path) -> Cluster:
    """Link-local IPv4 addresses at all ports, and no IPv6."""
    machines = Machines.make(namespaces, folder, _names(3))
    for name in namespaces.names:
        off = "echo 1 >/proc/sys/net/ipv6/conf/$where/disable_ipv6"
        run("ip", "netns", "exec", name, "sh", "-c", f"for where in all default; do {off}; done")
    cables = _cable(machines)
    _addressed(machines, cables, "169.254.{cable}.{every}/16")
    return Cluster(machines, cables)


def link_local(namespaces: Namespaces, folder: Path) -> Cluster:
    """No addresses at all but those that ports give themselves, of IPv6."""
    machines = Machines.make(namespaces, folder, _names(3))
    return Cluster(machines, _cable(machines), ipv6=True)


def ipv6_only(namespaces: Namespaces, folder: Path) -> Cluster:
    """Unique-local addresses at ports and for management."""
    managements = [f"fd00:77::{host + 1}" for host in range(3)]
    machines = Machines.make(namespaces, folder, _names(3), managements)
    bridge = namespaces.bridge()
    for name, address in zip(namespaces.names, managements, strict=True):
        namespaces.plug(bridge, name, "manage", f"{address}/64")
    cables = _cable(machines)
    _addressed(machines, cables, "fd00:{cable}::{last}/64")
    return Cluster(machines, cables, ipv6=True)


def loopback_routes(namespaces: Namespaces, folder: Path) -> Cluster:
    """A /32 at the loopback interface of each host, routed over the cables; no other network."""
    managements = [f"{namespaces.network}.255.{host + 1}" for host in range(3)]
    machines = Machines.make(namespaces, folder, _names(3), managements, client=managements[0])
    cables = _cable(machines)
    for name, address in zip(namespaces.names, managements, strict=True):
        ip(f"-n {name} addr add {address}/32 dev lo")
    for ends in cables:
        for (host, interface), (other, _) in (ends, ends[::-1]):
            route = f"{managements[other]}/32 dev {interface} src {managements[host]}"
            ip(f"-n {namespaces.names[host]} route add {route}")
    return Cluster(machines, cables, ipv6=True)


def ssh_over_a_cable(namespaces: Namespaces, folder: Path) -> Cluster:
    """Two hosts, two cables and nothing else: ssh takes one of them."""
    managements = [f"{namespaces.network}.1.{last}" for last in (1, 2)]
    machines = Machines.make(namespaces, folder, _names(2), managements, client=managements[0])
    cables = _cable(machines)
    _addressed(machines, cables, f"{namespaces.network}.{{cable}}.{{last}}/24")
    return Cluster(machines, cables, notes=1)


def two_functions(namespaces: Namespaces, folder: Path) -> Cluster:
    """Two Sparks and one cable: both functions of a port in one subnet, on one wire."""
    machines = Machines.make(namespaces, folder, _names(2))
    near, far = SPARK_PORTS
    machines.cable((0, near), (1, far), RATE)
    cables = tuple(((0, a), (1, b)) for a, b in zip(near, far, strict=True))
    _addressed(machines, cables, f"{namespaces.network}.9.{{every}}/24")
    machines.wait()
    machines.write_spark_trees()
    return Cluster(machines, cables, notes=1)


def containers(namespaces: Namespaces, folder: Path) -> Cluster:
    """Bridges of Docker and libvirt on every host, with the same addresses, and one guest each."""
    made = cable_subnets(namespaces, folder)
    hosts = namespaces.names[: len(made.machines.hosts)]
    guests = namespaces.add()
    for host, name in enumerate(hosts):
        for bridge, address in (("docker0", "172.17.0.1/16"), ("virbr0", "192.168.122.1/24")):
            ip(f"-n {name} link add {bridge} type bridge")
            outside = End(name, f"veth{bridge}")
            namespaces.cable(outside, End(guests, f"{bridge}g{host}"))
            ip(f"-n {name} link set {outside.interface} master {bridge} up")
            ip(f"-n {guests} link set {bridge}g{host} up")
            up(name, bridge, address)
    return Cluster(made.machines, made.cables, notes=1)


PLANS: dict[str, Callable[[Namespaces, Path], Cluster]] = {
    made.__name__: made
    for made in (
        self_assigned,
        link_local,
        cable_subnets,
        one_subnet,
        ipv6_only,
        loopback_routes,
        ssh_over_a_cable,
        two_functions,
        containers,
    )
}
