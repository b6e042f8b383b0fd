"""Passwords of devices: their sources, and their protection in logs and errors.

A cluster file names the source of a password (an environment variable, or a file that only its
owner can read), never the password. str, repr, format and pickle of `Password` hide the secret; a
driver calls `reveal()` to log in, and passes every message of a device or a library through
`scrub`.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import stat
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN = "***"

_LONGEST_BYTES = 4096


class CredentialError(FabricError):
    """A password cannot be read safely; the message names its source and the remedy."""


class Password:
    """A secret that only `reveal()` gives away."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def reveal(self) -> str:
        """The secret itself; never log what this returns."""
        return self._secret

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"Password({HIDDEN})"

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Password):
            return NotImplemented
        return hmac.compare_digest(self._secret.encode(), other._secret.encode())

    def __hash__(self) -> int:
        return hash(self._secret)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Password is never pickled or copied; pass its PasswordSource on")


@dataclass(frozen=True)
class PasswordSource:
    """The place of a password: the environment variable `env`, or the text file `file`.

    The file must be a regular file of this user with mode 600 or stricter and hold one line.
    """

    env: str | None = None
    file: str | None = None

    def validate(self, where: str = "password") -> Self:
        """Returns self; raises DocumentError, naming `where`, unless just one source is given."""
        if (self.env is None) == (self.file is None):
            given = "neither" if self.env is None else "both"
            raise DocumentError(
                f"{where}: give one of `env` (an environment variable) and `file` (of mode 600); "
                f"{given} is given"
            )
        if not (self.env or self.file):
            raise DocumentError(f"{where}: {'env' if self.file is None else 'file'} is empty")
        return self

    def __str__(self) -> str:
        return f"${self.env}" if self.file is None else self.file

    def read(self) -> Password:
        """The password; raises CredentialError, or DocumentError if the source is not valid."""
        self.validate()
        if self.env is not None:
            return _from_environment(self.env)
        assert self.file is not None
        return _from_file(self.file)


def _from_environment(name: str) -> Password:
    secret = os.environ.get(name)
    if secret is None:
        raise CredentialError(f"password: the environment variable {name} is not set")
    if not secret:
        raise CredentialError(f"password: the environment variable {name} is empty")
    return Password(secret)


def _from_file(name: str) -> Password:
    where = f"password file {name}"
    try:
        # NONBLOCK: opening a named pipe must not wait for its writer
        handle = os.open(Path(name).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CredentialError(f"{where}: {error.strerror}") from None
    except RuntimeError:  # ~ of a user that is not known
        raise CredentialError(f"{where}: no such home folder") from None
    try:
        _check_private(os.fstat(handle), where)  # the open file: it cannot be swapped in between
        content = os.read(handle, _LONGEST_BYTES + 1)  # one read returns all of a regular file
    finally:
        os.close(handle)
    if len(content) > _LONGEST_BYTES:
        raise CredentialError(f"{where}: longer than {_LONGEST_BYTES} bytes")
    try:
        secret = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise CredentialError(f"{where}: not a text file") from None
    if not secret:
        raise CredentialError(f"{where}: is empty")
    if "\n" in secret or "\r" in secret:
        raise CredentialError(f"{where}: must hold one line, the password")
    return Password(secret)


def _check_private(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CredentialError(f"{where}: not a regular file")
    if status.st_uid != os.geteuid():
        raise CredentialError(
            f"{where}: belongs to user {status.st_uid}; it must belong to user {os.geteuid()}, "
            "who runs this"
        )
    if status.st_mode & 0o077:
        raise CredentialError(
            f"{where}: has mode {stat.S_IMODE(status.st_mode):03o}, so others can reach it; "
            "`chmod 600` it"
        )


def scrub(text: str, password: Password, user: str | None = None) -> str:
    """`text` without the password in any encoding of protocols and libraries.

    As it is, quoted for a URL, JSON, or repr, and in base64, alone or (Basic) behind `user`.
    """
    for spelling in sorted(set(_spellings(password.reveal(), user)), key=len, reverse=True):
        text = text.replace(spelling, HIDDEN)
    return text


def _spellings(secret: str, user: str | None) -> Iterator[str]:
    if not secret:
        return
    yield secret
    yield urllib.parse.quote(secret)
    yield urllib.parse.quote(secret, safe="")
    yield urllib.parse.quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
    pairs = [secret] if user is None else [secret, f"{user}:{secret}"]
    for pair in pairs:
        encoded = base64.b64encode(pair.encode()).decode()
        yield encoded
        yield encoded.rstrip("=")
