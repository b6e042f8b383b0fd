"""The help of every option says what it is, its unit, and its default where it has one."""

from __future__ import annotations

import argparse
import re

import pytest
from commands_page import NAMES, named_options

OPTIONS = [
    pytest.param(action, id=f"{verb} {name}")
    for verb in NAMES
    for name, action in named_options(verb)
    if action.help != argparse.SUPPRESS
]


def help_of(action: argparse.Action) -> str:
    """As printed."""
    return (action.help or "") % {**vars(action), "prog": "topoopt"}


@pytest.mark.parametrize("action", OPTIONS)
def test_it_says_what_the_option_is(action: argparse.Action) -> None:
    assert re.match(r"(?!default)\S", help_of(action))


@pytest.mark.parametrize("action", OPTIONS)
def test_it_says_the_default(action: argparse.Action) -> None:
    default = action.default
    if action.nargs == 0 or default is argparse.SUPPRESS or default in (None, [], frozenset()):
        return
    text = help_of(action)
    assert re.search(r"\([^()]*default|; default:", text)
    if action.type in (int, float) and default:
        assert f"{default:g}" in text


@pytest.mark.parametrize("action", OPTIONS)
def test_it_says_the_unit_of_a_fraction(action: argparse.Action) -> None:
    if action.type is float:
        assert action.metavar is not None
