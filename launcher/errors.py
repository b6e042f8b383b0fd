"""Errors that end a command with one clear line, and the exit codes of `topoopt`."""

from __future__ import annotations

OK = 0
SCRIPT_FAILED = 1
CHECK_FAILED = 1
BAD_INPUT = 2


class InputError(Exception):
    """Something that the user gave cannot work; the message says what, and what would be right."""
