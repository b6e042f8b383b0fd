"""Errors that end a command with one clear line, and the exit codes of `topoopt`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OK = 0
SCRIPT_FAILED = 1
CHECK_FAILED = 1
BAD_INPUT = 2


class InputError(Exception):
    """Invalid user input; the message names the error and a valid alternative."""


@contextmanager
def input_errors(option: str = "") -> Iterator[None]:
    """Converts a ValueError of the library to an InputError, whose message begins with `option`
    unless the library names the input."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{option}: {error}" if option else str(error)) from None
