"""`topoopt fabric snapshot`: writes down the circuits of a cluster on its switches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.launcher.fabric import switch_verbs

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Writes the circuits between the sockets of a cluster file into FOLDER, one file for each switch, for
`topoopt fabric restore`. Only asks the switches."""

_EXAMPLES = """\
  topoopt fabric snapshot before-the-weekend --cluster lab.yaml"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric snapshot", _DESCRIPTION, _EXAMPLES)
    options.add_argument("folder", metavar="FOLDER", help="made if it is not there")
    switch_verbs.add_cluster_option(options)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.fabric.cluster.switches import Switches, save_snapshots

    file = switch_verbs.load_switched(arguments.cluster)
    terminal = console.Terminal(json_output=arguments.json)
    with Switches(file) as switches:
        snapshots = switches.snapshots()
    save_snapshots(snapshots, Path(arguments.folder))
    if arguments.json:
        rows = [
            {"name": name, "circuits": [str(c) for c in snapshot.circuits]}
            for name, snapshot in snapshots.items()
        ]
        console.print_json({"folder": arguments.folder, "switches": rows})
        return OK
    for name, snapshot in snapshots.items():
        count = len(snapshot.circuits)
        terminal.line(f"{name}: {count} circuit{'' if count == 1 else 's'}")
    terminal.line(f"kept in {arguments.folder}")
    return OK
