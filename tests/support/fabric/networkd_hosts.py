"""Hosts whose network is set up by systemd-networkd: namespaces that can be restarted.

A host is a network namespace and a mount namespace, in which D-Bus and systemd-networkd run and
/etc/systemd/network, /etc/sysctl.d and /var/lib/topoopt are folders of the test. A restart makes
the namespaces anew and keeps these folders and the MAC addresses of its cards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.plain_namespaces import (
    End,
    Namespaces,
    ip,
    run,
    wait_for_carrier,
    wait_for_link_local_addresses,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NETWORKD = Path("/lib/systemd/systemd-networkd")
SYSCTL = Path("/lib/systemd/systemd-sysctl")
_LIMIT_S = limit_s(30)
_KEPT = ("/etc/systemd/network", "/etc/sysctl.d", "/var/lib/topoopt")

# networkd takes interfaces as they are, without udev, where /sys cannot be written.
_BOOT = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
[ ! -d /etc/netplan ] || mount -t tmpfs tmpfs /etc/netplan
mkdir -p /run/dbus /run/systemd/netif /var/lib/topoopt
chown systemd-network: /run/systemd/netif
{binds}
mount -o remount,bind,ro /sys
ip link set lo up
# what systemd does at the start, and udev for each interface
{sysctl} --prefix=/net/ipv4/conf/
dbus-daemon --system --nofork --nopidfile &
exec {networkd}
"""
_ENTER = """\
#!/bin/sh
name=$1; shift
exec nsenter -t "$(cat {folder}/$name/pid)" -m -n unshare --uts sh -c \\
  'hostname "$0"; exec "$@"' "$name" "$@"
"""
# As OpenSSH is called: options, `--`, the host or its address, and words for a shell there.
_SSH = """\
#!/bin/sh
while getopts "nTo:l:" option; do :; done
shift $((OPTIND - 1))
host=$1; shift
case $host in
{cases}
*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
[ ! -e {folder}/$name/deaf ] || exit 255
export SSH_CONNECTION="192.0.2.77 4242 $address 22"
cd {folder}/$name
exec {folder}/on "$name" sh -c "$*"
"""


def skip_without_networkd() -> None:
    for program in (NETWORKD, SYSCTL):
        if not program.exists():
            pytest.skip(f"this needs {program} (Debian: systemd)")
    for name, package in (("dbus-daemon", "dbus"), ("networkctl", "systemd")):
        if shutil.which(name) is None:
            pytest.skip(f"this needs the program {name} (Debian: {package})")


class NetworkdHosts:
    """Hosts box0, box1, ... with a cable of `rate` between each pair of `cables`, (host, port)
    twice. None has an address, unless `set_up` gives it one or a file does."""

    def __init__(
        self,
        folder: Path,
        cables: Sequence[tuple[tuple[int, str], tuple[int, str]]],
        rate: str,
    ) -> None:
        skip_without_networkd()
        self.folder = folder
        self.cables = cables
        self._rate = rate
        count = 1 + max(host for cable in cables for host, _ in cable)
        self.names = tuple(f"box{host}" for host in range(count))
        self.managements: list[str] = []
        self.namespaces = Namespaces("tc", "nsenter")
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in self.names:
            for path in _KEPT:
                (folder / name / path.strip("/")).mkdir(parents=True)
        _program(folder / "on", _ENTER.format(folder=folder))

    def start(self) -> None:
        """Plugs the cables, and starts the hosts."""
        self.namespaces.__enter__()
        self.namespaces.add_managed(len(self.names))
        network = self.namespaces.network
        self.managements = [f"{network}.0.{host + 1}" for host in range(len(self.names))]
        cases = "\n".join(
            f"{name}|{address}) name={name}; address={address} ;;"
            for name, address in zip(self.names, self.managements, strict=True)
        )
        _program(self.folder / "ssh", _SSH.format(cases=cases, folder=self.folder))
        for number, cable in enumerate(self.cables):
            ends = [
                End(self.namespaces.names[host], port, f"02:54:00:00:{number:02x}:{end:02x}")
                for end, (host, port) in enumerate(cable)
            ]
            self.namespaces.cable(*ends)
            for end in ends:
                shape = f"dev {end.interface} root tbf rate {self._rate} burst 16kb latency 20ms"
                run(*f"ip netns exec {end.namespace} tc qdisc add {shape}".split())
        for number, name in enumerate(self.names):
            binds = "\n".join(f"mount --bind {self.folder}/{name}{path} {path}" for path in _KEPT)
            boot = _BOOT.format(binds=binds, sysctl=SYSCTL, networkd=NETWORKD)
            words = ["ip", "netns", "exec", self.namespaces.names[number], "unshare", "-m"]
            log = (self.folder / name / "log").open("ab")
            started = subprocess.Popen(
                [*words, "sh", "-c", boot], stdout=log, stderr=log, start_new_session=True
            )
            log.close()
            self._processes.append(started)
            (self.folder / name / "pid").write_text(str(started.pid))
        for name in self.names:
            _wait(lambda name=name: "LINK" in self.on(name, "networkctl", check=False), name)

    def set_up(self, addresses: dict[tuple[int, str], str], mtu: int = 1500) -> None:
        """As a person does by hand: until the next restart."""
        for cable in self.cables:
            for host, port in cable:
                name = self.namespaces.names[host]
                if (host, port) in addresses:
                    ip(f"-n {name} address add {addresses[host, port]} dev {port}")
                ip(f"-n {name} link set {port} mtu {mtu} up")
        self.wait_for_carrier()

    def wait_for_carrier(self) -> None:
        """And for the addresses that ports have by themselves."""
        names = self.namespaces.names
        ends = [(names[host], port) for cable in self.cables for host, port in cable]
        wait_for_carrier(ends)
        wait_for_link_local_addresses(ends)

    def command(self, name: str, *words: str) -> tuple[str, ...]:
        return (str(self.folder / "on"), name, *words)

    def on(self, name: str, *words: str, check: bool = True) -> str:
        return run(*self.command(name, *words), check=check)

    def stop(self) -> None:
        """As if their power was cut."""
        for name in self.namespaces.names:
            for pid in ip(f"netns pids {name}").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self._processes:
            process.wait(timeout=_LIMIT_S)
        self._processes.clear()
        self.namespaces.__exit__(None, None, None)
        self.namespaces = Namespaces("tc", "nsenter")

    def addresses(self, name: str, interface: str) -> set[str]:
        """Those that may be used."""
        show = ("ip", "-o", "address", "show", "dev", interface, "-tentative")
        return {line.split()[3] for line in self.on(name, *show).splitlines()}

    def wait_for(self, name: str, interface: str, addresses: set[str]) -> None:
        _wait(
            lambda: self.addresses(name, interface) == addresses,
            f"{interface} of {name}: {addresses}",
        )

    def wait_for_address(self, name: str, interface: str, address: str) -> None:
        plain = address.replace(f"%{interface}", "")
        _wait(lambda: plain in self.addresses(name, interface), f"{interface} of {name}: {address}")


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
