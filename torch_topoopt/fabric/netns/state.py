"""The record of each fabric of namespaces on disk, by which it is found and removed later.

Each fabric has a folder of its name under $XDG_STATE_HOME/topoopt/fabrics (or ~/.local/state/...).
It is made before the first namespace and removed after the last, so all leftovers of a crash have
a folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.layout import BLOCKS, NetnsLayout, check_name
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan
from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.processes.scratch import process_start

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD = "fabric.json"
NETWORK = "network.json"  # replaces the plan if hosts are connected to switches
KEPT, IN_USE, BEING_MADE = "kept", "in use", "being made"
ABANDONED, BROKEN, INCOMPLETE = "abandoned", "broken", "incomplete"


@dataclass(frozen=True)
class FabricRecord(Document):
    """One fabric. `gbps` limits every link per direction (None: not limited).

    `owner` is the process it ends with, `owner_start` when that started (clock ticks after boot);
    0: the fabric is kept until it is taken down. `shaper` is "" for links that are not limited.
    `switch_delay_s` is None unless the cables run through an emulated switch.
    """

    KIND: ClassVar[str] = "FabricRecord"
    VERSION: ClassVar[int] = 1

    version: int
    name: str
    block: int
    servers: int
    degree: int
    gbps: float | None
    mtu: int
    shaper: str
    forwarding: Literal["routes", "split"]
    classifier: str
    switch_delay_s: float | None
    owner: int
    owner_start: int

    def validate(self) -> Self:
        if not 0 <= self.block < BLOCKS:
            raise DocumentError(f"block: {self.block} is not in 0..{BLOCKS - 1}")
        return self

    @property
    def layout(self) -> NetnsLayout:
        return NetnsLayout(self.name, self.block)


def folder() -> Path:
    """The parent of the folders of all fabrics."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home, "topoopt", "fabrics")


class Reservation:
    """The folder of a new fabric; locked until `release()` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def reserve(name: str) -> Reservation:
    """Makes the folder of a new fabric; raises FabricError if the name is taken."""
    path = folder() / check_name(name)
    taken = FabricError(
        f"name: there is a fabric {name!r} already; `topoopt fabric down {name}` removes it"
    )
    if netns_kernel.of_fabric(name):
        raise taken
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise FabricError(f"{path}: cannot be made: {error.strerror}") from None
    return Reservation(path)


def save(path: Path, record: FabricRecord, plan: Plan, wiring: Wiring) -> None:
    record.validate().save(path / RECORD)
    plan.save(path / "plan.json")
    wiring.save(path / "wiring.json")


def names() -> list[str]:
    """The names of all recorded fabrics, complete or not."""
    try:
        return sorted(entry.name for entry in folder().iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def load(name: str) -> tuple[FabricRecord, Plan, Wiring]:
    """A complete fabric; raises FabricError if it is missing or incomplete."""
    path = folder() / check_name(name)
    if not path.is_dir():
        known = ", ".join(names()) or "none"
        raise FabricError(f"name: there is no fabric {name!r}; there is: {known}")
    try:
        record = FabricRecord.load(path / RECORD)
        plan, wiring = Plan.load(path / "plan.json"), Wiring.load(path / "wiring.json")
    except FileNotFoundError:
        if (path / NETWORK).exists():
            raise FabricError(
                f"name: the hosts of {name!r} hang on switches and have no links of their own; "
                f"{path / NETWORK} has its addresses"
            ) from None
        raise FabricError(
            f"name: the fabric {name!r} is not complete: it is being made, or that was interrupted "
            f"(`topoopt fabric down {name}` removes it)"
        ) from None
    gone = [
        namespace
        for namespace in map(record.layout.namespace, range(record.servers))
        if not netns_kernel.exists(namespace)
    ]
    if gone:
        raise FabricError(
            f"name: the fabric {name!r} has lost its namespace {gone[0]} (has the machine "
            f"restarted?); `topoopt fabric down {name}` removes the rest"
        )
    return record, plan, wiring


def take_down(name: str) -> bool:
    """Removes a fabric and its record; False if there was none.

    Kills the processes in its namespaces. Raises FabricError if the kernel does not release them.
    """
    path = folder() / check_name(name)
    namespaces = netns_kernel.of_fabric(name)
    was_there = bool(namespaces) or path.is_dir()
    management = NetnsLayout(name).management_namespace
    if management in namespaces:
        _unplug(management)
    netns_kernel.remove(namespaces)
    shutil.rmtree(path, ignore_errors=True)
    return was_there


def _unplug(management: str) -> None:
    """Removes this machine's interface on the management network at once; the kernel takes its time
    with the interfaces of a namespace that has gone."""
    with netns_kernel.open_route(management) as route:
        for index in route.link_lookup(ifname="launcher"):
            route.link("del", index=index)


def owner_runs(record: FabricRecord) -> bool:
    """Whether the process that the fabric should end with still runs."""
    return record.owner > 0 and process_start(record.owner) == record.owner_start


def describe(name: str) -> tuple[str, FabricRecord | None]:
    """(KEPT, IN_USE, ... for the state of a fabric, its record if it has one)."""
    path = folder() / name
    try:
        record = FabricRecord.load(path / RECORD)
    except (FileNotFoundError, DocumentError):
        return (BEING_MADE if _locked(path) else INCOMPLETE), None
    missing = _missing(map(record.layout.namespace, range(record.servers)))
    if missing:
        return BROKEN, record
    if record.owner == 0:
        return KEPT, record
    return (IN_USE if owner_runs(record) else ABANDONED), record


def _locked(path: Path) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def _missing(namespaces: Iterable[str]) -> list[str]:
    return [namespace for namespace in namespaces if not netns_kernel.exists(namespace)]
