"""The messages by which both ends of a connection prove that they know the secret of their job.

Three, and a verdict (C connects, A accepts; HMAC is HMAC-SHA256 under the job's key):

    C to A   greeting: magic, version, plan digest, ends of the connection, a fresh nonce
    A to C   a fresh nonce, HMAC("accept", greeting, nonce)
    C to A   HMAC("connect", greeting, nonce)
    A to C   what is wrong, as text; empty if nothing is

HMAC("link", greeting, nonce) is a key of the connection, which both ends know and never send: links
that are encrypted begin TLS with it (csrc/transport/tls/session.h).

Each end is a generator that does not wait: it yields how many bytes it needs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import GREETING_BYTES, NONCE_BYTES, Greeting, StrangerError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Container, Generator

    from torch_topoopt.links.identity import Ends, Identity

    # Yields how many bytes it needs next, and is sent them.
    Talk = Generator[int, bytes, "Outcome"]

_PROOF_BYTES = hashlib.sha256().digest_size
_MOST_VERDICT_BYTES = 255
_UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)


@dataclass
class Expected:
    """Connections that are to come to one listener, each with its name in messages.

    `trusts` says whether one that has come may be of this job at all; `admit` prepares one that has
    proven that it is. While a thread polls, its caller may change `names`: what is not in them is
    refused.
    """

    listener: socket.socket
    names: dict[Ends, str]
    admit: Callable[[socket.socket, Ends], None]
    trusts: Callable[[socket.socket], bool] = lambda connection: True


@dataclass(frozen=True)
class Outcome:
    """A connection that was proven, or `error`: it was dialled, or the right secret accepted it.

    `connection`, which blocks, belongs to whom poll() has returned it to. `key` is known to both
    of its ends alone. `unreached`: the network has no way to the other end, so far.
    """

    ends: Ends
    accepted: bool
    connection: socket.socket | None
    error: str = ""
    key: bytes = field(default=b"", repr=False)
    unreached: bool = False


def connecting(identity: Identity, ends: Ends, name: str, connection: socket.socket) -> Talk:
    """The end that connects, over a `connection` that does not block."""
    greeting = identity.greeting(ends)
    hint = ""
    try:
        yield 0  # until it is connected
        hint = "; it has failed, or is in another job"
        connection.sendall(greeting)
        answer = yield NONCE_BYTES + _PROOF_BYTES
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(proof, identity.proof(b"accept", greeting, nonce)):
            wrong = f"{name}: the other end is in another job, or not torch_topoopt"
            return Outcome(ends, False, None, wrong)
        connection.sendall(identity.proof(b"connect", greeting, nonce))
        (size,) = yield 1
        wrong = (yield size).decode("utf-8", "replace") if size else ""
    except OSError as error:
        if hint:
            return Outcome(ends, False, None, f"{name}: {error.strerror or error}{hint}")
        return failed_call(ends, name, error)
    if wrong:
        return Outcome(ends, False, None, f"{name}: the other end says: {wrong}")
    return Outcome(ends, False, connection, key=identity.link_key(greeting, nonce))


def failed_call(ends: Ends, name: str, error: OSError) -> Outcome:
    """Of a connection that was never there."""
    wrong = f"{name}: {error.strerror or error}"
    return Outcome(ends, False, None, wrong, unreached=error.errno in _UNREACHED)


def accepting(
    identity: Identity,
    expected: Expected,
    proven: Container[Ends],
    connection: socket.socket,
) -> Talk:
    """The end that has accepted `connection`, which does not block.

    What is `proven` by then is expected no more. Raises StrangerError.
    """
    data = yield GREETING_BYTES
    greeting = Greeting.read(data)
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce + identity.proof(b"accept", data, nonce))
    proof = yield _PROOF_BYTES
    if not hmac.compare_digest(proof, identity.proof(b"connect", data, nonce)):
        raise StrangerError("it does not know the job's secret")
    ends, names = greeting.ends, expected.names.copy()
    missing = {e: name for e, name in names.items() if e not in proven}
    wrong = _mismatch(identity, greeting, missing)
    verdict = wrong.encode()[:_MOST_VERDICT_BYTES]
    with contextlib.suppress(OSError):  # it may be gone; what is wrong is said here too
        connection.sendall(bytes([len(verdict)]) + verdict)
    if wrong:
        name = missing.get(ends) or min(missing.values(), default=str(ends))
        return Outcome(ends, True, None, f"{name}: {wrong}")
    try:
        expected.admit(connection, ends)
    except FabricError as error:
        return Outcome(ends, True, None, str(error))
    return Outcome(ends, True, connection, key=identity.link_key(data, nonce))


def _mismatch(own: Identity, greeting: Greeting, missing: Container[Ends]) -> str:
    """The mismatch of a proven end; "" if there is none."""
    if greeting.version != own.version:
        return f"torch_topoopt {greeting.version} connects to {own.version}"
    if greeting.plan_digest != own.plan_digest:
        return f"plan {greeting.plan_digest} connects to plan {own.plan_digest}"
    if greeting.ends not in missing:
        return f"{greeting.ends} is not expected here"
    return ""
