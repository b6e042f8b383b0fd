"""Network namespaces as hosts for tests, made with plain `ip` commands, as root.

`Namespaces` makes namespaces, bridges and veth cables under names that no other test run has, and
removes them when it is left. Where that is not possible, it skips the test and says why.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

LIMIT_S = limit_s(60)
_CARRIER_S = limit_s(20)
_numbers = itertools.count()


def run(*command: str, given: str | None = None, check: bool = True) -> str:
    """The output of a command; it must succeed, unless `check` is false."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def ip(arguments: str, given: str | None = None) -> str:
    return run("ip", *arguments.split(), given=given)


def skip_unless_possible(*programs: str) -> None:
    """Skips the test where there are no namespaces, or not all of `programs`."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program, package in {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}.items():
        if program in ("ip", *programs) and shutil.which(program) is None:
            pytest.skip(f"this needs the program {program} (Debian: {package})")
    name = f"{_unique()}probe"
    probe = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, timeout=limit_s(20)
    )
    if probe.returncode != 0:
        pytest.skip(f"this machine makes no network namespaces: {probe.stderr.strip()}")
    ip(f"netns del {name}")


def skip_without_ipv6() -> None:
    """Skips the test where this kernel gives interfaces no link-local addresses."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")


def up(namespace: str, interface: str, address: str | None = None) -> None:
    if address:
        ip(f"-n {namespace} addr add {address} dev {interface}")
    ip(f"-n {namespace} link set {interface} up")


def wait_for_carrier(ends: Iterable[tuple[str, str]]) -> None:
    """Returns when the kernel says of each (namespace, interface) that the cable is in.

    That takes it up to a second after both ends are up.
    """
    deadline = time.monotonic() + _CARRIER_S
    for namespace, interface in ends:
        show = f"-n {namespace} -o link show dev {interface}"
        while "LOWER_UP" not in (shown := ip(show)) or "state UP" not in shown:
            assert time.monotonic() < deadline, f"{interface} of {namespace} has no carrier"
            time.sleep(0.02)


def link_local_address(namespace: str, interface: str) -> str:
    """That of the interface, once it may be used; "" before."""
    words = ip(f"-n {namespace} -6 -o addr show dev {interface} scope link -tentative").split()
    return words[3].partition("/")[0] if "inet6" in words else ""


def wait_for_link_local_addresses(ends: Iterable[tuple[str, str]]) -> None:
    """Returns when each (namespace, interface) has one: some time after its carrier."""
    deadline = time.monotonic() + _CARRIER_S
    for namespace, interface in ends:
        while not link_local_address(namespace, interface):
            assert time.monotonic() < deadline, f"{interface} of {namespace} has no address"
            time.sleep(0.02)


@dataclass(frozen=True)
class End:
    """One end of a cable: an interface that the cable brings along."""

    namespace: str
    interface: str
    mac: str | None = None

    def __str__(self) -> str:
        mac = f" address {self.mac}" if self.mac else ""
        return f"name {self.interface} netns {self.namespace}{mac}"


class Namespaces:
    """Namespaces, and what joins them; leaving removes whatever was made.

    Entering skips the test where namespaces or one of `programs` are missing.
    """

    def __init__(self, *programs: str) -> None:
        self.names: list[str] = []
        self.network = f"10.{128 + os.getpid() % 120}"  # its first half, for this test run
        self._programs = programs
        self._mark = _unique()
        self._made = ExitStack()  # in reverse: ends of cables before their bridge

    def __enter__(self) -> Self:
        skip_unless_possible(*self._programs)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._made.close()

    def add(self) -> str:
        """A namespace with nothing but the loopback interface."""
        name = f"{self._mark}h{len(self.names)}"
        ip(f"netns add {name}")
        self._made.callback(ip, f"netns del {name}")
        self.names.append(name)
        up(name, "lo")
        return name

    def bridge(self) -> str:
        """A bridge of this machine, beside all namespaces."""
        name = _unique()
        ip(f"link add {name} type bridge")
        self._made.callback(ip, f"link del {name}")
        ip(f"link set {name} up")
        return name

    def plug(self, bridge: str, namespace: str, interface: str, address: str) -> None:
        """A cable from a bridge to a namespace, where it is `interface`."""
        outside = _unique()
        ip(f"link add {outside} type veth peer name {interface} netns {namespace}")
        # The kernel would remove it with the namespace, but some time after that one's name.
        self._made.callback(ip, f"link del {outside}")
        ip(f"link set {outside} master {bridge} up")
        up(namespace, interface, address)

    def cable(self, one: End, other: End) -> None:
        """A cable between namespaces; both ends are down and have no IP address."""
        ip(f"link add {one} type veth peer {other}")

    def add_managed(self, count: int) -> str:
        """Namespaces that do not forward, with `manage` on a bridge that they share.

        Host H has the address NETWORK.0.(H+1)/24. Returns the name of the bridge.
        """
        bridge = self.bridge()
        for host in range(count):
            name = self.add()
            self.plug(bridge, name, "manage", f"{self.network}.0.{host + 1}/24")
            ip(f"netns exec {name} tee /proc/sys/net/ipv4/ip_forward", given="0")
        return bridge

    def add_cables(
        self, cables: Sequence[tuple[int, int]], prefix: str
    ) -> list[list[tuple[int, str, str]]]:
        """Cables between hosts, up and with carrier; number N is `prefix`N at both ends.

        Each is a subnet NETWORK.(N+1).0/30 of its own. Returns (host, interface, address) of the
        ends of each.
        """
        plugged = []
        for number, (a, b) in enumerate(cables):
            interface = f"{prefix}{number}"
            self.cable(End(self.names[a], interface), End(self.names[b], interface))
            ends = []
            for last, host in enumerate((a, b), start=1):
                address = f"{self.network}.{number + 1}.{last}/30"
                up(self.names[host], interface, address)
                ends.append((host, interface, address))
            plugged.append(ends)
        wait_for_carrier((self.names[host], name) for ends in plugged for host, name, _ in ends)
        return plugged


def _unique() -> str:
    """A name for this process alone, short enough for an interface."""
    return f"to{os.getpid()}.{next(_numbers)}"
