"""Only ends that know the job's secret get in; all others cost nothing but their connection."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.links import handshake
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Ends, Identity, Kind, wire_version, without_encryption
from torch_topoopt.links.proof import Expected, Outcome
from torch_topoopt.links.sockets import listen, start_connecting
from torch_topoopt.links.wiring import PortAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Peer = Callable[[socket.socket], None]

LIMIT_S = limit_s(20.0)
OURS = Identity(bytes(range(32)), "0123456789abcdef")
LINK = Ends(Kind.LINK, 0, 1, 2, 3)
NAME = "link from server 0 port 1 to server 2 port 3"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as found:
        yield found


def dial(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), LIMIT_S)


def connect(listener: socket.socket, identity: Identity = OURS, ends: Ends = LINK) -> Any:
    """The proven connection, or the FabricError."""
    with Handshakes(identity) as handshakes:
        handshakes.dial(ends, NAME, dial(listener))
        return finished(handshakes)


def accept(listener: socket.socket, seconds: float = LIMIT_S) -> tuple[Any, int]:
    """The same of the end that accepts LINK, and the number of strangers."""
    with Handshakes(OURS) as handshakes:
        expected = Expected(listener, {LINK: NAME}, lambda connection, ends: None)
        handshakes.expect(expected)
        return finished(handshakes, seconds), handshakes.unauthenticated


def finished(handshakes: Handshakes, seconds: float = LIMIT_S) -> Any:
    try:
        handshakes.run(time.monotonic() + seconds)
    except FabricError as error:
        return error
    (connection,) = handshakes.take().values()
    return connection


def both(listener: socket.socket, **others: Any) -> tuple[Any, Any, int]:
    """(connecting end, accepting end, strangers); `others` are those of connect()."""
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listener)
        connecting = connect(listener, **others)
        return connecting, *accepting.result(LIMIT_S)


def test_both_ends_get_in_and_what_follows_is_left_alone(listener: socket.socket) -> None:
    near, far, strangers = both(listener)
    assert strangers == 0
    with near, far:
        near.sendall(b"to")
        far.sendall(b"fro")
        far.settimeout(LIMIT_S)
        near.settimeout(LIMIT_S)
        assert (far.recv(10), near.recv(10)) == (b"to", b"fro")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"plan_digest": "fedcba9876543210"}, "plan fedcba9876543210 connects to plan 0123456789a"),
        ({"version": "9.9/1/big"}, f"torch_topoopt 9.9/1/big connects to {OURS.version}"),
    ],
)
def test_an_end_of_the_job_with_another_plan_or_version_is_an_error_at_both(
    listener: socket.socket, change: dict[str, str], wrong: str
) -> None:
    near, far, _ = both(listener, identity=dataclasses.replace(OURS, **change))
    assert str(far).startswith(f"{NAME}: {wrong}")
    assert str(near).startswith(f"{NAME}: the other end says: {wrong}")


def test_a_crossed_cable_is_an_error_at_both_ends(listener: socket.socket) -> None:
    near, far, _ = both(listener, ends=Ends(Kind.LINK, 4, 0, 5, 0))
    wrong = "server 4 port 0 to server 5 port 0 is not expected here"
    assert str(far) == f"{NAME}: {wrong}"
    assert str(near) == f"{NAME}: the other end says: {wrong}"


def test_another_secret_is_another_job(listener: socket.socket) -> None:
    """The connecting end knows at once; the accepting one goes on waiting for the right one."""
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listener)
        refused = connect(listener, Identity(bytes(32), OURS.plan_digest))
        near = connect(listener)
        far, strangers = accepting.result(LIMIT_S)
    with near, far:
        assert str(refused) == f"{NAME}: the other end is in another job, or not torch_topoopt"
        assert strangers == 1


def answered(peer: Peer, listener: socket.socket) -> Any:
    """The error of an end whose peer is no rank, which accepts its connection."""

    def run() -> None:
        connection = listener.accept()[0]
        with connection, contextlib.suppress(OSError):
            connection.settimeout(LIMIT_S)
            peer(connection)

    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(run)
        outcome = connect(listener)
        answering.result(LIMIT_S)
    return outcome


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1000):
        connection.sendall(data)


@pytest.mark.parametrize(
    "peer",
    [
        echo,
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 20),
        lambda connection: connection.sendall(bytes(64)),
        lambda connection: connection.recv(1000),
    ],
    ids=["its own words", "http", "zeros", "hangs up"],
)
def test_an_end_that_proves_nothing_is_not_believed(listener: socket.socket, peer: Peer) -> None:
    outcome = answered(peer, listener)
    assert isinstance(outcome, FabricError)
    assert str(outcome).startswith(NAME)
    assert "another job" in str(outcome)


def test_strangers_are_closed_and_counted(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, chatty, half a greeting, a forged proof: none delays the right end."""
    forged = OURS.greeting(LINK)
    with contextlib.ExitStack() as stack:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n" * 20, forged[:50], forged + bytes(32)):
            stranger = stack.enter_context(dial(listener))
            stranger.sendall(said)
        monkeypatch.setattr(handshake, "_STRANGER_S", 3600.0)  # the silent ones stay
        near, far, strangers = both(listener)
        with near, far:
            assert strangers == 2, "the two that said enough to be judged"


