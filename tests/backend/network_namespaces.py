"""Emulated hosts: network namespaces joined by veth cables, as root.

Host i is a namespace with one interface `cableN` for each of its cables, each cable a subnet of its
own, and `manage`, by which all hosts reach the store at the management bridge and each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Hosts:
    names: list[str]
    store_address: str


class HostsFactory:
    """Makes hosts, and removes them at the end of the test."""

    def __init__(self) -> None:
        self._namespaces: list[str] = []
        self._bridges: list[str] = []
        self._outside: list[str] = []

    def make(self, count: int, cables: Sequence[tuple[int, int]]) -> Hosts:
        bridge = f"tob{os.getpid()}"
        network = f"10.{200 + os.getpid() % 50}"
        run(f"ip link add {bridge} type bridge")
        self._bridges.append(bridge)
        run(f"ip addr add {network}.0.254/24 dev {bridge}")
        run(f"ip link set {bridge} up")
        names = [f"topoopt-{os.getpid()}-{host}" for host in range(count)]
        for host, name in enumerate(names):
            run(f"ip netns add {name}")
            self._namespaces.append(name)
            outside = f"tom{os.getpid()}.{host}"
            run(f"ip link add {outside} type veth peer name manage netns {name}")
            self._outside.append(outside)
            run(f"ip link set {outside} master {bridge} up")
            self._up(name, "manage", f"{network}.0.{host + 1}/24")
            run(f"ip -n {name} link set lo up")
            run(f"ip netns exec {name} tee /proc/sys/net/ipv4/ip_forward", given="0")
        for cable, (a, b) in enumerate(cables):
            end = f"name cable{cable} netns"
            run(f"ip link add {end} {names[a]} type veth peer {end} {names[b]}")
            for last, host in enumerate((a, b), start=1):
                self._up(names[host], f"cable{cable}", f"{network}.{cable + 1}.{last}/30")
        for cable, (a, b) in enumerate(cables):
            for host in (a, b):
                wait_for_carrier(names[host], f"cable{cable}")
        return Hosts(names, f"{network}.0.254")

    def close(self) -> None:
        # The kernel removes a namespace's interfaces some time after its name.
        for outside in self._outside:
            run(f"ip link del {outside}")
        for name in self._namespaces:
            run(f"ip netns del {name}")
        for bridge in self._bridges:
            run(f"ip link del {bridge}")

    def _up(self, namespace: str, interface: str, address: str) -> None:
        run(f"ip -n {namespace} addr add {address} dev {interface}")
        run(f"ip -n {namespace} link set {interface} up")


def wait_for_carrier(namespace: str, interface: str) -> None:
    """Returns when the kernel says that the cable is in, up to a second after both ends are up."""
    deadline = time.monotonic() + 10
    while "state UP" not in run(f"ip -n {namespace} -o link show {interface}"):
        assert time.monotonic() < deadline, f"{interface} of {namespace} has no carrier"


def run(command: str, given: str | None = None) -> str:
    done = subprocess.run(
        command.split(), input=given, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def skip_unless_possible() -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip (Debian: iproute2)")
    name = f"topoopt-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if probe.returncode != 0:
        pytest.skip(f"this machine makes no network namespaces: {probe.stderr.strip()}")
    run(f"ip netns del {name}")
