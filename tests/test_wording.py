"""Tests name the field and the value of a message; its sentence is written once, in the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.refusals import missing, named, refused

TESTS = Path(__file__).parent
MOST_SENTENCES = 3  # what docs/guides/troubleshooting.md quotes

# more than three words in a row, `a port of this`, are a sentence
_SENTENCE = re.compile(r"\b[A-Za-z][a-z']*(?: [A-Za-z][a-z']*){3}\b")


def _literals(node: ast.expr) -> list[str]:
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _sentences(source: str) -> list[str]:
    """Sentences that a `match=` pins, or a token of `refused` or `named`."""
    if not re.search("match=|refused|named", source):
        return []
    texts: list[str] = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        texts += [
            text for word in call.keywords if word.arg == "match" for text in _literals(word.value)
        ]
        if isinstance(call.func, ast.Name) and call.func.id in ("refused", "named"):
            texts += [text for token in call.args[1:] for text in _literals(token)]
    return [text for text in texts if _SENTENCE.search(text)]


def test_few_tests_pin_a_sentence() -> None:
    pinned = [
        f"{path.relative_to(TESTS)}: {text}"
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__)
        for text in _sentences(path.read_text(encoding="utf-8"))
    ]
    assert len(pinned) <= MOST_SENTENCES, "\n".join(pinned)


def test_a_pinned_sentence_is_found() -> None:
    source = 'pytest.raises(E, match="{}")'
    assert _sentences(source.format("servers: 3 is more than two"))
    assert not _sentences(source.format("servers: 3 is too many"))
    assert _sentences('refused(E, "servers", "of the job that runs")')


def test_tokens_are_whole_words_and_numbers() -> None:
    message = "groups[0].servers: server -1 is not in 0..3, (1, 2) takes 1.5 s."
    assert named(message, "groups[0].servers", "server -1", "0..3", "(1, 2)", 1.5, 0, 3)
    assert missing(message, 10, 5, "group", "serve", "0..30") == [
        "10",
        "5",
        "group",
        "serve",
        "0..30",
    ]
    assert not named("-1", 1)
    assert not named("10", 1)
    assert not named("1.5", 1)
    assert named("at most 1.", 1)


def test_another_message_or_error_is_not_refused() -> None:
    with pytest.raises(AssertionError, match="spines"), refused(ValueError, "spines", 3):
        raise ValueError("servers: 3 is odd")
    with pytest.raises(KeyError), refused(ValueError, "spines"):
        raise KeyError("spines")