def test_a_recorded_handshake_cannot_be_replayed(listener: socket.socket) -> None:
    """An honest end's messages, replayed, prove nothing: the nonce is another."""
    with listen("127.0.0.1", 0) as front:
        recorded = bytearray()

        def forward() -> None:
            with front.accept()[0] as near, dial(listener) as far:
                pump = threading.Thread(target=copy, args=(far, near, bytearray()))
                pump.start()
                copy(near, far, recorded)
                pump.join(LIMIT_S)

        with ThreadPoolExecutor(2) as pool:
            accepting = pool.submit(accept, listener)
            forwarding = pool.submit(forward)
            near = connect(front)
            far, _ = accepting.result(LIMIT_S)
            near.close()
            far.close()
            forwarding.result(LIMIT_S)
        with dial(listener) as replaying:
            replaying.sendall(recorded)
            outcome, strangers = accept(listener, 0.2)
    assert strangers == 1
    assert str(outcome) == f"{NAME}: no answer in time (1 unauthenticated peers were closed)"


def copy(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1000):
            kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_slow_stranger_has_a_limit_in_total(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte that it sends would restart a limit for one read."""
    monkeypatch.setattr(handshake, "_STRANGER_S", 0.1)
    with dial(listener) as stranger:
        stopped = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stopped.wait(0.01):
                    stranger.sendall(b"T")

        dripping = threading.Thread(target=drip)
        dripping.start()
        _, strangers = accept(listener, 0.5)
        stopped.set()
        dripping.join(LIMIT_S)
    assert strangers == 1


def test_many_silent_strangers_are_kept_to_a_number(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_MOST_STRANGERS", 8)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(dial(listener))
        near, far, strangers = both(listener)
        with near, far:
            assert strangers >= 50 - 8 - 2


def test_a_stranger_may_speak_at_the_moment_when_it_is_closed_for_another(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at all sockets finds its words, and before it a new connection in its place."""
    monkeypatch.setattr(handshake, "_MOST_STRANGERS", 0)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(dial(listener)) for _ in range(2)]
        with Handshakes(OURS) as handshakes:
            handshakes.expect(Expected(listener, {LINK: NAME}, lambda connection, ends: None))
            assert "no answer" in str(finished(handshakes, 0.05))  # both are accepted
            for _ in range(4):
                stack.enter_context(dial(listener))
            for stranger in first:
                stranger.sendall(b"GET / HTTP/1.1")
            assert "no answer" in str(finished(handshakes, 0.05))
            assert handshakes.unauthenticated >= 2


