"""`topoopt run --controller`: what is refused, and what ranks find in their environment."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import controller_options
from torch_topoopt.route_control.host.settings import controller_settings

if TYPE_CHECKING:
    from pathlib import Path


def parsed(*argv: str) -> argparse.Namespace:
    options = argparse.ArgumentParser()
    controller_options.add_options(options)
    return options.parse_args(argv)


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    return "token"


def test_ranks_find_the_controller_wherever_they_are(token: str, tmp_path: Path) -> None:
    arguments = parsed("--controller", "http://c:7411", "--controller-token-file", token)
    controller_options.check(arguments)
    variables = controller_options.variables(arguments)
    assert variables["TOPOOPT_CONTROLLER_TOKEN_FILE"] == str(tmp_path / "token")
    settings = controller_settings(variables)
    assert settings is not None
    assert settings.url == "http://c:7411"


def test_without_it_the_environment_stays_as_it_is() -> None:
    controller_options.check(parsed())
    assert controller_options.variables(parsed()) == {}


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        (["--controller", "http://c:1"], ("controller", "--controller-token-file")),
        (["--controller-token-file", "token"], ("controller-token-file", "--controller")),
        (["--controller", "c:1", "--controller-token-file", "token"], ("controller", "c:1")),
        (
            ["--controller", "http://c:1", "--controller-token-file", "no"],
            ("token-file", "No such file"),
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(
    token: str, argv: list[str], tokens: tuple[object, ...]
) -> None:
    with refused(InputError, *tokens):
        controller_options.check(parsed(*argv))
