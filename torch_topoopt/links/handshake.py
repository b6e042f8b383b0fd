"""Authenticates every connection of a job: both ends first prove that they know its secret.

proof.py has the messages.

An unauthenticated connection is closed and counted; it is no error of the job. A peer that knows
the secret but has another version, plan or link is an error at both ends, which names them. One
loop serves all connections, so none waits for another.

At the start, `Handshakes.run` authenticates all expected connections, or raises. While the job
runs, a thread may continue with `Handshakes.poll`, which returns an Outcome for every connection
that is proven or fails.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import StrangerError
from torch_topoopt.links.proof import Expected, Outcome, accepting, connecting, failed_call
from torch_topoopt.links.unauthenticated_peers import (
    UNAUTHENTICATED_S,
    Allowance,
    UnauthenticatedPeers,
    peer_credentials,
    to_close,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.links.identity import Ends, Identity
    from torch_topoopt.links.proof import Talk

log = logging.getLogger("torch_topoopt")

_STRANGER_S = UNAUTHENTICATED_S
# unproven connections beyond the expected ones; one more evicts one of them, and the rest wait in
# the listener's queue
_MOST_STRANGERS = 128
_CROWD, _CROWD_PER_S, _CROWD_PAUSE_S = 4096, 500, 0.05
_MOST_ACCEPTED = 32  # before the others are read from again
# retries: interfaces and neighbours that have just come up need a moment
_UNREACHED_S = 5.0
_REDIAL_S = 0.2
_NO_FILES_PAUSE_S = 1.0  # while this process has no free descriptor


class NoAnswerError(FabricError):
    """The other end sent nothing in time."""


@dataclass(frozen=True)
class _Call:
    """A connection that is dialled again while the network reports the target as unreachable."""

    ends: Ends
    name: str
    connect: Callable[[], socket.socket]
    until: float


@dataclass(eq=False)
class _Conversation:
    connection: socket.socket
    talk: Talk
    deadline: float
    peer: str = ""
    expected: Expected | None = None  # None: dialled
    wanted: int = 0
    data: bytearray = field(default_factory=bytearray)
    call: _Call | None = None


class Handshakes:
    """The unproven connections of one process; close() closes all that were not taken.

    One thread uses it; other threads may only call wake().
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._dialled: dict[Ends, str] = {}
        self._expected: list[Expected] = []
        # separate, because a process that verifies a link has both of its ends
        self._called: dict[Ends, socket.socket] = {}
        self._accepted: dict[Ends, socket.socket] = {}
        self._keys: dict[Ends, bytes] = {}
        self._outcomes: list[Outcome] = []
        self._unauthenticated = UnauthenticatedPeers()
        self._unproven: dict[_Conversation, None] = {}  # accepted; the oldest first
        self._calling: dict[_Conversation, None] = {}  # dialled
        self._calls: list[tuple[float, _Call]] = []  # to dial, and when
        self._crowd = Allowance(_CROWD, _CROWD_PER_S)
        self._paused: dict[int, tuple[float, Expected]] = {}  # listeners, until when
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._stack = ExitStack()

    def __enter__(self) -> Handshakes:
        return self

    def __exit__(self, *failure: object) -> None:
        for conversation in (*self._unproven, *self._calling):
            conversation.connection.close()
        for outcome in self._outcomes:
            if outcome.connection is not None:
                outcome.connection.close()
        self._selector.close()
        self._waker.close()
        self._woken.close()
        self._stack.close()

    @property
    def unauthenticated(self) -> int:
        """The number of refused connections so far."""
        return self._unauthenticated.count

    def dial(
        self,
        ends: Ends,
        name: str,
        connection: socket.socket,
        timeout_s: float = float("inf"),
        *,
        connected: bool = False,
    ) -> None:
        """Greets the other end of `connection`, and takes ownership of it.

        Unless it is `connected`, it may still be connecting (links.start_connecting).
        """
        self._dialled[ends] = name
        talk = connecting(self._identity, ends, name, connection)
        conversation = _Conversation(connection, talk, time.monotonic() + timeout_s)
        self._converse(conversation, connected=connected)

    def call(self, ends: Ends, name: str, connect: Callable[[], socket.socket]) -> None:
        """Like dial() with the result of `connect`, retried while the target is unreachable.

        An OSError of `connect` is an error of this connection.
        """
        self._dialled[ends] = name
        now = time.monotonic()
        self._calls.append((now, _Call(ends, name, connect, now + _UNREACHED_S)))

    def _converse(self, conversation: _Conversation, *, connected: bool = False) -> None:
        connection = conversation.connection
        connection.setblocking(False)
        self._calling[conversation] = None
        event = selectors.EVENT_READ if connected else selectors.EVENT_WRITE
        self._selector.register(connection, event, conversation)
        next(conversation.talk)
        if connected:
            self._step(conversation, b"")

    def _dial_what_is_due(self) -> None:
        now = time.monotonic()
        due = [call for at, call in self._calls if at <= now]
        self._calls = [(at, call) for at, call in self._calls if at > now]
        for call in due:
            try:
                connection = call.connect()
            except OSError as error:
                self._end_call(call, failed_call(call.ends, call.name, error))
            else:
                talk = connecting(self._identity, call.ends, call.name, connection)
                self._converse(_Conversation(connection, talk, float("inf"), call=call))

    def _end_call(self, call: _Call, outcome: Outcome) -> None:
        now = time.monotonic()
        if outcome.unreached and now < call.until:
            self._calls.append((now + _REDIAL_S, call))
        else:
            self._outcomes.append(outcome)

    def expect(self, expected: Expected) -> None:
        """Accepts connections of `expected.listener`, which the caller still owns."""
        expected.listener.setblocking(False)
        self._expected.append(expected)
        self._selector.register(expected.listener, selectors.EVENT_READ, expected)

    def withdraw(self, expected: Expected) -> None:
        """Reverts expect(); call it before closing `expected.listener`."""
        self._expected.remove(expected)
        if self._paused.pop(id(expected), None) is None:
            self._selector.unregister(expected.listener)
        for conversation in [c for c in self._unproven if c.expected is expected]:
            self._close(conversation)

    def run(self, deadline: float) -> None:
        """Returns when all dialled and expected connections are proven.

        Raises NoAnswerError, naming a connection, at `deadline` (monotonic seconds), and
        FabricError for a mismatch.
        """
        while missing := self._missing():
            left = deadline - time.monotonic()
            if left <= 0:
                count = self.unauthenticated
                turned_away = f" ({count} unauthenticated peers were closed)" if count else ""
                raise NoAnswerError(f"{missing[0]}: no answer in time{turned_away}")
            errors = [self._keep(outcome) for outcome in self._slice(left, patient=False)]
            if error := next(filter(None, errors), ""):
                raise FabricError(error)
        self._unauthenticated.report()

    def poll(self, timeout_s: float) -> list[Outcome]:
        """The new outcomes, after one wait of at most `timeout_s`, or until wake().

        A proven connection stays expected: its ends may connect again.
        """
        return self._slice(timeout_s, patient=True)

    def watch(self, descriptor: int) -> None:
        """Makes the eventfd `descriptor` end the wait of poll(), which resets it."""
        self._selector.register(descriptor, selectors.EVENT_READ, descriptor)

    def wake(self) -> None:
        """Ends the wait of poll(); from any thread."""
        with contextlib.suppress(OSError):  # already woken, or closed
            self._waker.send(b"!")

    def proven(self, ends: Ends) -> socket.socket:
        """The accepted connection for `ends`; this object still owns it."""
        return self._accepted[ends]

    def take(self) -> dict[Ends, socket.socket]:
        """Transfers ownership of the proven connections, in the order of their ends."""
        self._stack.pop_all()
        return dict(sorted((self._called | self._accepted).items()))

    def keys(self) -> dict[Ends, bytes]:
        """The secret key of each proven connection, known to its two ends alone."""
        return dict(self._keys)

    def _missing(self) -> list[str]:
        """Names of unproven connections, the dialled ones first."""
        names = [name for ends, name in self._dialled.items() if ends not in self._called]
        for expected in self._expected:
            names += [n for ends, n in expected.names.copy().items() if ends not in self._accepted]
        return names

    def _keep(self, outcome: Outcome) -> str:
        """Its error."""
        if outcome.connection is not None:
            proven = self._accepted if outcome.accepted else self._called
            proven[outcome.ends] = self._stack.enter_context(outcome.connection)
            self._keys[outcome.ends] = outcome.key
        return outcome.error

    def _slice(self, timeout_s: float, *, patient: bool) -> list[Outcome]:
        """The outcomes of one wait. Without `patient`, raises for errors that no retry can mend."""
        self._drop_late()
        self._dial_what_is_due()
        self._go_on_accepting()
        wait_s = 0.0 if self._outcomes else max(0.0, min(timeout_s, self._due_s()))
        for key, events in self._selector.select(None if wait_s == float("inf") else wait_s):
            if isinstance(key.data, Expected):
                self._accept(key.data, patient=patient)
            elif key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif isinstance(key.data, int):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(key.data)
            elif key.data.connection.fileno() >= 0:  # not evicted meanwhile
                if events & selectors.EVENT_WRITE:
                    self._connected(key.data)
                else:
                    self._read(key.data)
        self._drop_late()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _due_s(self) -> float:
        """Seconds until the next timer: a timeout, a retry or the end of a pause."""
        due = [until for until, _ in self._paused.values()]
        due += [conversation.deadline for conversation in itertools.islice(self._unproven, 1)]
        due += [conversation.deadline for conversation in self._calling]
        due += [at for at, _ in self._calls]
        return min(due, default=float("inf")) - time.monotonic()

    def _accept(self, expected: Expected, *, patient: bool) -> None:
        most = _MOST_STRANGERS + len(self._missing())
        for _ in range(_MOST_ACCEPTED):
            if len(self._unproven) > most:
                if not self._crowd.take():
                    self._pause(expected, _CROWD_PAUSE_S)
                    return
                self._make_room()
            try:
                connection, _ = expected.listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                if self._unproven:
                    self._make_room()
                    continue
                if not patient:
                    raise FabricError(f"accepting connections: {error.strerror}") from None
                log.warning("accepting connections: %s", error.strerror)
                self._pause(expected, _NO_FILES_PAUSE_S)
                return
            if expected.trusts(connection):
                self._listen_to(expected, connection)
            else:
                self._unauthenticated.closed(_peer(connection), "it is of another user")
                connection.close()

    def _listen_to(self, expected: Expected, connection: socket.socket) -> None:
        connection.setblocking(False)
        peer, deadline = _peer(connection), time.monotonic() + _STRANGER_S
        talk = accepting(self._identity, expected, self._accepted, connection)
        conversation = _Conversation(connection, talk, deadline, peer, expected, next(talk))
        self._unproven[conversation] = None
        self._selector.register(connection, selectors.EVENT_READ, conversation)

    def _make_room(self) -> None:
        oldest = to_close(self._unproven, lambda conversation: _host(conversation.peer))
        self._turn_away(oldest, "too many connections prove nothing")

    def _pause(self, expected: Expected, seconds: float) -> None:
        self._selector.unregister(expected.listener)
        self._paused[id(expected)] = (time.monotonic() + seconds, expected)

    def _go_on_accepting(self) -> None:
        now = time.monotonic()
        for key, (until, expected) in list(self._paused.items()):
            if until <= now:
                del self._paused[key]
                self._selector.register(expected.listener, selectors.EVENT_READ, expected)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for conversation in [c for c in self._unproven if c.deadline <= now]:
            self._turn_away(conversation, f"it proved nothing within {_STRANGER_S:g} s")
        for conversation in [c for c in self._calling if c.deadline <= now]:
            self._step(conversation, TimeoutError("no answer in time"))

    def _turn_away(self, conversation: _Conversation, why: str) -> None:
        self._close(conversation)
        self._unauthenticated.closed(conversation.peer, why)

    def _close(self, conversation: _Conversation) -> None:
        self._leave(conversation)
        conversation.connection.close()

    def _leave(self, conversation: _Conversation) -> None:
        self._selector.unregister(conversation.connection)
        self._unproven.pop(conversation, None)
        self._calling.pop(conversation, None)

    def _connected(self, conversation: _Conversation) -> None:
        """Handles the end of a connection attempt."""
        connection = conversation.connection
        failure = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._selector.modify(connection, selectors.EVENT_READ, conversation)
        if failure:
            self._step(conversation, OSError(failure, os.strerror(failure)))
        else:
            self._step(conversation, b"")

    def _read(self, conversation: _Conversation) -> None:
        """Reads no more than requested: later bytes are not part of the handshake."""
        data = conversation.data
        try:
            part = conversation.connection.recv(conversation.wanted - len(data))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the other end")
        except BlockingIOError:
            return
        except OSError as error:
            self._step(conversation, error)
            return
        data += part
        if len(data) == conversation.wanted:
            received = bytes(data)
            data.clear()
            self._step(conversation, received)

    def _step(self, conversation: _Conversation, received: bytes | OSError) -> None:
        """Advances the handshake, which may end with an outcome or an unauthenticated peer."""
        talk = conversation.talk
        try:
            if isinstance(received, OSError):
                conversation.wanted = talk.throw(received)
            else:
                conversation.wanted = talk.send(received)
        except StopIteration as end:
            self._leave(conversation)
            outcome: Outcome = end.value
            if outcome.connection is None:
                conversation.connection.close()
            else:
                conversation.connection.setblocking(True)
            if conversation.call is None:
                self._outcomes.append(outcome)
            else:
                self._end_call(conversation.call, outcome)
        except StrangerError as stranger:
            self._turn_away(conversation, str(stranger))
        except OSError as error:
            self._turn_away(conversation, f"{error.strerror or error} before its proof")


def _peer(connection: socket.socket) -> str:
    """The name of the other end in logs."""
    if connection.family == socket.AF_UNIX:
        pid, user = peer_credentials(connection)
        return f"process {pid} of user {user}"
    with contextlib.suppress(OSError):  # already closed
        return "{}:{}".format(*connection.getpeername()[:2])
    return "an address that is gone"


def _host(peer: str) -> str:
    return peer.rpartition(":")[0] or peer
