"""What the thread that opens cables anew does when it is asked to move one, or sees a slow one."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
from typing import TYPE_CHECKING, Any

import pytest
from support.backend.ranks import make_plan
from support.limits import limit_s

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.links.cable_keeper import CableKeeper
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.sockets import ServerPorts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.plan import Link

LIMIT_S = 20.0


class Session:
    """In place of a session: what becomes of cables is put into `events`."""

    def __init__(self) -> None:
        self.cables_event = os.eventfd(0, os.EFD_NONBLOCK)
        self.slow: list[int] = []
        self.in_use = True
        self.events: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.looks: queue.Queue[list[int]] = queue.Queue()  # what each look at speeds has found

    def lost_cables(self) -> list[int]:
        return []

    def slow_cables(self) -> list[int]:
        slow = self.slow
        self.looks.put(slow)
        return slow

    def begin_move(self, cable: int) -> bool:
        self.events.put(("begin", cable, self.in_use))
        return self.in_use

    def end_move(self, cable: int) -> None:
        self.events.put(("end", cable))

    def replace_cable(self, cable: int, fd: int, tls_key: bytes) -> None:
        with contextlib.closing(socket.socket(fileno=fd)) as connection:
            self.events.put(("replaced", cable, connection.getsockname()[1]))


class Watched:
    """Source ports of links, and their watcher."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ports: tuple[int, ...] = ()

    def ports_of(self, link: Link) -> Sequence[int]:
        return self.ports

    def limit_gbps(self, link: Link) -> float | None:
        return None

    def taken(self, link: Link, port: int, refused: Sequence[int]) -> None:
        self._session.events.put(("taken", port, tuple(refused)))

    def moved(self, link: Link) -> None:
        self._session.events.put(("moved", link))

    def degraded(self, link: Link, why: str) -> None:
        self._session.events.put(("degraded", link))


class Keeping:
    """Server 0 of a ring of two, with its keeper. Server 1 answers if it is there."""

    def __init__(self, stack: contextlib.ExitStack, *, answers: bool) -> None:
        plan = make_plan(2, 1, ports="simplex")
        fabric = stack.enter_context(contextlib.closing(LoopbackFabric(job=os.getpid())))
        wiring = fabric.connect(plan)
        identity = Identity(b"0" * 32, wiring.plan_digest)
        self.session = Session()
        stack.callback(os.close, self.session.cables_event)
        self.watched = Watched(self.session)
        near = stack.enter_context(ServerPorts(plan, wiring, 0, {}, self.watched))
        near.listen()
        (self.link,) = near.outgoing
        self.address = wiring.by_port()[0, self.link.source_port].address
        self.keeper = CableKeeper(identity, near, plan, self.session, watcher=self.watched)
        stack.callback(self.keeper.close)
        self._far = None
        if answers:
            far = stack.enter_context(ServerPorts(plan, wiring, 1, {}))
            far.listen()
            self._far = stack.enter_context(Handshakes(identity))
            far.expect(self._far)

    def next(self) -> tuple[Any, ...]:
        while self._far is not None and self.session.events.empty():
            for outcome in self._far.poll(0.05):
                assert outcome.connection is not None, outcome.error
                outcome.connection.close()
        return self.session.events.get(timeout=limit_s(LIMIT_S))

    def move(self, *ports: int) -> None:
        self.watched.ports = ports
        self.keeper.move(self.link)


@pytest.fixture
def keeping(request: pytest.FixtureRequest) -> Iterator[Keeping]:
    with contextlib.ExitStack() as stack:
        yield Keeping(stack, answers=getattr(request, "param", True))


def test_a_moved_link_leaves_from_the_port_that_is_asked_for(keeping: Keeping) -> None:
    keeping.move(31010)
    assert keeping.next() == ("begin", 0, True)
    assert keeping.next() == ("taken", 31010, ())
    assert keeping.next() == ("replaced", 0, 31010)
    assert keeping.next() == ("moved", keeping.link)


def test_ports_in_use_are_passed_over_and_the_kernel_chooses_where_all_are(
    keeping: Keeping,
) -> None:
    with (
        socket.create_server((keeping.address, 31011)),
        socket.create_server((keeping.address, 31012)),
    ):
        keeping.move(31011, 31012, 31013)
        assert keeping.next()[0] == "begin"
        assert keeping.next() == ("taken", 31013, (31011, 31012))
        assert [keeping.next()[0] for _ in range(2)] == ["replaced", "moved"]
        keeping.move(31011, 31012)
        assert keeping.next()[0] == "begin"
        _, port, refused = keeping.next()
        assert refused == (31011, 31012)
        assert port not in (31011, 31012, 31013)


@pytest.mark.parametrize("keeping", [False], indirect=True)
def test_a_move_that_fails_is_ended_and_its_path_degraded(keeping: Keeping) -> None:
    keeping.move(31014)
    assert [keeping.next()[0] for _ in range(2)] == ["begin", "taken"]
    assert keeping.next() == ("end", 0)
    assert keeping.next() == ("degraded", keeping.link)


def test_a_link_that_is_about_to_be_in_use_moves_when_it_is(keeping: Keeping) -> None:
    keeping.session.in_use = False
    keeping.move()
    assert keeping.next() == ("begin", 0, False)
    keeping.session.in_use = True
    while (event := keeping.next()) == ("begin", 0, False):
        pass
    assert event == ("begin", 0, True)
    assert [keeping.next()[0] for _ in range(3)] == ["taken", "replaced", "moved"]


def test_a_slow_cable_is_reported_once_until_it_is_fast(keeping: Keeping) -> None:
    for slow in ([0], [0, 7], [], [0]):  # cable 7 is none that this server connects
        keeping.session.slow = slow
        os.eventfd_write(keeping.session.cables_event, 1)
        while keeping.session.looks.get(timeout=limit_s(LIMIT_S)) != slow:
            pass
    for _ in range(2):
        assert keeping.next() == ("degraded", keeping.link)
    assert keeping.session.events.empty()
