"""`topoopt` itself: verbs, help, and what a wrong word answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.launcher.main import VERB_GROUPS, VERBS, main


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)


def test_the_readme_has_the_groups_of_the_help() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for group, verbs in VERB_GROUPS.items():
        assert f"| {group} | {', '.join(f'`{verb}`' for verb in verbs)} |" in readme


def test_help_explains_a_verb_or_a_sub_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help"], ["help", "--help"], ["--help"]):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith("usage: topoopt VERB")
    for about in ("report", "fabric list"):
        with pytest.raises(SystemExit) as ended:
            main(["help", *about.split()])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: topoopt {about} ")
    assert main(["help", "repotr"]) == 2
    assert "did you mean `topoopt report`?" in capsys.readouterr().err


def test_no_verb_prints_the_help_but_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: topoopt VERB" in capsys.readouterr().out


def test_an_unknown_verb_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repotr", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "topoopt: error: 'repotr' is not a verb; did you mean `topoopt report`?\n"
    )
    assert main(["frobnicate"]) == 2
    assert named(capsys.readouterr().err, "verb", "run, join, demo")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_a_verb_teaches_with_examples(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    examples = [line for line in out.splitlines() if line.startswith(f"  topoopt {verb} ")]
    assert len(examples) >= 2
    assert "--json" in out


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_an_unknown_option_is_one_line_and_exit_code_2(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--no-such-option"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("topoopt: error: ")
    assert error.count("\n") == 1


def test_help_and_version_do_not_import_torch() -> None:
    script = """
import contextlib, io, sys
from torch_topoopt.launcher.main import VERBS, main
for words in (["--help"], ["--version"], ["-V"], ["rnu"], *([verb, "--help"] for verb in VERBS)):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(words)
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    script = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "torch_topoopt.launcher.console":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from torch_topoopt.launcher.main import main
sys.exit(main(["advise", "--help"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "topoopt: stopped by SIGINT\n"
