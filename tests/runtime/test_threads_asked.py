"""Which threads the environment asks for."""

from __future__ import annotations

import pytest

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.runtime.threads_asked import link_threads_asked, reduce_threads_asked


def test_nothing_is_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOPOOPT_LINK_THREADS", "TOPOOPT_REDUCE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert link_threads_asked("tcp", encrypted=True) is False
    assert reduce_threads_asked() == 0


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("3", 3), ("64", 64)])
def test_the_variables_say_what(text, number, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_LINK_THREADS", "1")
    monkeypatch.setenv("TOPOOPT_REDUCE_THREADS", text)
    assert link_threads_asked("tcp", encrypted=False) is True
    assert reduce_threads_asked() == number


@pytest.mark.parametrize("text", ["2", "yes", ""])
def test_another_value_of_links_is_one_clear_line(text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_LINK_THREADS", text)
    expected = rf"^TOPOOPT_LINK_THREADS: '{text}' is neither 0 \(off\) nor 1 \(on\)$"
    with pytest.raises(FabricError, match=expected):
        link_threads_asked("tcp", encrypted=False)


@pytest.mark.parametrize("text", ["65", "-1", "2.5", "two", ""])
def test_another_number_is_one_clear_line(text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOOPT_REDUCE_THREADS", text)
    expected = rf"^TOPOOPT_REDUCE_THREADS: '{text}' is not a number in 0\.\.64$"
    with pytest.raises(FabricError, match=expected):
        reduce_threads_asked()


@pytest.mark.parametrize(
    ("transport", "encrypted", "why"),
    [
        ("fabric:tcp", False, r"1, but a link over fabric:tcp has no threads"),
        ("tcp", True, "1, but the bytes of an encrypted link pass through the reactor thread"),
    ],
)
def test_links_that_can_have_none_are_refused(
    transport, encrypted, why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOOPT_LINK_THREADS", "1")
    with pytest.raises(FabricError, match=why):
        link_threads_asked(transport, encrypted=encrypted)
