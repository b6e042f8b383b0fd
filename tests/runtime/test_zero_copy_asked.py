"""What the environment asks of sends without copy."""

from __future__ import annotations

import pytest

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.runtime.zero_copy_asked import zero_copy_asked


def test_nothing_is_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPOOPT_ZERO_COPY", raising=False)
    assert zero_copy_asked("fabric", encrypted=True) == "off"


@pytest.mark.parametrize(("text", "state"), [("0", "off"), ("1", "on"), ("always", "always")])
def test_the_variable_says_what(text, state, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_ZERO_COPY", text)
    assert zero_copy_asked("tcp", encrypted=False) == state


@pytest.mark.parametrize("text", ["2", "on", ""])
def test_another_value_is_one_clear_line(text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_ZERO_COPY", text)
    expected = rf"^TOPOOPT_ZERO_COPY: '{text}' is none of 0, 1 and always$"
    with pytest.raises(FabricError, match=expected):
        zero_copy_asked("tcp", encrypted=False)


@pytest.mark.parametrize(
    ("transport", "encrypted", "why"),
    [
        ("fabric:tcp", False, "1, but a link over fabric:tcp does not send by TCP; set it to 0"),
        ("tcp", True, "1, but what an encrypted link sends is a copy; set it to 0"),
    ],
)
def test_links_that_cannot_are_refused(
    transport, encrypted, why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOOPT_ZERO_COPY", "1")
    with pytest.raises(FabricError, match=why):
        zero_copy_asked(transport, encrypted=encrypted)
