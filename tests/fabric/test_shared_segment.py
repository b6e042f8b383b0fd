"""The members of a group on one server get the same memory, or all of them none."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from torch_topoopt.fabric.shared_segment import open_segment

LIMIT_S = 20


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
    """Publishes another place of the segment to a member."""

    def __init__(self, position: int, value: str) -> None:
        super().__init__()
        self._position = position
        self._value = value

    def get(self, key: str) -> bytes:
        fields = super().get(key).decode().split(" ")
        if key == "segment":
            fields[self._position] = self._value
        return " ".join(fields).encode()


def open_all(store: MemoryStore, size: int) -> tuple[list[int], list[list[str]]]:
    warnings: list[list[str]] = [[] for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        opened = [
            pool.submit(open_segment, store, member, size, 1 << 16, warnings[member].append)
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


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, "another-boot", "member 0 is on another machine"),
        (1, "999999999", "No such file or directory"),
        (3, "1", "member 0 is another one here"),
    ],
)
def test_if_one_member_cannot_open_it_none_uses_it_and_all_say_why(position, value, reason):
    before = len(os.listdir("/proc/self/fd"))
    descriptors, warnings = open_all(LyingStore(position, value), 2)
    assert descriptors == [-1, -1]
    assert all(len(texts) == 1 and reason in texts[0] for texts in warnings), warnings
    assert warnings[0] == warnings[1]
    assert len(os.listdir("/proc/self/fd")) == before
