"""`topoopt fabric` finds its sub-verbs, and says what they are."""

from __future__ import annotations

import importlib

import pytest
from support.refusals import refused

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError
from torch_topoopt.launcher.fabric import fabric


def test_every_sub_verb_is_a_module_that_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        fabric.main(["--help"])
    assert ended.value.code == OK
    output = capsys.readouterr().out
    for name in fabric.SUB_VERBS:
        assert f"\n  {name} " in output
        module = importlib.import_module(f"torch_topoopt.launcher.fabric.{name}")
        with pytest.raises(SystemExit) as ended:
            module.main(["--help"])
        assert ended.value.code == 0
        assert f"usage: topoopt fabric {name}" in capsys.readouterr().out


def test_without_a_sub_verb_it_helps_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert fabric.main([]) == BAD_INPUT
    assert "usage: topoopt fabric" in capsys.readouterr().out


def test_an_unknown_sub_verb_is_an_error_with_its_name() -> None:
    with refused(InputError, "frobnicate", "topoopt fabric"):
        fabric.main(["frobnicate"])
