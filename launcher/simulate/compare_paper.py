"""`topoopt compare --paper hammingmesh`: Table II of that paper, ours beside the printed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.plan.units import parse_bytes

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.comparison.hammingmesh import Size, TableRow
    from torch_topoopt.launcher.console import Terminal

PAPERS = ("hammingmesh",)
_COLUMNS = {
    "cost_mdollar": "cost",
    "global_percent": "global bandwidth",
    "allreduce_percent": "AllReduce bandwidth",
    "diameter": "diameter",
}


@dataclass(frozen=True)
class PaperTable:
    """The result of `topoopt compare --paper`."""

    paper: str
    size: str
    level: str
    message_bytes: float
    networks: list[TableRow]


def add_options(options: argparse.ArgumentParser) -> None:
    """Adds --paper and what goes with it."""
    paper = options.add_argument_group(
        "networks of a paper", "in the place of MODEL; of the options above only --level and --json"
    )
    paper.add_argument(
        "--paper",
        choices=PAPERS,
        help="hammingmesh: cost, bandwidths and diameter of the networks of its Table II "
        "(docs/planning/hammingmesh.md)",
    )
    paper.add_argument(
        "--size",
        choices=("small", "large"),
        help="small: about 1 000 accelerators (default); large: about 16 000",
    )
    paper.add_argument(
        "--message",
        metavar="BYTES",
        help="size of the buffer that every accelerator reduces, with its unit (default: 16GiB)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError unless there is a model or a paper, and not both."""
    if arguments.paper is None:
        if arguments.model is None:
            raise InputError("MODEL: missing; name one, or --paper hammingmesh")
        for name in ("size", "message"):
            if getattr(arguments, name) is not None:
                raise InputError(f"{name}: belongs to --paper")
    elif arguments.model is not None:
        raise InputError(f"MODEL: {arguments.model!r} is given, and --paper compares no model")
    elif arguments.same_time is not None:
        raise InputError("same-time: belongs to a MODEL, and --paper compares none")


def run(arguments: argparse.Namespace) -> int:
    """Computes the table and shows it; returns the exit code."""
    from torch_topoopt.comparison.hammingmesh import MESSAGE_BYTES, table

    terminal = console.Terminal(json_output=arguments.json)
    size: Size = arguments.size or "small"
    with terminal.progress("Table II of HammingMesh") as progress, input_errors():
        message_bytes: float = MESSAGE_BYTES
        if arguments.message is not None:
            try:
                message_bytes = parse_bytes(arguments.message)
            except ValueError as error:
                raise InputError(f"message: {error}") from None
        rows = table(size, arguments.level, message_bytes=message_bytes, on_progress=progress)
    if arguments.json:
        console.print_json(PaperTable(arguments.paper, size, arguments.level, message_bytes, rows))
    else:
        _show(terminal, rows, size, arguments.level)
    return OK


def _show(terminal: Terminal, rows: list[TableRow], size: str, level: str) -> None:
    title = f"HammingMesh, Table II, {size} cluster"
    terminal.table(
        f"{title}: cost in millions of dollars, diameter in cables",
        ["network", "accelerators", "switches", "DACs", "AoCs", "cost", "paper", "off", "diameter",
         "paper"],
        [
            [
                row.name,
                *(str(n) for n in (row.accelerators, row.switches, row.dacs, row.aocs)),
                f"{row.ours.cost_mdollar:.4g}",
                f"{row.paper.cost_mdollar:g}",
                _off(row, "cost_mdollar"),
                str(row.ours.diameter),
                str(row.paper.diameter),
            ]
            for row in rows
        ],
    )  # fmt: skip
    terminal.table(
        f"{title}: global bandwidth in % of injection, at {level} level",
        ["network", "global", "paper", "off", "best", "shifts", "saving", "paper"],
        [
            [
                row.name,
                f"{row.ours.global_percent:.1f}",
                f"{row.paper.global_percent:.1f}",
                _off(row, "global_percent"),
                _percent(row.best_global_percent),
                _percent(row.shifted_global_percent),
                f"{row.ours.global_saving:.1f}x",
                f"{row.paper.global_saving:.1f}x",
            ]
            for row in rows
        ],
    )
    terminal.table(
        f"{title}: AllReduce bandwidth in % of half of injection, at {level} level",
        ["network", "AllReduce", "paper", "off", "saving", "paper"],
        [
            [
                row.name,
                f"{row.ours.allreduce_percent:.1f}",
                f"{row.paper.allreduce_percent:.1f}",
                _off(row, "allreduce_percent"),
                f"{row.ours.allreduce_saving:.1f}x",
                f"{row.paper.allreduce_saving:.1f}x",
            ]
            for row in rows
        ],
    )
    terminal.line(
        "global: all to all at once, split evenly over shortest paths; best: split as well as was "
        "found; shifts: one shift of all accelerators after the other"
    )
    _show_notes(terminal, rows, level)


def _show_notes(terminal: Terminal, rows: list[TableRow], level: str) -> None:
    if level == "flow":
        for row in rows:
            for column, why in row.reasons.items():
                terminal.line(f"{row.name}, {_COLUMNS[column]}: {why}")
    for row in rows:
        if row.other_cost_mdollar is not None:
            terminal.line(
                f"note: {row.name}: the paper's cost has the price of AoCs for its DACs: "
                f"{row.other_cost_mdollar:.4g}"
            )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _off(row: TableRow, field: str) -> str:
    return f"{100 * row.deviations[field]:+.1f}%"
