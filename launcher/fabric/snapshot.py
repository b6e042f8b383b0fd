"""`topoopt fabric snapshot`: records the circuits of a cluster on its switches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.launcher.fabric import switch_verbs

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.switches.circuits import Circuit

_DESCRIPTION = """\
Writes the circuits between the sockets of a cluster file into FOLDER, one file for each switch, for
`topoopt fabric restore`. Only asks the switches."""

_EXAMPLES = """\
  topoopt fabric snapshot before-the-weekend --cluster lab.yaml"""


@dataclass(frozen=True)
class KeptSwitch:
    """A switch and its circuits."""

    name: str
    circuits: tuple[Circuit, ...]


@dataclass(frozen=True)
class KeptSwitches:
    """The result of `topoopt fabric snapshot`."""

    folder: str
    switches: tuple[KeptSwitch, ...]


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
        kept = tuple(KeptSwitch(name, found.circuits) for name, found in snapshots.items())
        console.print_json(KeptSwitches(arguments.folder, kept))
        return OK
    for name, snapshot in snapshots.items():
        count = len(snapshot.circuits)
        terminal.line(f"{name}: {count} circuit{'' if count == 1 else 's'}")
    terminal.line(f"kept in {arguments.folder}")
    return OK
