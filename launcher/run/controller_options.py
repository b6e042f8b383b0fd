"""The options of `topoopt run` for a cluster whose switches have a route controller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.environment import CONTROLLER_VARIABLE
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--controller",
        metavar="URL",
        help="http://HOST:PORT of `topoopt controller`: connections leave from the source ports "
        "that switches hash to the paths it assigns (docs/guides/routes.md; default: ECMP)",
    )
    group.add_argument(
        "--controller-token-file",
        metavar="FILE",
        help="with --controller: its --token-file, of mode 600",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError for invalid options."""
    if (arguments.controller is None) != (arguments.controller_token_file is None):
        given, other = "controller", "controller-token-file"
        if arguments.controller is None:
            given, other = other, given
        raise InputError(f"{given}: needs --{other}, too")
    if arguments.controller is None:
        return
    from torch_topoopt.fabric.credentials import CredentialError, PasswordSource
    from torch_topoopt.links.errors import FabricError
    from torch_topoopt.route_control.host.settings import check_url

    try:
        check_url("controller", arguments.controller)
        PasswordSource(file=arguments.controller_token_file).read()
    except CredentialError as error:
        raise InputError(f"controller-token-file: {error}") from None
    except FabricError as error:
        raise InputError(str(error)) from None


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """The ranks' environment; existing variables stay unless an option replaces them."""
    if arguments.controller is None:
        return {}
    from torch_topoopt.route_control.host.settings import TOKEN_VARIABLE

    token = Path(arguments.controller_token_file).expanduser().absolute()
    return {CONTROLLER_VARIABLE: arguments.controller, TOKEN_VARIABLE: str(token)}
