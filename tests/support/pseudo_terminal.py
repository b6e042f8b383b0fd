"""Prints on a pseudo terminal of a given width, and reads what it shows."""

from __future__ import annotations

import errno
import pty
import re
import termios
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable

_LINES = 24
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def lines_on_terminal(width: int, show: Callable[[IO[str]], None]) -> list[str]:
    """What `show` prints to a terminal of `width` columns, without colours."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (_LINES, width))
    with ThreadPoolExecutor(1) as readers:  # a terminal holds 4 kB that nobody has read
        text = readers.submit(_text_of, master)
        with open(slave, "w", encoding="utf-8") as terminal:
            show(terminal)
        return _ESCAPES.sub("", text.result(timeout=limit_s(10))).splitlines()


def _text_of(master: int) -> str:
    """All that is printed until the other end is closed."""
    printed = b""
    with open(master, "rb", buffering=0) as file:
        while True:
            try:
                printed += file.read(4096)
            except OSError as error:
                if error.errno == errno.EIO:
                    return printed.decode()
                raise
