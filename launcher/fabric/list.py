"""`topoopt fabric list`: the fabrics of network namespaces of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Lists the fabrics of network namespaces: kept (until `topoopt fabric down`), in use (by a running
job, which removes it), being made, abandoned (by a job that was killed), broken or incomplete
(something of it is missing; `topoopt fabric down NAME` removes the rest)."""

_EXAMPLES = """\
  topoopt fabric list
  topoopt fabric list --json"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric list", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.fabric.netns import state as netns_state

    fabrics = []
    for name in netns_state.names():
        state, record = netns_state.describe(name)
        fabrics.append(
            {
                "name": name,
                "state": state,
                "servers": record and record.servers,
                "gbps": record and record.gbps,
                "mtu": record and record.mtu,
                "forwarding": record and record.forwarding,
                "management": record and record.layout.management_network,
            }
        )
    if arguments.json:
        console.print_json({"fabrics": fabrics})
        return OK
    terminal = console.Terminal()
    if not fabrics:
        terminal.line("there is no fabric; `topoopt fabric up` makes one")
        return OK
    terminal.table(
        "Fabrics of network namespaces",
        ("name", "state", "servers", "rate of a link", "MTU", "forwarding", "management network"),
        [
            (
                str(fabric["name"]),
                str(fabric["state"]),
                *(
                    "-" if value is None else str(value)
                    for value in (
                        fabric["servers"],
                        fabric["gbps"] and format_gbps(float(str(fabric["gbps"]))),
                        fabric["mtu"],
                        fabric["forwarding"],
                        fabric["management"],
                    )
                ),
            )
            for fabric in fabrics
        ],
    )
    return OK
