"""`topoopt fabric restore`: brings the switches of a cluster back to a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.launcher.fabric import switch_verbs

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Brings the circuits between the sockets of a cluster file back to those in FOLDER, which `topoopt
fabric snapshot` or `topoopt fabric apply` made. A switch that fails does not keep the others from
going back."""

_EXAMPLES = """\
  topoopt fabric restore lab-before-20260131T120000Z --cluster lab.yaml --dry-run
  topoopt fabric restore lab-before-20260131T120000Z --cluster lab.yaml"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric restore", _DESCRIPTION, _EXAMPLES)
    options.add_argument("folder", metavar="FOLDER", help="the snapshots, one file per switch")
    switch_verbs.add_cluster_option(options)
    switch_verbs.add_change_options(options)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    switch_verbs.check_timeout(arguments)

    from torch_topoopt.fabric.cluster.switches import Switches

    file = switch_verbs.load_switched(arguments.cluster)
    folder = Path(arguments.folder)
    terminal = console.Terminal(json_output=arguments.json)
    with Switches(file) as switches, switch_verbs.progress_of(terminal, file) as progress:
        if arguments.dry_run:
            differences = switches.preview_restore(folder)
        else:
            differences = switches.restore(folder, timeout_s=arguments.timeout, progress=progress)
    if arguments.json:
        console.print_json(switch_verbs.ChangedSwitches(arguments.dry_run, differences))
    else:
        switch_verbs.print_changes(terminal.line, differences, dry=arguments.dry_run)
    return OK
