"""The memory that the ranks of one group share, when all of them are on one server.

It is an anonymous file: the first member creates it, seals its size, and passes its descriptor over
authenticated AF_UNIX connections to the other members. The kernel frees it with the last process
that has it, even after a kill.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.local_links import LocalPort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.links.identity import Identity

# no process can truncate memory that another one uses
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LIMIT_S = 30.0  # for steps that are quick once all members are present
_OK = "ok"


class KeyValueStore(Protocol):
    """Keys and values shared by the members; reads wait for their keys."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


def open_segment(
    store: KeyValueStore,
    identity: Identity,
    ranks: Sequence[int],
    member: int,
    size_bytes: int,
    warn: Callable[[str], None],
) -> int:
    """A descriptor of the group's segment, or -1 on all members if one of them cannot open it.

    In that case all of them `warn` about the same reasons. `ranks` are the members' ranks;
    `identity` is for this group alone (Identity.derived).
    """
    descriptors: list[int] = []

    def reach() -> None:
        if member == 0:
            port.expect(ranks[1:], handshakes)
            descriptors.append(_make(size_bytes))
        else:
            name = store.get("segment").decode("utf-8", "replace")
            port.connect({ranks[0]: name}, handshakes, time.monotonic() + _LIMIT_S)

    def share() -> None:
        handshakes.run(time.monotonic() + _LIMIT_S)
        for connection in port.taken(handshakes.take()).values():
            with connection:
                connection.settimeout(_LIMIT_S)
                if member == 0:
                    socket.send_fds(connection, [b"!"], descriptors)
                else:
                    descriptors.append(_receive(connection, size_bytes))

    with LocalPort(ranks[member]) as port, Handshakes(identity) as handshakes:
        if member == 0:
            store.set("segment", port.name)
        # all connect first, so that no member waits for one that cannot reach it
        failures = _all_do(store, "reached", member, len(ranks), reach)
        failures = failures or _all_do(store, "shared", member, len(ranks), share)
    if not failures:
        return descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    warn(failures)
    return -1


def _all_do(
    store: KeyValueStore, topic: str, member: int, size: int, act: Callable[[], None]
) -> str:
    """Runs this member's step, and returns the failures of all members; "" if there are none."""
    failure = _OK
    try:
        act()
    except (OSError, FabricError) as error:
        failure = str(error)
    store.set(f"{topic}/{member}", failure)
    texts = [text.decode() for text in store.multi_get([f"{topic}/{i}" for i in range(size)])]
    return "; ".join(f"member {i}: {text}" for i, text in enumerate(texts) if text != _OK)


def _make(size_bytes: int) -> int:
    descriptor = os.memfd_create("torch_topoopt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _receive(connection: socket.socket, size_bytes: int) -> int:
    """The descriptor from the first member; raises FabricError if it is not that of the segment."""
    room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    _, ancillary, _, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    if len(received) != 1:
        raise FabricError("member 0 passed no memory")
    (descriptor,) = received
    sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    if not sealed or os.fstat(descriptor).st_size != size_bytes:
        os.close(descriptor)
        raise FabricError("member 0 passed something that is not the memory to share")
    return descriptor
