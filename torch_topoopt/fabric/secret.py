"""The secret of a job, with which its ranks prove to each other that they belong to it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.handshake import SECRET_BYTES

SECRET_VARIABLE = "TOPOOPT_SECRET_FILE"


def write_secret(folder: Path) -> Path:
    """A file in `folder` with a new secret, which only this user may read."""
    path = folder / "secret"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(new_secret())
    return path


def given_secret() -> bytes | None:
    """The secret in the file that TOPOOPT_SECRET_FILE names; None if it names none.

    Raises FabricError for a file that is missing, too short, or readable by others.
    """
    path = os.environ.get(SECRET_VARIABLE)
    return _read_secret(Path(path)) if path else None


def new_secret() -> str:
    """As it stands in a file: hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES)


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
