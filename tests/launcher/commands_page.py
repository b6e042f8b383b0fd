"""Writes docs/reference/commands.md from the parsers: python tests/launcher/commands_page.py."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.run import get_args_parser

from torch_topoopt.launcher import completion
from torch_topoopt.launcher.fabric.fabric import SUB_VERBS as FABRIC_VERBS
from torch_topoopt.launcher.main import TOOLS, VERBS
from torch_topoopt.launcher.parser import Renamed
from torch_topoopt.tools.queue.commands.cluster import SUB_VERBS as CLUSTER_VERBS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
NAMES = (
    *(verb for verb in VERBS if verb not in ("fabric", "cluster")),
    *(f"fabric_{name}" for name in FABRIC_VERBS),
    *(f"cluster_{name}" for name in CLUSTER_VERBS),
)

# Options that differ from the one definition: in which verbs, and why.
DIFFERENT: dict[str, dict[str, str]] = {
    "--accelerator": {"profile": "without it there are no times to show, only FLOPs"},
    "--all": {
        "cluster_status": "of jobs",
        "fabric_down": "of fabrics",
    },
    "--apply": {"fabric_persist": "changes settings, and repairs none"},
    "--bandwidth": {
        "advise": "of the cables to buy; it has no default",
        "alltoall": "of a circuit; nothing is emulated",
    },
    "--batch-size": {
        "profile": "of one accelerator, whose operators are shown",
        "simulate": "the default is what was planned",
    },
    "--bytes": {"topology": "of the collective that is asked for; it has no default"},
    "--check": {"bench": "of results", "export": "of a file"},
    "--cluster": {
        "doctor": "optional, and may be the standard input",
        "bench": "measured, not trained on",
        "inspect": "hosts with dumps, each over ssh",
        "export": "for names, addresses and interfaces",
        "run": "the same command runs on every host",
        "plan": "stands in for servers, ports and bandwidth",
        "nccl-env": "only addresses are read",
        "fabric_script": "needs interfaces in the file",
        "fabric_persist": "needs interfaces in the file",
        "fabric_apply": "its switches are set",
        "fabric_snapshot": "its switches are asked",
        "fabric_restore": "its switches are set",
        "cluster_submit": "the default is an environment variable",
        "cluster_status": "the default is an environment variable",
        "cluster_cancel": "the default is an environment variable",
        "cluster_daemon": "the default is an environment variable",
    },
    "--collective": {"topology": "over links that stay; an all-to-all is not one of them"},
    "--controller": {"probe": "it is reported to, not followed"},
    "--degree": {
        "advise": "of the cables to buy; it has no default",
        "alltoall": "circuits are directed, and one is enough",
    },
    "--evaluations": {"compare": "two searches, and all networks to price after them"},
    "--rounds": {"compare": "two searches, and all networks to price after them"},
    "--failures": {"plan": "on unless refused: the plan says how to go on"},
    "--flows": {"assign": "flows to route, and it needs them"},
    "--host": {
        "doctor": "detected where not given",
        "fabric_script": "never detected",
        "probe": "a host of a network file",
    },
    "--interfaces": {"advise": "those of the ports, not where to look for cables"},
    "--iterations": {"profile": "of the script", "simulate": "of the plan"},
    "--jobs": {"allocate": "jobs that ask for boards"},
    "--level": {"alltoall": "beside the model of slots, with which it plans"},
    "--links": {"bench": "shows the bytes of every link", "topology": "reads a graph from a file"},
    "--mode": {
        "alltoall": "of schedules",
        "topology": "the released artifact's rules make a network, but no plan",
    },
    "--model": {
        "advise": "the default is training in general",
        "export": "the default is beside the plan",
        "run": "the default is the script's",
        "simulate": "the default is beside the plan",
        "cluster_submit": "the default is the script's",
    },
    "--mtu": {"fabric_up": "of an interface, with headers"},
    "--name": {"discover": "of a cluster", "cluster_submit": "of a job"},
    "--network": {"fabric_up": "instead of a plan, or of servers and cables"},
    "--output": {
        "profile": "an OpGraph or a trace, only if asked for",
        "advise": "a folder of several files",
        "export": "a folder where the format has several files; one is printed",
        "plan": "the result, which has a default name",
        "discover": "the result, which has a default name",
        "timeline": "the result, which has a default name",
        "fabric_script": "the default is to print it",
        "fabric_persist": "a cluster file, if its addresses are new",
        "nccl-env": "what the plugin reads, only if asked for",
    },
    "--remote-command": {"discover": "with --ssh", "doctor": "always"},
    "--schedule": {"topology": "of one collective over links that stay"},
    "--scheme": {
        "allocate": "boards, not paths",
        "controller": "only those that always have an answer, soon",
    },
    "--subnet": {"fabric_persist": "of either family"},
    "--token-file": {
        "controller": "every request needs it",
        "probe": "of the controller",
    },
    "--run-dir": {"bench": "nothing is kept unless asked for"},
    "--seed": {"simulate": "of the packet level, which has a default of its own"},
    "--undo": {"fabric_persist": "of hosts, with --apply"},
    "--transport": {"run": "of the links that are made, not of simulated senders"},
}

_HEAD = """\
# Commands

