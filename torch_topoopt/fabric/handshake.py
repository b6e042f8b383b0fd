"""Both ends of every connection of a job prove that they know its secret, before anything else.

Three messages, and a verdict (C connects, A accepts; HMAC is HMAC-SHA256 under the job's key):

    C to A   greeting: magic, version, plan digest, ends of the connection, a fresh nonce
    A to C   a fresh nonce, HMAC("accept", greeting, nonce)
    C to A   HMAC("connect", greeting, nonce)
    A to C   what is wrong, as text; empty if nothing is

A connection that proves nothing is a stranger's: it is closed and counted, and no error of the job.
One that knows the secret and says another version, plan or link than is expected is an error at
both ends, which names them. All connections are proven by one loop, so none waits for another.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import hmac
import secrets
import selectors
import struct
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt import __version__
from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterable

    # Yields how many bytes it needs next, and is sent them.
    Talk = Generator[int, bytes, None]

SECRET_BYTES = 32
_MAGIC = b"TOPOOPT2"
# Raised with every change of what ranks send each other after the handshake (csrc/transport/frame.h
# and the schedules of csrc/plan).
_WIRE_VERSION = 1
_GREETING = struct.Struct("!8s32s16sB4i32s")
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_MOST_VERDICT_BYTES = 255

_STRANGER_S = 5.0  # that a connection may take for its proof
# Connections that may be unproven at once, beside those that are expected; the oldest is closed for
# one more.
_MOST_STRANGERS = 128
_MOST_ACCEPTED = 32  # before the others are read from again


class Kind(enum.IntEnum):
    """Kinds of connection: a link of the plan, of one server's ranks, or forwarded by kernels."""

    LINK = 0
    LOCAL = 1
    FORWARDED = 2


@dataclass(frozen=True, order=True)
class Ends:
    """The connection from `source` to `target`: servers and their ports, or ranks (ports: -1)."""

    kind: Kind
    source: int
    source_port: int
    target: int
    target_port: int

    def __str__(self) -> str:
        if self.kind is Kind.LINK:
            return (
                f"server {self.source} port {self.source_port} "
                f"to server {self.target} port {self.target_port}"
            )
        return f"rank {self.source} to rank {self.target}"


@dataclass(frozen=True)
class Identity:
    """Facts shared by all ends of a job. `secret` has SECRET_BYTES bytes; it is shown nowhere."""

    secret: bytes = field(repr=False)
    plan_digest: str
    version: str = f"{__version__}/{_WIRE_VERSION}/{sys.byteorder}"

    def greeting(self, ends: Ends) -> bytes:
        numbers = (ends.source, ends.source_port, ends.target, ends.target_port)
        version, digest = self.version.encode("ascii"), self.plan_digest.encode("ascii")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _GREETING.pack(_MAGIC, version, digest, ends.kind, *numbers, nonce)

    def proof(self, role: bytes, greeting: bytes, nonce: bytes) -> bytes:
        return hmac.digest(self.secret, role + greeting + nonce, "sha256")


class NoAnswerError(FabricError):
    """Nothing came from the other end in time."""


class _StrangerError(Exception):
    """The other end has not proven that it knows the secret."""


@dataclass(frozen=True)
class _Greeting:
    version: str
    plan_digest: str
    ends: Ends

    @staticmethod
    def read(data: bytes) -> _Greeting:
        magic, version, digest, kind, *numbers, _ = _GREETING.unpack(data)
        if magic != _MAGIC or kind not in list(Kind):
            raise _StrangerError
        return _Greeting(_text(version), _text(digest), Ends(Kind(kind), *numbers))


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("ascii", "replace")


@dataclass
class Expected:
    """Connections that are to come to one listener, each with its name in messages.

    `trusts` says whether one that has come may be of this job at all; `admit` prepares one that has
    proven that it is.
    """

    listener: socket.socket
    names: dict[Ends, str]
    admit: Callable[[socket.socket, Ends], None]
    trusts: Callable[[socket.socket], bool] = lambda connection: True


