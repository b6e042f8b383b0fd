"""`topoopt fabric list`: the fabrics of network namespaces of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.netns.state import FabricRecord

_DESCRIPTION = """\
Lists the fabrics of network namespaces: kept (until `topoopt fabric down`), in use (by a running
job, which removes it), being made, abandoned (by a job that was killed), broken or incomplete
(something of it is missing; `topoopt fabric down NAME` removes the rest)."""

_EXAMPLES = """\
  topoopt fabric list
  topoopt fabric list --json"""


@dataclass(frozen=True)
class ListedFabric:
    """A fabric, its state, and its record where that can be read."""

    JSON_FIELDS: ClassVar = (
        "name", "state", "record.servers", "record.gbps", "record.mtu", "record.forwarding",
        "management=record.layout.management_network",
    )  # fmt: skip

    name: str
    state: str
    record: FabricRecord | None


@dataclass(frozen=True)
class ListedFabrics:
    """The result of `topoopt fabric list`."""

    fabrics: list[ListedFabric]


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric list", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.fabric.netns import state as netns_state

    fabrics = [ListedFabric(name, *netns_state.describe(name)) for name in netns_state.names()]
    if arguments.json:
        console.print_json(ListedFabrics(fabrics))
        return OK
    terminal = console.Terminal()
    if not fabrics:
        terminal.line("there is no fabric; `topoopt fabric up` makes one")
        return OK
    terminal.table(
        "Fabrics of network namespaces",
        ("name", "state", "servers", "rate of a link", "MTU", "forwarding", "management network"),
        [(fabric.name, fabric.state, *_cells(fabric.record)) for fabric in fabrics],
    )
    return OK


def _cells(record: FabricRecord | None) -> tuple[str, ...]:
    if record is None:
        return ("-",) * 5
    rate = "-" if record.gbps is None else format_gbps(record.gbps)
    network = record.layout.management_network
    return str(record.servers), rate, str(record.mtu), record.forwarding, network
