"""The messages by which both ends of a connection prove that they know the secret of their job.

There are three, and a verdict (C connects, A accepts; HMAC is HMAC-SHA256 under the job's key):

    C to A   greeting: magic, version, plan digest, ends of the connection, a fresh nonce
    A to C   a fresh nonce, HMAC("accept", greeting, nonce)
    C to A   HMAC("connect", greeting, nonce)
    A to C   the mismatch, as text; empty if there is none

HMAC("link", greeting, nonce) is a key of the connection that is never sent: encrypted links begin
TLS with it (csrc/transport/tls/session.h).

Each end is a generator that does not block: it yields the number of bytes that it needs.
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

    # yields the number of bytes that it needs next, and is sent them
    Talk = Generator[int, bytes, "Outcome"]

_PROOF_BYTES = hashlib.sha256().digest_size
_MOST_VERDICT_BYTES = 255
_UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)


@dataclass
class Expected:
    """Connections expected at one listener, each with its name in messages.

    `trusts` decides whether an accepted connection may belong to this job; `admit` prepares a
    proven one. While a thread polls, its caller may change `names`: all others are refused.
    """

    listener: socket.socket
    names: dict[Ends, str]
    admit: Callable[[socket.socket, Ends], None]
    trusts: Callable[[socket.socket], bool] = lambda connection: True


@dataclass(frozen=True)
class Outcome:
    """A proven connection, or the `error` of one that was dialled or proved the right secret.

    The caller of poll() owns `connection`, which is blocking. Only its two ends know `key`.
    `unreached`: the network has no route to the other end yet.
    """

    ends: Ends
    accepted: bool
    connection: socket.socket | None
    error: str = ""
    key: bytes = field(default=b"", repr=False)
    unreached: bool = False


def connecting(identity: Identity, ends: Ends, name: str, connection: socket.socket) -> Talk:
    """The connecting end of a non-blocking `connection`."""
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
    """The outcome of a connection that was never established."""
    wrong = f"{name}: {error.strerror or error}"
    return Outcome(ends, False, None, wrong, unreached=error.errno in _UNREACHED)


def accepting(
    identity: Identity,
    expected: Expected,
    proven: Container[Ends],
    connection: socket.socket,
) -> Talk:
    """The accepting end of a non-blocking `connection`.

    Refuses connections that are `proven` already. Raises StrangerError.
    """
    data = yield GREETING_BYTES
    greeting = Greeting.read(data)
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce + identity.proof(b"accept", data, nonce))
    proof = yield _PROOF_BYTES
    if not hmac.compare_digest(proof, identity.proof(b"connect", data, nonce)):
        raise StrangerError("it does not know the job's secret")
    ends, names = greeting.ends, expected.names.copy()
    wrong = _mismatch(identity, greeting, missing=ends in names and ends not in proven)
    verdict = wrong.encode()[:_MOST_VERDICT_BYTES]
    with contextlib.suppress(OSError):  # the peer may be gone; this end reports the mismatch, too
        connection.sendall(bytes([len(verdict)]) + verdict)
    if wrong:
        missing = {e: name for e, name in names.items() if e not in proven}
        name = missing.get(ends) or min(missing.values(), default=str(ends))
        return Outcome(ends, True, None, f"{name}: {wrong}")
    try:
        expected.admit(connection, ends)
    except FabricError as error:
        return Outcome(ends, True, None, str(error))
    return Outcome(ends, True, connection, key=identity.link_key(data, nonce))


def _mismatch(own: Identity, greeting: Greeting, *, missing: bool) -> str:
    """The mismatch of a proven end, which may be a `missing` one; "" if there is none."""
    if greeting.version != own.version:
        return f"torch_topoopt {greeting.version} connects to {own.version}"
    if greeting.plan_digest != own.plan_digest:
        return f"plan {greeting.plan_digest} connects to plan {own.plan_digest}"
    if not missing:
        return f"{greeting.ends} is not expected here"
    return ""