@dataclass
class _Conversation:
    connection: socket.socket
    talk: Talk
    wanted: int
    deadline: float
    name: str  # "" if it may be a stranger's
    data: bytearray = field(default_factory=bytearray)


class Handshakes:
    """All connections of one process that have yet to be proven; closes them unless taken."""

    def __init__(self, identity: Identity) -> None:
        self.strangers = 0  # turned away so far
        self._identity = identity
        self._dialled: dict[Ends, str] = {}
        self._expected: list[Expected] = []
        # Apart, for a process that verifies a link has both of its ends.
        self._called: dict[Ends, socket.socket] = {}
        self._accepted: dict[Ends, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()

    def __enter__(self) -> Handshakes:
        return self

    def __exit__(self, *failure: object) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Conversation):
                key.data.connection.close()
        self._selector.close()
        self._stack.close()

    def dial(self, ends: Ends, name: str, connection: socket.socket) -> None:
        """Greets the other end of `connection`, which belongs to this object from now on."""
        self._dialled[ends] = name
        self._begin(connection, self._connecting(ends, name, connection), float("inf"), name)

    def expect(self, expected: Expected) -> None:
        """Accepts connections of `expected.listener`, which remains the caller's, in run()."""
        expected.listener.setblocking(False)
        self._expected.append(expected)
        self._selector.register(expected.listener, selectors.EVENT_READ, expected)

    def run(self, deadline: float) -> None:
        """Until all that was dialled or is expected is proven.

        Raises NoAnswerError, naming a connection, at `deadline` (monotonic seconds), and
        FabricError for one that is not what it should be.
        """
        while missing := self._missing():
            now = time.monotonic()
            if now >= deadline:
                turned_away = f" ({self.strangers} strangers were closed)" if self.strangers else ""
                raise NoAnswerError(f"{missing[0]}: no answer in time{turned_away}")
            self._drop_late(now)
            for key, _ in self._selector.select(min(deadline - now, _STRANGER_S / 4)):
                if isinstance(key.data, Expected):
                    self._accept(key.data)
                elif key.data.connection.fileno() >= 0:  # not closed for a new one meanwhile
                    self._read(key.data)

    def proven(self, ends: Ends) -> socket.socket:
        """The connection that was accepted for `ends`; it remains this object's."""
        return self._accepted[ends]

    def take(self) -> dict[Ends, socket.socket]:
        """Hands the proven connections over, in the order of their ends."""
        self._stack.pop_all()
        return dict(sorted((self._called | self._accepted).items()))

    def _missing(self) -> list[str]:
        """Names of connections that are not proven: the dialled ones first."""
        names = [name for ends, name in self._dialled.items() if ends not in self._called]
        for expected in self._expected:
            names += [name for ends, name in expected.names.items() if ends not in self._accepted]
        return names

    def _begin(self, connection: socket.socket, talk: Talk, deadline: float, name: str) -> None:
        connection.setblocking(False)
        conversation = _Conversation(connection, talk, 0, deadline, name)
        self._selector.register(connection, selectors.EVENT_READ, conversation)
        self._step(conversation, lambda: next(talk))

    def _accept(self, expected: Expected) -> None:
        most = _MOST_STRANGERS + len(self._missing())
        for _ in range(_MOST_ACCEPTED):
            strangers = self._strangers()
            if len(strangers) > most:
                self._turn_away(strangers[0])
            try:
                connection, _ = expected.listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                if not strangers:
                    raise FabricError(f"accepting connections: {error.strerror}") from None
                self._turn_away(strangers[0])
                continue
            if not expected.trusts(connection):
                connection.close()
                self.strangers += 1
                continue
            talk = self._accepting(expected, connection)
            self._begin(connection, talk, time.monotonic() + _STRANGER_S, "")

    def _strangers(self) -> list[_Conversation]:
        """Those that were accepted and are not proven, the oldest first."""
        found = (key.data for key in self._selector.get_map().values())
        accepted = [data for data in found if isinstance(data, _Conversation) and not data.name]
        return sorted(accepted, key=lambda conversation: conversation.deadline)

    def _drop_late(self, now: float) -> None:
        for conversation in self._strangers():
            if conversation.deadline <= now:
                self._turn_away(conversation)

    def _turn_away(self, conversation: _Conversation) -> None:
        self._selector.unregister(conversation.connection)
        conversation.connection.close()
        self.strangers += 1

    def _read(self, conversation: _Conversation) -> None:
        """Never more than is wanted: what comes after the handshake is not for this loop."""
        data = conversation.data
        try:
            part = conversation.connection.recv(conversation.wanted - len(data))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the other end")
        except BlockingIOError:
            return
        except OSError as error:
            lost = error
            self._step(conversation, lambda: conversation.talk.throw(lost))
            return
        data += part
        if len(data) == conversation.wanted:
            received = bytes(data)
            data.clear()
            self._step(conversation, lambda: conversation.talk.send(received))

    def _step(self, conversation: _Conversation, go_on: Callable[[], int]) -> None:
        try:
            conversation.wanted = go_on()
        except StopIteration:
            self._selector.unregister(conversation.connection)
        except (_StrangerError, OSError):
            self._turn_away(conversation)

    def _connecting(self, ends: Ends, name: str, connection: socket.socket) -> Talk:
        greeting = self._identity.greeting(ends)
        try:
            connection.sendall(greeting)
            answer = yield _NONCE_BYTES + _PROOF_BYTES
            nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
            if not hmac.compare_digest(proof, self._identity.proof(b"accept", greeting, nonce)):
                raise FabricError(f"{name}: the other end is in another job, or not torch_topoopt")
            connection.sendall(self._identity.proof(b"connect", greeting, nonce))
            (size,) = yield 1
            wrong = (yield size).decode("utf-8", "replace") if size else ""
        except OSError as error:
            raise FabricError(
                f"{name}: {error.strerror or error}; it has failed, or is in another job"
            ) from None
        if wrong:
            raise FabricError(f"{name}: the other end says: {wrong}")
        self._called[ends] = self._kept(connection)

    def _accepting(self, expected: Expected, connection: socket.socket) -> Talk:
        data = yield _GREETING.size
        greeting = _Greeting.read(data)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(nonce + self._identity.proof(b"accept", data, nonce))
        proof = yield _PROOF_BYTES
        if not hmac.compare_digest(proof, self._identity.proof(b"connect", data, nonce)):
            raise _StrangerError
        missing = {e: name for e, name in expected.names.items() if e not in self._accepted}
        wrong = self._mismatch(greeting, missing)
        verdict = wrong.encode()[:_MOST_VERDICT_BYTES]
        with contextlib.suppress(OSError):  # it may be gone; what is wrong is said here too
            connection.sendall(bytes([len(verdict)]) + verdict)
        if wrong:
            name = missing.get(greeting.ends) or min(missing.values(), default=str(greeting.ends))
            raise FabricError(f"{name}: {wrong}")
        expected.admit(connection, greeting.ends)
        self._accepted[greeting.ends] = self._kept(connection)

    def _mismatch(self, greeting: _Greeting, missing: Iterable[Ends]) -> str:
        """The mismatch of a proven end; "" if there is none."""
        own = self._identity
        if greeting.version != own.version:
            return f"torch_topoopt {greeting.version} connects to {own.version}"
        if greeting.plan_digest != own.plan_digest:
            return f"plan {greeting.plan_digest} connects to plan {own.plan_digest}"
        if greeting.ends not in missing:
            return f"{greeting.ends} is not expected here"
        return ""

    def _kept(self, connection: socket.socket) -> socket.socket:
        connection.setblocking(True)
        return self._stack.enter_context(connection)
