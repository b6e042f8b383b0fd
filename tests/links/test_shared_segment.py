"""The members of a group on one server get the same memory, or all of them none."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.launcher import wait_for
from support.limits import limit_s, slowness

from torch_topoopt.links import shared_segment
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.local_links import LocalPort
from torch_topoopt.links.shared_segment import open_segment

LIMIT_S = limit_s(20.0)
OURS = Identity(bytes(range(32)), "0123456789abcdef")


class MemoryStore:
    """Keys and values that threads share; `get` waits."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, LIMIT_S), key
            return self.values[key].encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]


class LyingStore(MemoryStore):
    """Publishes another name of the first member's port."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def get(self, key: str) -> bytes:
        found = super().get(key)
        return self._name.encode() if key == "segment" else found


def descriptors_open() -> int:
    """Of this process; those of tests before this one may be closed meanwhile."""
    return len(os.listdir("/proc/self/fd"))


def open_all(store: MemoryStore, size: int) -> tuple[list[int], list[list[str]]]:
    warnings: list[list[str]] = [[] for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        opened = [
            pool.submit(
                *(open_segment, store, OURS, range(7, 7 + size)),
                *(member, 1 << 16, warnings[member].append),
            )
            for member in range(size)
        ]
        return [future.result(LIMIT_S) for future in opened], warnings


def test_all_members_see_what_one_of_them_writes():
    descriptors, warnings = open_all(MemoryStore(), 3)
    try:
        assert len({os.fstat(descriptor).st_ino for descriptor in descriptors}) == 1
        assert os.fstat(descriptors[0]).st_size == 1 << 16
        os.pwrite(descriptors[2], b"to all", 1000)
        assert [os.pread(d, 6, 1000) for d in descriptors] == [b"to all"] * 3
        assert warnings == [[], [], []]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_nobody_can_make_it_shorter_or_longer() -> None:
    descriptors, _ = open_all(MemoryStore(), 2)
    for descriptor in descriptors:
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        os.close(descriptor)


def test_if_one_member_cannot_open_it_none_uses_it_and_all_say_why() -> None:
    before = descriptors_open()
    descriptors, warnings = open_all(LyingStore("torch_topoopt/rank/missing"), 2)
    assert descriptors == [-1, -1]
    reason = "member 1: connection from rank 8 to rank 7 of the same server: Connection refused"
    assert all(len(texts) == 1 and texts[0].startswith(reason) for texts in warnings), warnings
    assert warnings[0] == warnings[1]
    wait_for(lambda: descriptors_open() <= before, "the end of all descriptors")


def test_a_member_takes_no_memory_from_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have been changed: the name leads to a port of the same job."""
    monkeypatch.setattr(shared_segment, "_LIMIT_S", 0.5 * slowness())
    store = MemoryStore()
    with ThreadPoolExecutor(2) as pool:
        opened = [
            pool.submit(open_segment, store, OURS.derived(group), (7, 8), i, 1 << 16, print)
            for i, group in enumerate(("one", "other"))
        ]
        assert [future.result(LIMIT_S) for future in opened] == [-1, -1]
    assert "in another job" in store.values["shared/1"]


@pytest.mark.parametrize("passed", ["nothing", "not sealed", "another size"])
def test_a_member_takes_only_what_is_sealed_and_of_the_right_size(passed: str) -> None:
    def first() -> None:
        with LocalPort(7) as port, Handshakes(OURS) as handshakes:
            port.expect([8], handshakes)
            store.set("segment", port.name)
            store.set("reached/0", "ok")
            handshakes.run(time.monotonic() + LIMIT_S)
            (connection,) = handshakes.take().values()
            with connection:
                if passed == "nothing":
                    connection.send(b"!")
                else:
                    descriptor = shared_segment._make(1 << 10)
                    if passed == "not sealed":
                        os.close(descriptor)
                        descriptor = os.memfd_create("test")
                        os.ftruncate(descriptor, 1 << 16)
                    socket.send_fds(connection, [b"!"], [descriptor])
                    os.close(descriptor)
        store.set("shared/0", "ok")

    store = MemoryStore()
    before = descriptors_open()
    with ThreadPoolExecutor(2) as pool:
        passing = pool.submit(first)
        warnings: list[str] = []
        arguments = (store, OURS, (7, 8), 1, 1 << 16, warnings.append)
        assert pool.submit(open_segment, *arguments).result(LIMIT_S) == -1
        passing.result(LIMIT_S)
    assert "member 1: member 0 passed" in warnings[0]
    wait_for(lambda: descriptors_open() <= before, "the end of all descriptors")
