"""`topoopt completion`: the scripts know every verb and option, and bash really completes."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s

pytest.importorskip("shtab")

from torch_topoopt.launcher import completion
from torch_topoopt.launcher.main import VERBS, main

if TYPE_CHECKING:
    from pathlib import Path

_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
"$(complete -p topoopt | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_verb_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("topoopt rep", {"report"}),
        ("topoopt plan --degr", {"--degree"}),
        ("topoopt fabric sn", {"snapshot"}),
        ("topoopt fabric up --sha", {"--shaper"}),
        ("topoopt plan --ports d", {"duplex"}),
        ("topoopt run --rdzv-b", {"--rdzv-backend"}),
    ],
)
def test_bash_completes(
    words: str, found: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "topoopt.bash").write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["bash", "-c", _ASK, "-", str(tmp_path / "topoopt.bash"), *words.split()],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=True,
    )
    assert set(done.stdout.split()) == found


def test_a_shell_that_is_not_known_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "cmd"]) == 2
    assert "invalid choice: 'cmd' (choose from 'bash', 'zsh'" in capsys.readouterr().err
