"""The addresses at which the processes of a job listen, by the kernel."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"  # <net/tcp_states.h>
_ACCEPTS = "00010000"  # __SO_ACCEPTCON of <linux/net.h>


class Listener(NamedTuple):
    """A listening socket: its process, that process's network namespace, and where it listens."""

    pid: int
    namespace: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


def listeners(mark: str) -> list[Listener]:
    """Those of all processes that have `mark` in their environment, in whichever namespace."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (folder / "environ").read_bytes():
                continue
            sockets = _sockets(folder)
            namespace = os.readlink(folder / "ns" / "net")
            listening = _listening(folder)
        except OSError:
            continue  # it has ended since the listing
        found += [
            Listener(int(folder.name), namespace, *where)
            for inode, where in listening.items()
            if inode in sockets
        ]
    return found


def local_names(mark: str) -> set[str]:
    """The abstract names of AF_UNIX sockets at which they listen, in this network namespace."""
    own: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since the listing
            if mark.encode() in (folder / "environ").read_bytes():
                own |= _sockets(folder)
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *name = line.split()
        if flags == _ACCEPTS and inode in own and name and name[0].startswith("@"):
            found.add(name[0][1:])
    return found


def _sockets(process: Path) -> set[str]:
    inodes = set()
    for entry in (process / "fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # closed since the listing
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def _listening(
    process: Path,
) -> dict[str, tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    found = {}
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTEN:
                address, port = local.split(":")
                found[inode] = (_address(address), int(port, 16))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)  # the kernel prints words as the machine has
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return ipaddress.ip_address(socket.inet_ntop(family, packed))
