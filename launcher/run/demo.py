"""`topoopt demo`: an example trained on four emulated servers, from the plan to the report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, examples, parser, shared_options
from torch_topoopt.launcher.run import run, run_parser

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Trains a small network on handwritten digits, on four emulated servers of this machine: plans how to
wire them, opens the links, trains, compares measured with predicted bytes and times, and writes a
report. It takes less than a minute, and needs no checkout, no root and no GPU. The first line is
the command that does the same with `topoopt run`, for a start with other options."""

_EXAMPLES = """\
  topoopt demo --run-dir demo
  topoopt demo --json > demo.json"""

_SERVERS = ("--servers", "4", "--degree", "2", "--bandwidth", "150Mbps")


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("demo", _DESCRIPTION, _EXAMPLES)
    run_parser.add_run_dir(options)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    options = [*_SERVERS]
    if arguments.run_dir is not None:
        options += ["--run-dir", str(arguments.run_dir)]
    if arguments.json:
        options.append("--json")
    options += [str(Path(examples.__file__).with_name("digits.py")), "--epochs", "8"]
    console.Terminal(json_output=arguments.json).line(shlex.join(["topoopt", "run", *options]))
    return run.main(options)
