"""The options of `topoopt run` about its links, from their table (torch_topoopt.links.options)."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from torch_topoopt.launcher.run import controller_options
from torch_topoopt.links.options import LINK_OPTIONS, LinkOption, RequestedLinks


def add_options(group: argparse._ActionsContainer) -> None:
    for option in LINK_OPTIONS:
        value: dict[str, Any] = {"choices": tuple(option.words)}
        if "1" in option.words:
            value = {"action": "store_true"}
        elif option.numbers:
            value = {"type": functools.partial(_text, option), "metavar": "N"}
        group.add_argument(f"--{option.flag}", help=option.help, **value)


def _text(option: LinkOption, text: str) -> str:
    """argparse type of a valid value of the option."""
    try:
        option.value_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def check(arguments: argparse.Namespace) -> None:
    """Raises FabricError for invalid options."""
    environment = variables(arguments) | controller_options.variables(arguments)
    RequestedLinks.of(environment, by_flag=True)


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment of ranks; unset options leave it unchanged."""
    texts = {o.variable: getattr(arguments, o.flag.replace("-", "_")) for o in LINK_OPTIONS}
    return {name: "1" if text is True else text for name, text in texts.items() if text}
