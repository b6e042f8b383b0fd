"""`topoopt fabric apply`: makes the circuits of a plan on the switches of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.launcher.fabric import switch_verbs

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_DESCRIPTION = """\
Makes the circuits of PLAN on the switches of a cluster file, and nothing else: only the sockets
that the file names are touched, and every circuit between two of them that the plan does not need
is removed. All switches change, or none: if one fails, all go back to the circuits from before,
which are kept in a folder too (see `topoopt fabric restore`)."""

_EXAMPLES = """\
  topoopt fabric apply plan.json --cluster lab.yaml --dry-run
  topoopt fabric apply plan.json --cluster lab.yaml
  topoopt fabric restore lab-before-20260131T120000Z --cluster lab.yaml"""


@dataclass(frozen=True)
class AppliedPlan(switch_verbs.ChangedSwitches):
    """The result of `topoopt fabric apply`; `snapshots` is the folder with the old circuits."""

    JSON_FIELDS: ClassVar = (*switch_verbs.ChangedSwitches.JSON_FIELDS, "cables", "snapshots")

    cables: tuple[tuple[str, str], ...]
    snapshots: Path | None


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric apply", _DESCRIPTION, _EXAMPLES)
    options.add_argument("plan", metavar="PLAN", help="a plan.json that `topoopt plan` made")
    switch_verbs.add_cluster_option(options)
    switch_verbs.add_change_options(options)
    options.add_argument(
        "--snapshots",
        metavar="FOLDER",
        help="where to keep the circuits from before (default: CLUSTER-before-TIME beside the "
        "cluster file)",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    switch_verbs.check_timeout(arguments)

    from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
    from torch_topoopt.fabric.cluster.switches import Switches
    from torch_topoopt.plan import Plan

    file = switch_verbs.load_switched(arguments.cluster)
    plan = documents.load(Plan, arguments.plan)
    place_on_switches(plan, file)  # rejects an unsuitable plan before contacting a switch
    terminal = console.Terminal(json_output=arguments.json)
    folder = None
    with Switches(file) as switches, switch_verbs.progress_of(terminal, file) as progress:
        placed = place_on_switches(plan, file, switches.plugged())
        differences = switches.preview(placed.cables)
        if not arguments.dry_run:
            if any(differences.values()):
                stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
                folder = switch_verbs.new_folder(arguments.snapshots, arguments.cluster, stamp)
            differences = switches.configure(
                placed.cables, timeout_s=arguments.timeout, folder=folder, progress=progress
            )
    if arguments.json:
        console.print_json(AppliedPlan(arguments.dry_run, differences, placed.file.cables, folder))
        return OK
    switch_verbs.print_changes(terminal.line, differences, dry=arguments.dry_run)
    if not arguments.dry_run:
        count = sum(len(pairs) for pairs in placed.cables.values())
        terminal.line(f"all {count} cables of the plan on switches carry light")
        if people := switch_verbs.panels_of_people(file):
            terminal.line(f"(on {', '.join(people)} that is a person's word, not a measurement)")
    if folder is not None:
        terminal.line(
            f"back to before: topoopt fabric restore {folder} --cluster {arguments.cluster}"
        )
    return OK
