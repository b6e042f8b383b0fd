"""The help of every option says what it is, its unit, and its default where it has one."""

from __future__ import annotations

import argparse
import re

import pytest
from commands_page import NAMES, named_options

from torch_topoopt.tools.bench.options import parse_size

OPTIONS = [
    pytest.param(action, id=f"{verb} {name}")
    for verb in NAMES
    for name, action in named_options(verb)
    if action.help != argparse.SUPPRESS
]

UNITS = {"TIME": "(?:ns|us|ms|s)", "SIZE": "[kMG]i?B", "RATE": "[MG]bps"}


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
def test_it_says_the_unit_of_a_quantity(action: argparse.Action) -> None:
    text = help_of(action)
    if action.metavar in ("SECONDS", "BYTES"):
        assert re.search(rf"\({action.metavar.lower()}[,;)]", text)
    elif action.metavar == "SIZE" and action.type is parse_size:  # of nccl-tests, without a B
        assert "(bytes, K, M or G, default: " in text
    elif action.metavar in UNITS:  # the unit is part of the value
        assert re.search(rf"\b[0-9.]+{UNITS[action.metavar]}\b", text)


@pytest.mark.parametrize("action", OPTIONS)
def test_it_says_the_unit_of_a_fraction(action: argparse.Action) -> None:
    if action.type is float:
        assert action.metavar is not None