This page lists all verbs, and the options that several verbs share. `topoopt help VERB` explains a
verb with all its options. `run` also has every option of torchrun, which
`topoopt run --help-torchrun` lists.

`topoopt completion bash|zsh|fish|tcsh` prints a script by which a shell completes verbs, options
and values. Its `--help` says where to put it.

The page is made from the parsers (`python tests/launcher/commands_page.py`), and a test compares it
with them.
"""

_SHARED = """\
An option has the same values, meaning and default for all verbs, except those with \\*: see
`topoopt help VERB` for these. Ports of a server are `--degree`, and their rate is `--bandwidth`;
`--ports` and `--speed` of `advise` still work, with a note. `plan`, `run` and `compare` have all
planning options, so the same options describe the same job to each. The first line of their output
is what they assume (accelerator, samples, ports, bandwidth).

`--json` prints one JSON object on stdout. On the site, the page of each verb has the JSON Schema of
that object.
"""


def named_options(verb: str) -> Iterator[tuple[str, argparse.Action]]:
    """The long options of a verb that are ours."""
    torchruns = set(get_args_parser()._option_string_actions) if verb == "run" else set()
    for action in completion.parser_of(*verb.split("_", 1))._actions:
        if not isinstance(action, Renamed):
            for name in action.option_strings:
                if name.startswith("--") and name not in torchruns and name != "--help":
                    yield name, action


def options_by_verb() -> dict[str, dict[str, argparse.Action]]:
    """By name and verb."""
    found: dict[str, dict[str, argparse.Action]] = defaultdict(dict)
    for verb in NAMES:
        for name, action in named_options(verb):
            found[name][verb] = action
    return found


def page() -> str:
    """The whole text."""
    lines = [_HEAD, "## Verbs", "", "| verb | what it is for |", "| --- | --- |"]
    for verb, does in ({verb: about.does for verb, about in VERBS.items()} | TOOLS).items():
        lines.append(f"| `{verb}` | {does} |")
        below = {"fabric": FABRIC_VERBS, "cluster": CLUSTER_VERBS}.get(verb, {})
        lines += [f"| `{verb} {name}` | {what} |" for name, what in below.items()]
    lines += ["", "## Options of several verbs", "", _SHARED, "| option | verbs | meaning |"]
    lines.append("| --- | --- | --- |")
    shared = {name: verbs for name, verbs in options_by_verb().items() if len(verbs) > 1}
    for name, verbs in shared.items():
        different = DIFFERENT.get(name, {})
        first = next((v for v in verbs if v not in different), next(iter(verbs)))
        listed = ", ".join(v.replace("_", " ") + r"\*" * (v in different) for v in verbs)
        lines.append(f"| `{name}{_value(verbs[first])}` | {listed} | {_help(verbs[first])} |")
    return "\n".join(lines) + "\n"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return " " + "\\|".join(map(str, action.choices))
    return f" {action.metavar}" if action.metavar else ""


def _help(action: argparse.Action) -> str:
    return ((action.help or "") % {"default": action.default}).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
