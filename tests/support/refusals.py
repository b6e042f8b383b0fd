"""Asserts that a message names a field and its value, whatever else its sentence says."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_Error = TypeVar("_Error", bound=BaseException)


@contextmanager
def refused(
    error: type[_Error] | tuple[type[_Error], ...], *tokens: object
) -> Iterator[pytest.ExceptionInfo[_Error]]:
    """`pytest.raises`, with a message that names all tokens (see `named`)."""
    __tracebackhide__ = True
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert named(message, *tokens), f"{missing(message, *tokens)} not in: {message}"


def named(text: str, *tokens: object) -> bool:
    """Whether the text has each token as a whole, in any order: 1 is neither in 10 nor in 1.5."""
    return not missing(text, *tokens)


def missing(text: str, *tokens: object) -> list[str]:
    """The tokens that the text lacks."""
    assert tokens
    assert all(str(token) for token in tokens)
    return [token for token in map(str, tokens) if not re.search(_whole(token), text)]


def _whole(token: str) -> str:
    """A pattern of the token that is no part of a longer word or number."""
    before = r"(?<!\w)" if re.match(r"\w", token) else ""
    after = r"(?!\w)" if re.search(r"\w$", token) else ""
    if re.match(r"-?\d", token):
        before = r"(?<![\w-])(?<!\d\.)"
    if re.search(r"\d$", token):
        after += r"(?!\.\d)"
    return before + re.escape(token) + after
