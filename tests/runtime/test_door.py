"""Hosts come to the door of a running job, and server 0 takes them in, refuses or forgets them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from support.limits import limit_s
from support.refusals import refused
from torch.distributed import TCPStore

from torch_topoopt.launcher.rendezvous import door
from torch_topoopt.launcher.rendezvous.door import Door
from torch_topoopt.links.errors import FabricError

FACTS = {"version": "1"}


class _Host:
    """A host that comes, and what it is answered."""

    def __init__(self, port: int, server: int, wait_s: float = 60.0) -> None:
        limit = timedelta(seconds=limit_s(60))
        self.door = Door(TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=limit), "gone")
        self.server = server
        self.number = self.door.come(server, FACTS)
        self.answer: Any = None
        self._wait_s = wait_s
        self._thread = threading.Thread(target=self._await, daemon=True)

    def wait(self) -> None:
        self._thread.start()

    def _await(self) -> None:
        deadline = time.monotonic() + limit_s(self._wait_s)
        try:
            self.answer = self.door.await_answer(self.server, self.number, deadline)
        except FabricError as error:
            self.answer = str(error)

    def answered(self) -> Any:
        self._thread.join(limit_s(60))
        return self.answer


@pytest.fixture
def store() -> TCPStore:
    limit = timedelta(seconds=limit_s(60))
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)


def test_a_host_that_waits_is_taken_in_with_a_value(store: TCPStore) -> None:
    leader = Door(store, "gone")
    assert leader.waiting([1, 2]) == {}
    host = _Host(store.port, 2)
    host.wait()
    assert leader.waiting([1, 2]) == {2: FACTS}
    assert leader.still_waiting([2]) == [2]
    leader.take_in([2], [1, [0, 2]])
    assert host.answered() == [1, [0, 2]]
    assert leader.waiting([1, 2]) == {}


def test_a_host_that_has_gone_is_forgotten_until_it_comes_again(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Door(store, "gone")
    first = _Host(store.port, 1)
    with monkeypatch.context() as patch:
        patch.setattr(door, "_ALIVE_S", 0.3)
        assert leader.still_waiting([1]) == []
    assert leader.waiting([1]) == {}
    second = _Host(store.port, 1)
    second.wait()
    assert second.number == first.number + 1
    assert leader.waiting([1]) == {1: FACTS}
    assert leader.still_waiting([1]) == [1]
    leader.refuse([1], "another cluster file")
    assert second.answered() == "another cluster file"


def test_a_host_that_waits_for_too_long_knows_the_reason(store: TCPStore) -> None:
    leader = Door(store, "gone")
    host = _Host(store.port, 1)
    leader.postpone([1], "no cable")
    with refused(FabricError, "no cable"):
        host.door.await_answer(1, host.number, time.monotonic() + 0.5)
    assert leader.waiting([1]) == {1: FACTS}
