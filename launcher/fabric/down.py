"""`topoopt fabric down`: removes fabrics of network namespaces, whole ones and remains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Removes a fabric of network namespaces: its namespaces with everything that runs in them, its cables
and its management network. Also what a crash has left of one, and with --all the routes that a
killed job of `topoopt run --cluster --relay kernel` has left on this host. Needs root."""

_EXAMPLES = """\
  topoopt fabric down lab
  topoopt fabric down --all --dry-run"""


@dataclass(frozen=True)
class RemovedFabrics:
    """The result of `topoopt fabric down`; `host_routes`: whether a killed job has left routes."""

    removed: list[str]
    in_use: list[str]
    dry_run: bool
    host_routes: bool


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric down", _DESCRIPTION, _EXAMPLES)
    options.add_argument("name", nargs="?", metavar="NAME", help="name of the fabric")
    options.add_argument(
        "--all", action="store_true", help="all of them, those that a running process owns excepted"
    )
    shared_options.add(options, "dry-run")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.fabric.cluster import host_forwarding
    from torch_topoopt.fabric.netns import kernel as netns_kernel
    from torch_topoopt.fabric.netns import state as netns_state

    if (arguments.name is None) == (not arguments.all):
        raise InputError("name: say which fabric, or --all (see `topoopt fabric list`)")
    netns_kernel.require()
    terminal = console.Terminal(json_output=arguments.json)
    known = netns_state.names()
    names = known if arguments.all else [arguments.name]
    removed, kept = [], []
    for name in names:
        if arguments.all and netns_state.describe(name)[0] in (
            netns_state.IN_USE,
            netns_state.BEING_MADE,
        ):
            kept.append(name)
            continue
        if not arguments.dry_run:
            there = netns_state.take_down(name)
        else:
            there = name in known or bool(netns_kernel.of_fabric(name))
        if not there:
            listed = ", ".join(known) or "none"
            raise InputError(f"name: there is no fabric {name!r}; there is: {listed}")
        removed.append(name)
    host_routes = arguments.all and host_forwarding.undo_left(dry_run=arguments.dry_run)
    if arguments.json:
        console.print_json(RemovedFabrics(removed, kept, arguments.dry_run, host_routes))
        return OK
    for name in removed:
        terminal.line(f"fabric {name}: {'would be ' if arguments.dry_run else ''}removed")
    if host_routes:
        terminal.line(f"routes of this host: {'would be ' if arguments.dry_run else ''}removed")
    for name in kept:
        terminal.line(f"fabric {name}: kept, a running process owns it (name it to remove it)")
    if not (removed or kept or host_routes):
        terminal.line("there is no fabric")
    return OK
