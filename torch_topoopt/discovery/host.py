"""Facts about a rank's host that ranks exchange."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.discovery.interfaces import (
    INTERFACES_VARIABLE,
    Interface,
    list_interfaces,
    names_interfaces,
    select,
)
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_MEMORY_VARIABLE = "TOPOOPT_SHARED_MEMORY"


@dataclass(frozen=True)
class Announcement:
    """One rank's announcement.

    Ranks with the same `identity` can share memory and connect by AF_UNIX sockets. The next three
    are about TOPOOPT_INTERFACES: the interfaces of this host that it selects, its names that this
    host does not have, and whether it names the interfaces to use. `error` says why the rank cannot
    join.
    """

    name: str
    machine: str
    identity: str
    selected: tuple[str, ...]
    unmatched: tuple[str, ...]
    named: bool
    error: str

    @classmethod
    def here(cls, rank: int) -> Announcement:
        """The host of this process."""
        name = os.uname().nodename
        machine = _machine(name)
        error, selected, unmatched = "", list[Interface](), list[str]()
        wanted = os.environ.get(INTERFACES_VARIABLE, "")
        identity = machine
        try:
            if not shared_memory_allowed():
                identity += f"/{rank}"
            if wanted:
                selected, unmatched = _selected(name, wanted)
        except (FabricError, OSError) as failure:
            error = str(failure)
        names = tuple(sorted({interface.name for interface in selected}))
        named = names_interfaces(wanted)
        return cls(name, machine, identity, names, tuple(unmatched), named, error)


def usable_interfaces(name: str, *, one_machine: bool) -> list[Interface]:
    """The interfaces to use on this host: loopback only if the whole job is on one machine.

    Each has its part of the rate of its physical port. Raises FabricError and OSError.
    """
    selected, _ = _selected(name, os.environ.get(INTERFACES_VARIABLE, ""))
    loopback = [interface for interface in selected if interface.loopback]
    if one_machine and loopback:
        return loopback[:1]
    return list(_shared_rates([interface for interface in selected if not interface.loopback]))


def _selected(name: str, wanted: str) -> tuple[list[Interface], list[str]]:
    """The interfaces of host `name` that `wanted` means, and unmatched names (select).

    Raises FabricError if it leaves none.
    """
    listed = list_interfaces()
    interfaces, unmatched = select(listed, wanted)
    if wanted and not interfaces:
        known = ", ".join(sorted({i.name for i in listed})) or "none"
        raise FabricError(
            f"{INTERFACES_VARIABLE}: {wanted!r} leaves no interface of host {name} that is "
            f"up and has an address (these are: {known})"
        )
    return interfaces, unmatched


def shared_memory_allowed() -> bool:
    """TOPOOPT_SHARED_MEMORY; raises FabricError for a value that is neither 0 nor 1."""
    value = os.environ.get(SHARED_MEMORY_VARIABLE, "1")
    if value not in ("0", "1"):
        raise FabricError(f"{SHARED_MEMORY_VARIABLE}: {value!r} is neither 0 (off) nor 1 (on)")
    return value == "1"


def _shared_rates(interfaces: list[Interface]) -> Iterator[Interface]:
    """The interfaces, each with its part of the rate of its physical port."""
    functions: dict[str | None, set[str]] = {}
    for interface in interfaces:
        functions.setdefault(interface.physical_port, set()).add(interface.name)
    for interface in interfaces:
        count = 1 if interface.physical_port is None else len(functions[interface.physical_port])
        yield replace(interface, gbps=interface.gbps and interface.gbps / count)


def _machine(name: str) -> str:
    """A key equal for processes of one user with the same network and PID namespaces."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid")]
    except OSError as error:
        raise FabricError(f"cannot distinguish this machine from others: {error}") from None
    return "/".join(map(str, (name, boot, *spaces, os.getuid())))
