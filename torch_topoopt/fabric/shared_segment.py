"""The memory that the ranks of one group share, when all of them are on one server.

It is an anonymous file: the first member makes it, the others open it through /proc, and it is gone
with the last process that has it, however that ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable

_OK = "ok"


class KeyValueStore(Protocol):
    """Keys and values shared by the members; reading waits until the keys are there."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


def open_segment(
    store: KeyValueStore, member: int, size: int, size_bytes: int, warn: Callable[[str], None]
) -> int:
    """A descriptor of the group's segment, or -1 on all members if one of them cannot open it.

    In that case all of them `warn` about the same reasons.
    """
    descriptor = -1
    try:
        if member == 0:
            descriptor = os.memfd_create("torch_topoopt", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size_bytes)
            store.set("segment", _place(descriptor))
        else:
            descriptor = _open(store.get("segment").decode())
        verdict = _OK
    except (OSError, FabricError) as error:
        verdict = str(error)
        if member == 0:
            store.set("segment", "")
    # The first member keeps its descriptor open until all have theirs: it reads their verdicts.
    store.set(f"verdict/{member}", verdict)
    verdicts = store.multi_get([f"verdict/{other}" for other in range(size)])
    failures = [f"member {i}: {v.decode()}" for i, v in enumerate(verdicts) if v.decode() != _OK]
    if not failures:
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    warn("; ".join(failures))
    return -1


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _place(descriptor: int) -> str:
    return f"{_boot()} {os.getpid()} {descriptor} {os.fstat(descriptor).st_ino}"


def _open(place: str) -> int:
    if not place:
        raise FabricError("there is nothing to open")
    boot, pid, number, inode = place.split()
    if boot != _boot():
        raise FabricError("member 0 is on another machine")
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    # In another process namespace, the number may be that of another process.
    if os.fstat(descriptor).st_ino != int(inode):
        os.close(descriptor)
        raise FabricError(f"process {pid} of member 0 is another one here")
    return descriptor
