"""An option that several verbs have is one option: spelt, meant and defaulted alike."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed.run import get_args_parser

from torch_topoopt.launcher import completion, planning, shared_options
from torch_topoopt.launcher.cluster import SUB_VERBS as CLUSTER_VERBS
from torch_topoopt.launcher.fabric import SUB_VERBS as FABRIC_VERBS
from torch_topoopt.launcher.main import VERBS, main
from torch_topoopt.launcher.parser import Renamed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

NAMES = (
    *(verb for verb in VERBS if verb not in ("fabric", "cluster")),
    *(f"fabric_{name}" for name in FABRIC_VERBS),
    *(f"cluster_{name}" for name in CLUSTER_VERBS),
)
PLANNERS = ("plan", "run", "compare")

# Options that differ from the one definition: in which verbs, in what, and why.
DIFFERENT: dict[str, dict[str, str]] = {
    "--accelerator": {"profile": "without it there are no times to show, only FLOPs"},
    "--all": {
        "cluster_status": "of jobs",
        "fabric_down": "of fabrics",
    },
    "--batch-size": {
        "profile": "of one accelerator, whose operators are shown",
        "simulate": "the default is what was planned",
    },
    "--cluster": {
        "doctor": "optional, and may be the standard input",
        "run": "the same command runs on every host",
        "plan": "stands in for servers, ports and bandwidth",
        "fabric_script": "needs interfaces in the file",
        "fabric_apply": "its switches are set",
        "fabric_snapshot": "its switches are asked",
        "fabric_restore": "its switches are set",
        "cluster_submit": "the default is an environment variable",
        "cluster_status": "the default is an environment variable",
        "cluster_cancel": "the default is an environment variable",
        "cluster_daemon": "the default is an environment variable",
    },
    "--evaluations": {"compare": "two searches, and seventeen networks to price after them"},
    "--rounds": {"compare": "two searches, and seventeen networks to price after them"},
    "--failures": {"plan": "on unless refused: the plan says how to go on"},
    "--host": {"doctor": "found out where not given", "fabric_script": "never found out"},
    "--iterations": {"profile": "of the script", "simulate": "of the plan"},
    "--mode": {"topology": "the released artifact's rules make a network, but no plan"},
    "--model": {
        "run": "the default is the script's",
        "simulate": "the default is beside the plan",
        "cluster_submit": "the default is the script's",
    },
    "--mtu": {"fabric_up": "of an interface, with headers"},
    "--name": {"discover": "of a cluster", "cluster_submit": "of a job"},
    "--output": {
        "profile": "an OpGraph or a trace, only if asked for",
        "plan": "the result, which has a default name",
        "discover": "the result, which has a default name",
        "fabric_script": "the default is to print it",
    },
    "--remote-command": {"discover": "with --ssh", "doctor": "always"},
    "--seed": {"simulate": "of the packet level, which has a default of its own"},
}


def named_options(verb: str) -> Iterator[tuple[str, argparse.Action]]:
    """The long options of a verb that are ours."""
    torchruns = set(get_args_parser()._option_string_actions) if verb == "run" else set()
    for action in completion.parser_of(verb)._actions:
        if not isinstance(action, Renamed):
            for name in action.option_strings:
                if name.startswith("--") and name not in torchruns and name != "--help":
                    yield name, action


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, argparse.Action]]:
    """By name and verb."""
    found: dict[str, dict[str, argparse.Action]] = defaultdict(dict)
    for verb in NAMES:
        for name, action in named_options(verb):
            found[name][verb] = action
    return found


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
