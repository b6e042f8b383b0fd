"""The secret of a job, with which its ranks prove to each other that they belong to it."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import SECRET_BYTES

SECRET_VARIABLE = "TOPOOPT_SECRET_FILE"
_SIGNED = "hmac-sha256 "


def write_secret(folder: Path) -> Path:
    """A file in `folder` with a new secret, which only this user may read."""
    path = folder / "secret"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(fresh_secret().hex())
    return path


def given_secret() -> bytes | None:
    """The secret in the file TOPOOPT_SECRET_FILE; None if that is not set.

    Raises FabricError for a file that is missing, too short, or readable by others.
    """
    path = os.environ.get(SECRET_VARIABLE)
    return _read_secret(Path(path)) if path else None


def fresh_secret() -> bytes:
    """A new secret of SECRET_BYTES random bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def sign(secret: bytes | None, topic: str, text: str) -> str:
    """`text` signed with `secret` for publication under `topic`; unsigned if `secret` is None."""
    if secret is None:
        return text
    return f"{_SIGNED}{_signature(secret, topic, text)} {text}"


def verified(secret: bytes | None, topic: str, published: str) -> str:
    """The text without its signature; raises FabricError if that is missing or wrong."""
    if secret is None:
        if published.startswith(_SIGNED):
            raise FabricError(f"{topic}: others have a {SECRET_VARIABLE}, this process none")
        return published
    signature, _, text = published.removeprefix(_SIGNED).partition(" ")
    expected = _signature(secret, topic, text)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise FabricError(
            f"{topic}: not signed with the secret of {SECRET_VARIABLE}; give all ranks and hosts "
            "the same file"
        )
    return text


def _signature(secret: bytes, topic: str, text: str) -> str:
    return hmac.digest(secret, f"publish {topic}\0{text}".encode(), "sha256").hex()


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(2 * SECRET_BYTES + 2).strip()
    except OSError as error:
        raise FabricError(f"{SECRET_VARIABLE}: {path}: {error.strerror}") from None
    if mode & 0o077:
        raise FabricError(f"{SECRET_VARIABLE}: others may read {path}; chmod 600 {path}")
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise FabricError(
            f"{SECRET_VARIABLE}: {path} must have {2 * SECRET_BYTES} hexadecimal digits "
            "(openssl rand -hex 32)"
        )
    return secret
