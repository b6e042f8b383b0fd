"""What the environment says of the controller, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.host.settings import controller_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


def test_no_controller_is_no_error() -> None:
    assert controller_settings({}) is None
    assert controller_settings({"TOPOOPT_CONTROLLER": ""}) is None


def test_all_of_it_is_read(token_file: Path) -> None:
    settings = controller_settings(
        {
            "TOPOOPT_CONTROLLER": "http://[fd00::1]:7411/",
            "TOPOOPT_CONTROLLER_TOKEN_FILE": str(token_file),
            "TOPOOPT_CONTROLLER_HOST": "h3",
            "TOPOOPT_CONTROLLER_THRESHOLD": "4MiB",
        }
    )
    assert settings is not None
    assert (settings.url, settings.host) == ("http://[fd00::1]:7411", "h3")
    assert settings.threshold_bytes == 4 << 20
    assert settings.token.reveal() == "0123456789abcdef"
    assert "0123456789abcdef" not in repr(settings)


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"TOPOOPT_CONTROLLER": "https://c:7411"}, ("TOPOOPT_CONTROLLER", "https://c:7411")),
        ({"TOPOOPT_CONTROLLER": "http://c"}, ("http://HOST:PORT",)),
        ({"TOPOOPT_CONTROLLER": "http://c:70000"}, ("http://HOST:PORT",)),
        ({"TOPOOPT_CONTROLLER_TOKEN_FILE": ""}, ("TOPOOPT_CONTROLLER_TOKEN_FILE",)),
        ({"TOPOOPT_CONTROLLER_TOKEN_FILE": "/nowhere"}, ("No such file",)),
        ({"TOPOOPT_CONTROLLER_THRESHOLD": "4"}, ("TOPOOPT_CONTROLLER_THRESHOLD", 4)),
    ],
)
def test_what_cannot_be_used_is_named(
    token_file: Path, change: dict[str, str], tokens: tuple[object, ...]
) -> None:
    good = {
        "TOPOOPT_CONTROLLER": "http://c:7411",
        "TOPOOPT_CONTROLLER_TOKEN_FILE": str(token_file),
    }
    with refused(FabricError, *tokens):
        controller_settings(good | change)


def test_a_token_that_others_may_read_is_refused(token_file: Path) -> None:
    token_file.chmod(0o644)
    with refused(FabricError, "chmod 600"):
        controller_settings(
            {
                "TOPOOPT_CONTROLLER": "http://c:7411",
                "TOPOOPT_CONTROLLER_TOKEN_FILE": str(token_file),
            }
        )
