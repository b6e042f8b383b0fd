"""The options of links of `topoopt run`: their checks, and the environment of ranks."""

from __future__ import annotations

import argparse

import pytest
from support.refusals import refused

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import link_options
from torch_topoopt.launcher.run.run import main
from torch_topoopt.links.errors import FabricError


def parsed(*argv: str, controller: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.set_defaults(controller=controller, controller_token_file="token")
    link_options.add_options(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("argv", "variables"),
    [
        ((), {}),
        (("--connections", "4"), {"TOPOOPT_CONNECTIONS": "4"}),
        (
            ("--encrypt", "--transport", "tcp", "--connections", "16"),
            {"TOPOOPT_ENCRYPT": "1", "TOPOOPT_TRANSPORT": "tcp", "TOPOOPT_CONNECTIONS": "16"},
        ),
        (
            ("--transport", "fabric", "--connections", "1"),
            {"TOPOOPT_TRANSPORT": "fabric", "TOPOOPT_CONNECTIONS": "1"},
        ),
        (
            ("--link-threads", "--reduce-threads", "4"),
            {"TOPOOPT_LINK_THREADS": "1", "TOPOOPT_REDUCE_THREADS": "4"},
        ),
        (
            ("--zero-copy", "--connections", "2"),
            {"TOPOOPT_ZERO_COPY": "1", "TOPOOPT_CONNECTIONS": "2"},
        ),
        (
            ("--reduce-threads", "0", "--encrypt"),
            {"TOPOOPT_ENCRYPT": "1", "TOPOOPT_REDUCE_THREADS": "0"},
        ),
    ],
)
def test_ranks_get_the_variables_of_the_options(
    argv: tuple[str, ...], variables: dict[str, str]
) -> None:
    arguments = parsed(*argv)
    link_options.check(arguments)
    assert link_options.variables(arguments) == variables


@pytest.mark.parametrize(
    ("argv", "controller", "tokens"),
    [
        (("--connections", "2", "--transport", "auto"), None, ("connections", "auto")),
        (("--connections", "2"), "http://10.0.0.1:7411", ("connections", "controller")),
        (("--link-threads", "--transport", "auto"), None, ("link-threads", "auto")),
        (("--zero-copy", "--encrypt"), None, ("zero-copy", "encrypted")),
        (("--encrypt", "--transport", "fabric"), None, ("transport", "fabric")),
    ],
)
def test_options_that_exclude_each_other_are_refused_by_flag(
    argv: tuple[str, ...], controller: str | None, tokens: tuple[object, ...]
) -> None:
    with refused(FabricError, *tokens):
        link_options.check(parsed(*argv, controller=controller))


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--connections", "0"),
        ("--connections", "17"),
        ("--reduce-threads", "65"),
        ("--reduce-threads", "-1"),
        ("--transport", "rdma"),
    ],
)
def test_a_value_that_an_option_does_not_have_is_refused_by_the_parser(
    flag: str, text: str
) -> None:
    with refused(InputError, flag, f"'{text}'"):
        main(["--servers", "2", flag, text, __file__])
