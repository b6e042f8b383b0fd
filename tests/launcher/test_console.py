"""What the terminal shows of a long computation where no line can move."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

from support.pseudo_terminal import lines_on_terminal

from torch_topoopt.launcher import console
from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_quiet_leaves_the_result_and_verbose_adds_defaults_and_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = ("plan", "vgg:tiny", "--servers", "4", "--evaluations", "0")

    def printed(*more: str) -> tuple[list[str], list[str]]:
        assert main([*plan, "-o", str(tmp_path / "plan.json"), *more]) == 0
        captured = capsys.readouterr()
        return captured.out.splitlines(), captured.err.splitlines()

    (plain, nothing), (quiet, silent), (verbose, details) = printed(), printed("-q"), printed("-v")
    assert (nothing, silent) == ([], [])
    assert set(quiet) < set(plain)
    assert not any(line.startswith("assumed:") for line in quiet)
    assert any(line.startswith("predicted iteration:") for line in quiet)
    assert verbose == plain
    assumed, seconds = details
    assert {"--seed 0", "--mode best"} <= set(assumed.split(": ", 2)[2].split(", "))
    assert seconds.startswith("topoopt: planning vgg:tiny: ")


def test_quiet_leaves_out_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with console.Terminal(quiet=True).stage(1, 2, "profile") as stage:
        stage.progress(None, "now")
    assert stage.seconds > 0
    assert capsys.readouterr().out == ""


def test_a_table_on_stderr_has_the_width_of_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    def widest(width: int) -> int:
        def show(terminal: IO[str]) -> None:
            with monkeypatch.context() as patches:
                patches.setattr(sys, "stderr", terminal)
                rows = [["rank 0", "one operation of many words " * 10]]
                console.Terminal(json_output=True).table("", ["rank", "operation"], rows)

        return max(map(len, lines_on_terminal(width, show)))

    assert widest(60) <= 60 < 100 < widest(120) <= 120
