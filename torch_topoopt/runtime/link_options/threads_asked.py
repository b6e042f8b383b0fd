"""What moves the bytes of this process's links and adds them up, beside the one reactor thread."""

from __future__ import annotations

import os

from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime.link_options.transport import TCP

LINK_THREADS_VARIABLE = "TOPOOPT_LINK_THREADS"
REDUCE_THREADS_VARIABLE = "TOPOOPT_REDUCE_THREADS"
MOST_REDUCE_THREADS = 64


def link_threads_asked(transport: str, *, encrypted: bool) -> bool:
    """What TOPOOPT_LINK_THREADS says: whether threads of its own move the bytes of every fast TCP
    connection.

    Raises FabricError for a value that is neither 0 nor 1, and where links are no plain TCP.
    """
    value = os.environ.get(LINK_THREADS_VARIABLE, "0")
    if value not in ("0", "1"):
        raise FabricError(f"{LINK_THREADS_VARIABLE}: {value!r} is neither 0 (off) nor 1 (on)")
    if value == "1" and (why := why_no_link_threads(transport, encrypted=encrypted)):
        raise FabricError(f"{LINK_THREADS_VARIABLE}: 1, but {why}; set it to 0")
    return value == "1"


def why_no_link_threads(transport: str, *, encrypted: bool) -> str:
    """Why links of this kind have no threads of their own; "" where they may."""
    if transport != TCP:
        return f"a link over {transport} has no threads of its own"
    return "the bytes of an encrypted link pass through the reactor thread" if encrypted else ""


def reduce_threads_asked() -> int:
    """What TOPOOPT_REDUCE_THREADS says: threads that add up long chunks; 0: the reactor's does.

    Raises FabricError for another value.
    """
    text = os.environ.get(REDUCE_THREADS_VARIABLE, "0")
    if not (text.isascii() and text.isdecimal() and int(text) <= MOST_REDUCE_THREADS):
        raise FabricError(
            f"{REDUCE_THREADS_VARIABLE}: {text!r} is not a number in 0..{MOST_REDUCE_THREADS}"
        )
    return int(text)
