"""A lost link is opened between spare ports once it stays lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.backend.ranks import make_plan
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.environment import SPARE_VARIABLE
from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.links.cable_keeper import CableKeeper, spare_limit_s
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.sockets import ServerPorts
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.links.identity import Ends
    from torch_topoopt.links.sockets import PortPair
    from torch_topoopt.plan import Plan

LIMIT_S = 20.0
PLANNED, SPARE = 0, 7
PAIRS = [(PLANNED, PLANNED), (SPARE, SPARE), (SPARE, PLANNED), (PLANNED, SPARE)]


class Session:
    """In place of a session, whose only cable is lost until it is replaced."""

    def __init__(self) -> None:
        self.cables_event = os.eventfd(0, os.EFD_NONBLOCK)
        self.lost = [0]
        self.replaced: queue.Queue[str] = queue.Queue()  # the addresses at the other end

    def lost_cables(self) -> list[int]:
        return self.lost

    def slow_cables(self) -> list[int]:
        return []

    def begin_move(self, cable: int) -> bool:
        raise AssertionError("nothing moves a cable")

    def end_move(self, cable: int) -> None:
        raise AssertionError("nothing moves a cable")

    def replace_cable(self, cable: int, fd: int, tls_key: bytes) -> None:
        with contextlib.closing(socket.socket(fileno=fd)) as connection:
            self.lost = []
            self.replaced.put(connection.getpeername()[0])

    def lose(self) -> None:
        self.lost = [0]
        os.eventfd_write(self.cables_event, 1)


class RecordedPorts(ServerPorts):
    """Notes between which ports links are dialled. Without an `answer`, the network is down."""

    answers = False

    def dial(
        self, ends: Ends, handshakes: Handshakes, timeout_s: float, between: PortPair | None = None
    ) -> None:
        assert between is not None
        self.dialled.put((between[0].port, between[1].port))
        if not self.answers:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        super().dial(ends, handshakes, timeout_s, between)

    dialled: queue.Queue[tuple[int, int]]


def with_spares(wiring: Wiring) -> Wiring:
    spares = tuple(
        replace(port, port=SPARE, address=port.address.rpartition(".")[0] + ".99")
        for port in wiring.ports
    )
    return replace(wiring, spares=spares).validate()


class Lab:
    """Server 0 of a ring of two, whose link is lost."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.plan: Plan = make_plan(2, 1, ports="simplex")
        fabric = stack.enter_context(contextlib.closing(LoopbackFabric(job=os.getpid())))
        self.wiring = with_spares(fabric.connect(self.plan))
        self.identity = Identity(b"0" * 32, self.wiring.plan_digest)
        self.session = Session()
        stack.callback(os.close, self.session.cables_event)
        self.near = stack.enter_context(RecordedPorts(self.plan, self.wiring, 0, {}))
        self.near.dialled = queue.Queue()
        self._stack = stack

    def keep(self) -> None:
        keeper = CableKeeper(self.identity, self.near, self.plan, self.session)
        self._stack.callback(keeper.close)

    def dialled(self) -> Iterator[tuple[int, int]]:
        while True:
            yield self.near.dialled.get(timeout=limit_s(LIMIT_S))

    def answer_on_spare_port(self) -> Callable[[], str]:
        """Server 1 answers there alone; a function that returns where the link was opened."""
        moved = tuple(
            replace(port, tcp_port=self.wiring.tcp_port + 1) for port in self.wiring.ports
        )
        spares = tuple(replace(s, tcp_port=self.wiring.tcp_port) for s in self.wiring.spares)
        elsewhere = replace(self.wiring, ports=moved, spares=spares)
        far = self._stack.enter_context(ServerPorts(self.plan, elsewhere, 1, {}))
        far.listen()
        handshakes = self._stack.enter_context(Handshakes(self.identity))
        far.expect(handshakes)
        self.near.answers = True

        def opened() -> str:
            while self.session.replaced.empty():
                for outcome in handshakes.poll(0.05):
                    assert outcome.connection is not None, outcome.error
                    outcome.connection.close()
            return self.session.replaced.get()

        return opened


@pytest.fixture
def lab() -> Iterator[Lab]:
    with contextlib.ExitStack() as stack:
        yield Lab(stack)


def test_all_pairs_of_ports_are_tried_in_turn_after_the_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, "1")
    lab.keep()
    tried = lab.dialled()
    first = itertools.takewhile(lambda pair: pair == PAIRS[0], tried)
    assert len(list(first)) >= 1, "a short loss ends where the link was"
    assert list(itertools.islice(tried, 6)) == [*PAIRS[2:], *PAIRS]


def test_before_the_limit_only_the_planned_ports_are_tried(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, "3600")
    lab.keep()
    assert set(itertools.islice(lab.dialled(), 5)) == {PAIRS[0]}


def test_a_link_is_opened_where_the_other_end_answers_and_returns_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, "1")
    opened = lab.answer_on_spare_port()
    lab.keep()
    spare = {port.server: port.address for port in lab.wiring.spares}
    assert opened() == spare[1]
    while not lab.near.dialled.empty():
        lab.near.dialled.get()
    lab.session.lose()
    assert opened() == spare[1]
    assert next(lab.dialled())[1] == SPARE, "before the limit, too"


@pytest.mark.parametrize("text", ["0.5", "soon", "nan", "1e9"])
def test_the_limit_is_a_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, text)
    with refused(FabricError, SPARE_VARIABLE, text, "1..86400"):
        spare_limit_s()


def test_spare_ports_have_numbers_and_addresses_of_their_own(lab: Lab) -> None:
    first = lab.wiring.ports[0]
    for spare in (
        replace(first, address="127.1.1.1"),  # its number
        PortAddress(1 - first.server, SPARE, first.address, None),  # its address
    ):
        with refused(DocumentError, "spares[0]", "ports[0]"):
            replace(lab.wiring, spares=(spare,)).validate()
