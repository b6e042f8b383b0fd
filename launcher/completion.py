"""`topoopt completion`: a shell script that completes verbs, options and their choices."""

from __future__ import annotations

import argparse
import importlib

from torch_topoopt.launcher import parser
from torch_topoopt.launcher.errors import OK

SHELLS = ("bash", "zsh", "fish", "tcsh")

_DESCRIPTION = """\
Prints a script that makes SHELL complete the verbs of topoopt, their options and the values that
these can have, torchrun's options of `topoopt run` included. It is complete for the versions of
topoopt and torch that print it: print it again after an update."""

_EXAMPLES = """\
  topoopt completion bash > ~/.local/share/bash-completion/completions/topoopt
  topoopt completion zsh > ~/.zfunc/_topoopt       # a folder of $fpath, before compinit
  topoopt completion fish > ~/.config/fish/completions/topoopt.fish"""

_FILES = ("FILE", "PLAN", "PLAN.json", "PLAN_A", "PLAN_B", "CLUSTER.yaml", "MODEL", "SCRIPT")
_FOLDERS = ("DIR", "FOLDER", "RUN_DIR")


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("completion", _DESCRIPTION, _EXAMPLES)
    options.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    import shtab

    arguments = make_parser().parse_args(argv)
    print(shtab.complete(whole_parser(), shell=arguments.shell))
    return OK


def whole_parser() -> argparse.ArgumentParser:
    """All verbs as sub-parsers of one parser. Imports torch, for the options of torchrun."""
    from torch_topoopt.launcher.main import TOOLS, VERBS

    whole = argparse.ArgumentParser(prog="topoopt")
    whole.add_argument("-V", "--version", action="store_true", help="print the version")
    verbs = whole.add_subparsers(dest="verb")
    for verb, (does, _) in VERBS.items():
        if below_verb := sub_verbs_of(verb):
            below = verbs.add_parser(verb, help=does).add_subparsers(dest="sub_verb")
            for name, what in below_verb.items():
                _add(below, name, what, parser_of(verb, name))
        else:
            _add(verbs, verb, does, parser_of(verb))
    verbs.add_parser("help", help=TOOLS["help"]).add_argument("about", choices=[*VERBS])
    _add(verbs, "completion", TOOLS["completion"], make_parser())
    return whole


def sub_verbs_of(verb: str) -> dict[str, str]:
    """The sub-verbs of a verb, with a description of each; empty if it has none."""
    from torch_topoopt.launcher.main import module_of

    found: dict[str, str] = getattr(module_of(verb), "SUB_VERBS", {})
    return found


def parser_of(verb: str, sub_verb: str = "") -> argparse.ArgumentParser:
    """The parser of a verb, or of a sub-verb of it."""
    from torch_topoopt.launcher.main import module_of

    if verb == "run":  # its options include torchrun's
        sub_verb = "run_parser"
    module = module_of(verb)
    if sub_verb:
        module = importlib.import_module(f"{module.__package__}.{sub_verb}")
    made: argparse.ArgumentParser = module.make_parser()
    return made


def _add(
    parsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    does: str,
    made: argparse.ArgumentParser,
) -> None:
    import shtab

    for action in made._actions:
        if action.metavar in _FILES or action.dest == "training_script":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    parsers.add_parser(name, help=does, parents=[made], add_help=False)