@pytest.fixture
def acceptor(listener: socket.socket) -> Iterator[Handshakes]:
    """One that goes on, as while a job runs, and expects LINK."""
    with Handshakes(OURS) as handshakes:
        handshakes.expect(Expected(listener, {LINK: NAME}, lambda connection, ends: None))
        yield handshakes


def polled(handshakes: Handshakes) -> Outcome:
    """The next outcome."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for outcome in handshakes.poll(0.1):
            return outcome
    raise AssertionError("no outcome in time")


def test_a_link_may_be_taken_back_again_and_again(
    listener: socket.socket, acceptor: Handshakes
) -> None:
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, listener)
            outcome = polled(acceptor)
            near = connecting.result(LIMIT_S)
        assert (outcome.ends, outcome.accepted, outcome.error) == (LINK, True, "")
        assert outcome.connection is not None
        near.close()
        outcome.connection.close()


def test_an_end_that_is_not_right_fails_by_itself_while_the_job_runs(
    listener: socket.socket, acceptor: Handshakes
) -> None:
    other = dataclasses.replace(OURS, plan_digest="fedcba9876543210")
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, listener, other)
        outcome = polled(acceptor)
        assert "the other end says: plan" in str(connecting.result(LIMIT_S))
        assert outcome.connection is None
        assert outcome.error.startswith(f"{NAME}: plan fedcba")
        connecting = pool.submit(connect, listener)
        right = polled(acceptor).connection
        assert right is not None
        right.close()
        connecting.result(LIMIT_S).close()


def test_dialled_ends_that_fail_are_outcomes_of_their_own(listener: socket.socket) -> None:
    near = PortAddress(0, 1, "127.0.0.1", None)
    with listen("127.0.0.1", 0) as gone:
        nobody = gone.getsockname()[1]
    with Handshakes(OURS) as handshakes:
        handshakes.dial(LINK, NAME, start_connecting(near, near, nobody))
        refused = polled(handshakes)
        silent = start_connecting(near, near, listener.getsockname()[1])
        handshakes.dial(LINK, NAME, silent, timeout_s=0.01)
        late = polled(handshakes)
    assert refused.error == f"{NAME}: Connection refused"
    assert late.error.startswith(f"{NAME}: no answer in time")
    assert (refused.accepted, late.accepted) == (False, False)
    assert silent.fileno() < 0


def test_a_call_is_repeated_while_the_network_has_no_way_there(
    listener: socket.socket, acceptor: Handshakes
) -> None:
    near = PortAddress(0, 1, "127.0.0.1", None)
    unreached = [errno.EHOSTUNREACH, errno.ENETUNREACH]

    def connect_at_last() -> socket.socket:
        if unreached:
            raise OSError(unreached.pop(), "unreached")
        return start_connecting(near, near, listener.getsockname()[1])

    with Handshakes(OURS) as handshakes, ThreadPoolExecutor(1) as pool:
        handshakes.call(LINK, NAME, connect_at_last)
        accepted = pool.submit(polled, acceptor)
        handshakes.run(time.monotonic() + LIMIT_S)
        outcome = accepted.result(LIMIT_S)
        assert outcome.connection is not None
        outcome.connection.close()


@pytest.mark.parametrize(
    ("number", "most"), [(errno.ECONNREFUSED, 1), (errno.EHOSTUNREACH, sys.maxsize)]
)
def test_a_call_that_fails_otherwise_or_for_long_is_an_error(
    number: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_UNREACHED_S", 0.3)
    monkeypatch.setattr(handshake, "_REDIAL_S", 0.01)
    attempts = []

    def connect_never() -> socket.socket:
        attempts.append(number)
        raise OSError(number, os.strerror(number))

    with Handshakes(OURS) as handshakes:
        handshakes.call(LINK, NAME, connect_never)
        with refused(FabricError, NAME, os.strerror(number)):
            handshakes.run(time.monotonic() + LIMIT_S)
    assert 1 <= len(attempts) <= most
    assert most == 1 or len(attempts) > 1


def test_a_wait_ends_when_another_thread_wakes_it(acceptor: Handshakes) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acceptor.poll, 10 * LIMIT_S)
        acceptor.wake()
        assert waiting.result(LIMIT_S) == []


def test_what_is_withdrawn_is_neither_accepted_nor_kept(listener: socket.socket) -> None:
    expected = Expected(listener, {LINK: NAME}, lambda connection, ends: None)
    with Handshakes(OURS) as handshakes, dial(listener) as early:
        handshakes.expect(expected)
        handshakes.poll(LIMIT_S)
        handshakes.withdraw(expected)
        assert early.recv(1) == b"", "closed, though its time is not over"
        with dial(listener):
            assert handshakes.poll(0.05) == []
            assert handshakes.unauthenticated == 0


def test_a_crowd_has_one_line_each_at_first_and_then_a_number(
    listener: socket.socket, acceptor: Handshakes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        with dial(listener) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n" * 20)
            before = acceptor.unauthenticated
            while acceptor.unauthenticated == before:
                acceptor.poll(0.1)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert all(named(line, "greeting", "b'GET / HT'") for line in lines)
    acceptor._unauthenticated.report()
    assert caplog.records[-1].getMessage() == "closed 45 other connections that proved nothing"


def test_one_address_does_not_drive_out_another(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_MOST_STRANGERS", 4)
    expected = Expected(listener, {LINK: NAME}, lambda connection, ends: None)
    with Handshakes(OURS) as handshakes, contextlib.ExitStack() as stack:
        handshakes.expect(expected)
        first = stack.enter_context(socket.socket())
        first.bind(("127.0.0.2", 0))
        first.connect(listener.getsockname())
        for _ in range(20):
            stack.enter_context(dial(listener))
        while handshakes.unauthenticated < 15:
            handshakes.poll(0.1)
        first.setblocking(False)
        with pytest.raises(BlockingIOError):
            first.recv(1)


def test_a_process_without_descriptors_goes_on_later(
    acceptor: Handshakes, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a job runs; at its start there is no later."""

    def full(self: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(handshake, "_NO_FILES_PAUSE_S", 0.01)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, listener)
        with monkeypatch.context() as without:
            without.setattr(socket.socket, "accept", full)
            assert acceptor.poll(LIMIT_S) == []
        connection = polled(acceptor).connection
        assert connection is not None
        connection.close()
        connecting.result(LIMIT_S).close()


