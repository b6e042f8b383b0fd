"""What the environment asks of fast TCP links: sends without copy (zero_copy_asked.py), and threads
of their own (threads_asked.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime.link_options.threads_asked import link_threads_asked
from torch_topoopt.runtime.link_options.zero_copy_asked import zero_copy_asked

if TYPE_CHECKING:
    from collections.abc import Callable


class Asked(NamedTuple):
    variable: str
    read: Callable[..., Any]
    values: dict[str, Any]  # what is read, by text
    usual: Any
    over_fabric: str  # a word of the refusal
    encrypted: str


ASKED = (
    Asked(
        "TOPOOPT_LINK_THREADS",
        link_threads_asked,
        {"0": False, "1": True},
        False,
        "fabric:tcp",
        "encrypted",
    ),
    Asked(
        "TOPOOPT_ZERO_COPY",
        zero_copy_asked,
        {"0": "off", "1": "on", "always": "always"},
        "off",
        "fabric:tcp",
        "encrypted",
    ),
)


@pytest.fixture(params=ASKED, ids=lambda asked: asked.variable)
def asked(request: pytest.FixtureRequest) -> Asked:
    return request.param


def test_nothing_is_asked_by_default(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(asked.variable, raising=False)
    for transport in ("tcp", "fabric:tcp"):
        assert asked.read(transport, encrypted=True) == asked.usual


def test_the_variable_says_what(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in asked.values.items():
        monkeypatch.setenv(asked.variable, text)
        assert asked.read("tcp", encrypted=False) == value


@pytest.mark.parametrize("text", ["2", "yes", ""])
def test_another_value_is_one_clear_line(
    asked: Asked, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(asked.variable, text)
    with refused(FabricError, asked.variable, f"'{text}'", *asked.values):
        asked.read("tcp", encrypted=False)


def test_links_that_cannot_are_refused(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(asked.variable, "1")
    for transport, encrypted, why in (
        ("fabric:tcp", False, asked.over_fabric),
        ("tcp", True, asked.encrypted),
    ):
        with refused(FabricError, asked.variable, 1, why, 0):
            asked.read(transport, encrypted=encrypted)
