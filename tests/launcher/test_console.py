"""What the terminal shows of a long computation where no line can move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher import console

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_a_long_computation_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    until: Callable[..., None],
) -> None:
    monkeypatch.setattr(console, "_QUIET_S", 0.001)
    printed: list[str] = []

    def said() -> bool:
        printed.append(capsys.readouterr().err)
        return "topoopt: advise: failures (" in printed[-1]

    with console.Terminal().progress("advise") as progress:
        progress(None, "failures")
        until(said, "a line about the computation")


def test_a_short_one_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.Terminal().progress("advise") as progress:
        progress(None, "failures")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
