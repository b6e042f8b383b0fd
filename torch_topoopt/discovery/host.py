"""Facts about a rank's host that ranks exchange."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.discovery.interfaces import (
    INTERFACES_VARIABLE,
    Interface,
    list_interfaces,
    names_interfaces,
    select,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import Document

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_MEMORY_VARIABLE = "TOPOOPT_SHARED_MEMORY"


@dataclass(frozen=True)
class Announcement(Document):
    """One rank's announcement.

    Ranks with the same `identity` can share memory and connect by AF_UNIX sockets. `unmatched` are
    names in TOPOOPT_INTERFACES that this host does not have; `named` says whether that variable
    names the interfaces to use. `error` says why the rank cannot join.
    """

    KIND: ClassVar[str] = "Host"
    VERSION: ClassVar[int] = 1

    version: int
    name: str
    machine: str
    identity: str
    interfaces: tuple[Interface, ...]
    unmatched: tuple[str, ...]
    named: bool
    error: str

    def validate(self) -> Self:
        return self

    @classmethod
    def here(cls, rank: int) -> Announcement:
        """The host of this process."""
        name = os.uname().nodename
        machine = _machine(name)
        error, interfaces, unmatched = "", list[Interface](), list[str]()
        wanted = os.environ.get(INTERFACES_VARIABLE, "")
        identity = machine
        try:
            if not shared_memory_allowed():
                identity += f"/{rank}"
            listed = list_interfaces()
            interfaces, unmatched = select(listed, wanted)
            if wanted and not interfaces:
                known = ", ".join(sorted({i.name for i in listed})) or "none"
                raise FabricError(
                    f"{INTERFACES_VARIABLE}: {wanted!r} leaves no interface of host {name} that is "
                    f"up and has an address (these are: {known})"
                )
        except (FabricError, OSError) as failure:
            error = str(failure)
        shared = tuple(_shared_rates(interfaces))
        named = names_interfaces(wanted)
        return cls(cls.VERSION, name, machine, identity, shared, tuple(unmatched), named, error)


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
