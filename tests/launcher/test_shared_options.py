"""An option that several verbs have is one option: spelt, meant and defaulted alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands_page import DIFFERENT, PAGE, options_by_verb, page

from torch_topoopt.launcher import shared_options
from torch_topoopt.launcher.fabric import up
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.plan import planning

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

PLANNERS = ("plan", "run", "compare")


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, argparse.Action]]:
    """By name and verb."""
    return options_by_verb()


def meaning(action: argparse.Action) -> tuple[Any, ...]:
    choices = None if action.choices is None else tuple(action.choices)
    kind = (type(action), action.type, action.nargs, choices, action.metavar, action.required)
    return (*kind, repr(action.default), action.help)


def test_an_option_of_several_verbs_is_defined_once(
    options: dict[str, dict[str, argparse.Action]],
) -> None:
    for name, by_verb in options.items():
        alike = {
            meaning(action)
            for verb, action in by_verb.items()
            if verb not in DIFFERENT.get(name, {})
        }
        assert len(alike) < 2, f"{name} of {', '.join(by_verb)}"


def test_every_difference_is_one(options: dict[str, dict[str, argparse.Action]]) -> None:
    for name, reasons in DIFFERENT.items():
        by_verb = options[name]
        assert set(reasons) <= set(by_verb), name
        assert len({meaning(action) for action in by_verb.values()}) > 1, name


@pytest.mark.parametrize("verb", PLANNERS)
def test_every_planning_option_is_on_all_verbs_that_plan(
    verb: str, options: dict[str, dict[str, argparse.Action]]
) -> None:
    assert all(verb in options[f"--{name}"] for name in shared_options.PLANNING)


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        ("topology --servers 4 --simplex", "--ports simplex"),
        ("topology --servers 4 --mode best --budget 2", "--operations"),
        ("profile x.py --world-size 2 --demand d.json", "--output-demand"),
        ("run --servers 2 --ranks-per-server 2 x.py", "--accelerators-per-server"),
        ("fabric up --name lab --servers 4", "NAME: topoopt fabric up NAME ..."),
    ],
)
def test_a_spelling_of_before_names_the_one_of_now(
    arguments: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert f"is called {now}" in error
    assert error.count("\n") == 1


def test_an_earlier_spelling_works_and_names_the_one_of_today(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ("--servers", "4", "--json")
    assert main(["advise", *shape, "--degree", "2", "--bandwidth", "25Gbps"]) == 0
    today = json.loads(capsys.readouterr().out)
    assert main(["advise", *shape, "--ports", "2", "--speed", "25Gbps"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == today
    assert captured.err.splitlines() == [
        "topoopt: --ports is now --degree",
        "topoopt: --speed is now --bandwidth",
    ]
    assert main(["advise", *shape, "--ports", "2", "--speed", "fast"]) == 2
    assert "--speed: bandwidth: 'fast'" in capsys.readouterr().err


def test_the_delay_of_a_switch_is_spelt_as_that_of_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("--switch-delay", "--switch-delay-s"):
        assert up.make_parser().parse_args(["lab", option, "0.1"]).switch_delay == 0.1
    assert capsys.readouterr().err == "topoopt: --switch-delay-s is now --switch-delay\n"


@pytest.mark.parametrize(
    ("source", "space"),
    [
        ("import torch_topoopt\nm = torch_topoopt.parallelize(m, b)", "full"),
        ("import torch_topoopt as t\nm = t.pipeline(m, b, l)", "pipeline"),
        ("from torch_topoopt import parallelize as p\nm = p(m, b)", "full"),
        ("from transformers import pipeline\npipeline('x')", "data-parallel"),
        ("import torch_topoopt\ntorch_topoopt.log(loss=1)", "data-parallel"),
        ("no python at all", "data-parallel"),
    ],
)
def test_a_script_says_by_its_calls_what_may_be_planned(
    source: str, space: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert planning.space_of("auto", str(script)) == space
    assert planning.space_of("auto", "vgg", str(script)) == space
    assert planning.space_of("samples", str(script)) == "samples"


@pytest.mark.parametrize("model", ["vgg", "file.py:callable", "opgraph.json"])
def test_a_model_alone_may_be_split_in_any_way(model: str) -> None:
    assert planning.space_of("auto", model) == "full"


def test_the_page_of_commands_says_what_the_parsers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/launcher/commands_page.py"
