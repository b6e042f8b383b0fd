"""The ends of a job's connections, and the secret that authenticates them."""

from __future__ import annotations

import enum
import hmac
import re
import secrets
import struct
import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch_topoopt import __version__

SECRET_BYTES = 32
NONCE_BYTES = 32
_ENCRYPTED = ", TLS 1.3"  # in a version
_MAGIC = b"TOPOOPT3"
# increment with every change of the messages between ranks after the handshake
# (csrc/transport/frames/frame.h and the schedules of csrc/plan)
_WIRE_VERSION = 4
_GREETING = struct.Struct("!8s96s16sB5i32s")
GREETING_BYTES = _GREETING.size
_MOST_VERSION_BYTES = 96


class StrangerError(Exception):
    """The other end has not proven that it knows the secret."""


class Kind(enum.IntEnum):
    """Kinds of connection: planned link, between ranks of a server, forwarded by kernels, or
    between the launchers of two hosts."""

    LINK = 0
    LOCAL = 1
    FORWARDED = 2
    HOST = 3


_KINDS = frozenset(Kind)


class Ends(NamedTuple):
    """The connection from `source` to `target`: servers and their ports, ranks, or hosts (ports:
    -1).

    `number` counts the connections of one link, and distinguishes those of one host.
    """

    kind: Kind
    source: int
    source_port: int
    target: int
    target_port: int
    number: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.LINK:
            which = f", connection {self.number}" if self.number else ""
            return (
                f"server {self.source} port {self.source_port} "
                f"to server {self.target} port {self.target_port}{which}"
            )
        what = "host" if self.kind is Kind.HOST else "rank"
        return f"{what} {self.source} to {what} {self.target}"


def wire_version(
    build: str = "",
    *,
    encrypted: bool = False,
    transport: str = "tcp",
    connections: int | None = None,
) -> str:
    """The facts that must match at both ends; `build` identifies the sources of the backend."""
    parts = [f"protocol {_WIRE_VERSION}", f"{sys.byteorder}-endian"]
    parts += [f"build {build}"] if build else []
    parts += [f"transport {transport}"] if transport != "tcp" else []
    parts += [] if connections is None else [f"connections {connections}"]
    return f"{__version__} ({', '.join(parts)}{_ENCRYPTED if encrypted else ''})"


def without_encryption(version: str) -> str:
    """The wire_version() of the same build for links that are not encrypted."""
    return version.replace(_ENCRYPTED, "")


def without_transport(version: str) -> str:
    """The wire_version() of the same build for links over TCP."""
    return re.sub(r", transport [a-z:]+", "", version)


def without_connections(version: str) -> str:
    """The wire_version() of the same build with the default number of connections per link."""
    return re.sub(r", connections \d+", "", version)


@dataclass(frozen=True)
class Identity:
    """Facts shared by all ends of a job. `secret` has SECRET_BYTES bytes and is never shown."""

    secret: bytes = field(repr=False)
    plan_digest: str
    version: str = wire_version()

    def __post_init__(self) -> None:
        if len(self.version.encode("ascii", "replace")) > _MOST_VERSION_BYTES:
            raise ValueError(f"version: {self.version!r} is longer than {_MOST_VERSION_BYTES}")

    def derived(self, purpose: str) -> Identity:
        """An identity for `purpose` alone: its proofs are invalid for any other."""
        secret = hmac.digest(self.secret, b"derive " + purpose.encode(), "sha256")
        return replace(self, secret=secret)

    def greeting(self, ends: Ends) -> bytes:
        numbers = (ends.source, ends.source_port, ends.target, ends.target_port, ends.number)
        version, digest = self.version.encode("ascii", "replace"), self.plan_digest.encode("ascii")
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _GREETING.pack(_MAGIC, version, digest, ends.kind, *numbers, nonce)

    def link_key(self, greeting: bytes, nonce: bytes) -> bytes:
        """The key for the traffic of this one connection after the handshake."""
        return hmac.digest(self.secret, b"link" + greeting + nonce, "sha256")

    def proof(self, role: bytes, greeting: bytes, nonce: bytes) -> bytes:
        return hmac.digest(self.secret, role + greeting + nonce, "sha256")


@dataclass(frozen=True)
class Greeting:
    """An end's claims before its proof (Identity.greeting)."""

    version: str
    plan_digest: str
    ends: Ends

    @staticmethod
    def read(data: bytes) -> Greeting:
        """Parses GREETING_BYTES bytes; raises StrangerError."""
        magic, version, digest, kind, *numbers, _ = _GREETING.unpack(data)
        if magic != _MAGIC or kind not in _KINDS:
            raise StrangerError(f"it sent no greeting of this torch_topoopt: {magic!r}")
        return Greeting(_text(version), _text(digest), Ends(Kind(kind), *numbers))


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("ascii", "replace")
