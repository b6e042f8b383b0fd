"""Machines with direct cables, in namespaces that look like real ones: names of interfaces, ports
with two functions that share one wire, no addresses but link-local ones, a tree of devices, ssh.

Host I is a namespace with the interfaces of its cables, which have no IPv4 addresses unless a test
gives them some, and, unless the test says where else the hosts are reached, `manage`, a port of the
management bridge. A command on a host is one in its namespace with a host name of its own (a UTS
namespace) and its tree of devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.device_tree import add_spark
from support.plain_namespaces import (
    End,
    ip,
    link_local_address,
    run,
    skip_without_ipv6,
    wait_for_carrier,
    wait_for_link_local_addresses,
)

from torch_topoopt.fabric.hardware import SYSFS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.plain_namespaces import Namespaces

Socket = tuple[int, tuple[str, ...]]  # host, and the interfaces of one of its physical ports

# Takes what OpenSSH takes: options, `--`, the host or its address, and words that a shell there
# reads.
_SSH = """#!/bin/sh
while getopts "nTo:l:" option; do :; done
shift $((OPTIND - 1))
host=$1; shift
case $host in
{cases}
*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
export SSH_CONNECTION="{client} 4242 $address 22"
cd {folder}/"$name"/home
exec {folder}/on "$name" sh -c "$*"
"""
_ON = """#!/bin/sh
name=$1; shift
case $name in
{cases}
esac
export {variable}={folder}/$name/sys
exec ip netns exec $namespace unshare --uts sh -c 'hostname "$0"; exec "$@"' "$name" "$@"
"""


@dataclass
class Machines:
    """Named hosts in `folder`, which has the programs `on HOST COMMAND...` and `ssh`."""

    namespaces: Namespaces
    folder: Path
    hosts: tuple[str, ...]
    managements: list[str] = field(default_factory=list)
    _ends: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        namespaces: Namespaces,
        folder: Path,
        hosts: Sequence[str],
        managements: Sequence[str] = (),
        *,
        client: str = "192.0.2.77",
    ) -> Machines:
        """Hosts without cables; skips the test where links have no addresses by themselves.

        With `managements`, hosts have nothing by which these addresses are reached yet. ssh comes
        from address `client`.
        """
        skip_without_ipv6()
        made = cls(namespaces, folder, tuple(hosts))
        made.managements = list(managements)
        if managements:
            for _ in hosts:
                namespaces.add()
        else:
            namespaces.add_managed(len(hosts))
            made.managements = [f"{namespaces.network}.0.{n + 1}" for n in range(len(hosts))]
        names = namespaces.names[: len(hosts)]
        for namespace in names:
            # no waiting until nobody objects to an address; nobody could
            run("ip", "netns", "exec", namespace, "sh", "-c", _WITHOUT_DAD)
        cases = "\n".join(f"{h}) namespace={n} ;;" for h, n in zip(hosts, names, strict=True))
        _program(folder / "on", _ON.format(cases=cases, variable=SYSFS_VARIABLE, folder=folder))
        cases = "\n".join(
            f"{host}|{address}) name={host}; address={address} ;;"
            for host, address in zip(hosts, made.managements, strict=True)
        )
        _program(folder / "ssh", _SSH.format(cases=cases, folder=folder, client=client))
        for host in hosts:
            (folder / host / "sys").mkdir(parents=True)
            (folder / host / "home").mkdir()
        return made

    def command(self, host: int, *words: str) -> tuple[str, ...]:
        return (str(self.folder / "on"), self.hosts[host], *words)

    def cable(self, one: Socket, other: Socket, rate: str, mtu: int = 1500) -> None:
        """Both ends come up. Functions of a port share the cable's rate, such as 400mbit.

        A port with several functions is a bridge of them and the wire, as a card's switch is.
        """
        ends = []
        for host, functions in (one, other):
            namespace = self.namespaces.names[host]
            if len(functions) == 1:
                ends.append(End(namespace, functions[0]))
                continue
            port = self.namespaces.add()
            ip(f"-n {port} link add card type bridge")
            ip(f"-n {port} link set card up")
            for number, function in enumerate(functions):
                inside = End(port, f"f{number}")
                self.namespaces.cable(End(namespace, function), inside)
                _set_mtu(mtu, End(namespace, function), inside)
                ip(f"-n {port} link set f{number} master card up")
                self._up(namespace, function)
            ends.append(End(port, "wire"))
        self.namespaces.cable(*ends)
        _set_mtu(mtu, *ends)
        for end in ends:
            if end.interface == "wire":
                ip(f"-n {end.namespace} link set wire master card")
            ip(f"-n {end.namespace} link set {end.interface} up")
            self._ends.append((end.namespace, end.interface))
            run(
                *("ip", "netns", "exec", end.namespace, "tc", "qdisc", "add", "dev"),
                *(end.interface, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "20ms"),
            )

    def _up(self, namespace: str, interface: str) -> None:
        ip(f"-n {namespace} link set {interface} up")
        self._ends.append((namespace, interface))

    def wait(self) -> None:
        """Until all cables are in, and all their interfaces have their link-local addresses."""
        wait_for_carrier(self._ends)
        hosts = self.namespaces.names[: len(self.hosts)]
        wait_for_link_local_addresses(end for end in self._ends if end[0] in hosts)

    def addresses(self, host: int) -> dict[str, tuple[str, ...]]:
        """The link-local address of each of its interfaces on cables."""
        namespace = self.namespaces.names[host]
        own = [interface for where, interface in self._ends if where == namespace]
        return {interface: (link_local_address(namespace, interface),) for interface in own}

    def write_spark_trees(self) -> None:
        """Every host's tree of devices is a Spark's, with entries for the addresses that it has."""
        for number, host in enumerate(self.hosts):
            tree, guid = self.folder / host / "sys", f"fc4c:ea03:00f9:{4230 + number}"
            add_spark(tree, guid, self.addresses(number))


_WITHOUT_DAD = (
    "for where in all default; do echo 0 >/proc/sys/net/ipv6/conf/$where/accept_dad; done"
)


def _set_mtu(mtu: int, *ends: End) -> None:
    for end in ends:
        if mtu != 1500:  # what they have
            ip(f"-n {end.namespace} link set {end.interface} mtu {mtu}")


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