def test_each_connection_has_a_key_that_its_ends_alone_know(listener: socket.socket) -> None:
    keys = []
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool, Handshakes(OURS) as near, Handshakes(OURS) as far:
            far.expect(Expected(listener, {LINK: NAME}, lambda connection, ends: None))
            accepting = pool.submit(far.run, time.monotonic() + LIMIT_S)
            near.dial(LINK, NAME, dial(listener))
            near.run(time.monotonic() + LIMIT_S)
            accepting.result(LIMIT_S)
            assert near.keys() == far.keys()
            keys.append(near.keys()[LINK])
    assert keys[0] != keys[1]
    assert {len(key) for key in keys} == {32}


def test_the_version_covers_what_both_ends_must_have() -> None:
    version = wire_version("0123456789ab")
    assert re.fullmatch(r"\S+ \(protocol \d+, (little|big)-endian, build 0123456789ab\)", version)
    encrypted = wire_version("0123456789ab", encrypted=True)
    assert encrypted == version.replace("ab)", "ab, TLS 1.3)")
    assert without_encryption(encrypted) == version
    with refused(ValueError, 96):
        Identity(OURS.secret, OURS.plan_digest, "9" * 97)


def test_the_secret_is_shown_nowhere() -> None:
    assert OURS.secret.hex() not in repr(OURS)
    assert str(OURS.secret) not in repr(OURS)
    assert OURS.secret not in OURS.greeting(LINK)
