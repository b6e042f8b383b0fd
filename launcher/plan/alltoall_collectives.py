"""`topoopt alltoall --collective ...`: AllReduce and others on circuits that move, or stay."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch_topoopt.launcher import console, documents, packet_options, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.plan.units import (
    counted,
    format_bytes,
    format_gbps,
    format_seconds,
    parse_bytes,
)
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.reconfiguration.all_to_all.comparison import Option
    from torch_topoopt.reconfiguration.collectives.planner import CollectiveOption

    _Option = TypeVar("_Option", Option, CollectiveOption)

CHOICES = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast")
_DEFAULT_BYTES = 64e6
_OTHERS = (  # options of an all-to-all alone, and their defaults
    ("reconfigurations", None),
    ("bytes_per_pair", None),
    ("matrix", None),
    ("chunk", None),
    ("mode", "best"),
)


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--collective",
        choices=CHOICES,
        default="all_to_all",
        help="collective to schedule, as described above (default: all_to_all)",
    )
    options.add_argument(
        "--bytes",
        type=shared_options.quantity("bytes", parse_bytes),
        metavar="SIZE",
        help="with --collective: size of the whole message (of all_gather, the gathered one; "
        "with its unit, default: 64MB)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    for name, default in _OTHERS:
        if getattr(arguments, name) != default:
            raise InputError(f"{name.replace('_', '-')}: is of all_to_all, not of a collective")
    from torch_topoopt.reconfiguration.collectives import planner
    from torch_topoopt.reconfiguration.collectives.packet_level import simulated_timeline

    terminal = console.Terminal(json_output=arguments.json)
    size = arguments.bytes if arguments.bytes is not None else _DEFAULT_BYTES
    packets = packet_options.given_options(arguments, seed=False)
    asked = (arguments.collective, arguments.servers, arguments.degree)
    with input_errors():
        costs = costs_of(arguments)
        with terminal.progress("planning") as progress:
            progress(None, arguments.collective)
            options = planner.options(*asked, costs, size)
            progress(None, "the delay up to which moving pays")
            pays_s = planner.break_even_s(*asked, costs, size)

        def seconds(option: CollectiveOption) -> float:
            run = simulated_timeline(option.timeline, costs, seed=arguments.seed, **packets)
            return run.completion_s

        if arguments.level == "packet":
            options = in_packets(terminal, options, seconds)
    if arguments.schedule is not None:
        from torch_topoopt.reconfiguration.collectives.timeline_file import timeline_file

        documents.save(timeline_file(options[0].timeline, costs), arguments.schedule)
    if arguments.json:
        console.print_json(CollectiveOptions(*asked, size, costs, pays_s, options))
    else:
        _show(terminal, arguments, costs, options)
        _show_worth(terminal, options, pays_s)
        if arguments.schedule is not None:
            terminal.line(f"schedule: {arguments.schedule}")
    return OK


@dataclass(frozen=True)
class CollectiveOptions:
    """The result of `topoopt alltoall --collective`; the fastest option comes first."""

    JSON_FIELDS: ClassVar = (
        "collective", "servers", "degree", "bytes", "costs.link_gbps", "costs.latency_s",
        "reconfiguration_delay_s=costs.reconfiguration_s", "fastest", "reconfigure",
        "pays_up_to_delay_s?", "options",
    )  # fmt: skip

    collective: str
    servers: int
    degree: int
    bytes: float
    costs: CircuitCosts
    pays_up_to_delay_s: float
    options: list[CollectiveOption]

    def fastest(self) -> str:
        return self.options[0].kind

    def reconfigure(self) -> bool:
        return not self.options[0].stays


def costs_of(arguments: argparse.Namespace) -> CircuitCosts:
    """Raises ValueError."""
    return CircuitCosts(
        link_gbps=arguments.bandwidth or shared_options.DEFAULT_LINK_GBPS,
        latency_s=arguments.latency,
        reconfiguration_s=arguments.reconfiguration_delay,
    )


def in_packets(
    terminal: Terminal, options: list[_Option], seconds: Callable[[_Option], float]
) -> list[_Option]:
    """The options with their seconds in the packet simulator."""
    found = []
    with terminal.progress("simulating") as progress:
        for i, option in enumerate(options):
            progress(i / len(options), f"{i} of {len(options)}")
            found.append(replace(option, packet_seconds=seconds(option)))
    return found


def title(name: str, what: str, arguments: argparse.Namespace, costs: CircuitCosts) -> str:
    return (
        f"{name} of {counted(arguments.servers, 'server')}, "
        f"{counted(arguments.degree, 'circuit')} each, {what}, "
        f"{format_gbps(costs.link_gbps)}, delay {format_seconds(costs.reconfiguration_s)}"
    )


def show_table(
    terminal: Terminal,
    title: str,
    columns: list[str],
    rows: list[list[str]],
    options: Sequence[Option | CollectiveOption],
) -> None:
    """The table, with a column of the packet simulator if that has run."""
    times = [o.packet_seconds for o in options if o.packet_seconds is not None]
    if times:
        columns = [*columns, "packets"]
        rows = [[*row, format_seconds(time)] for row, time in zip(rows, times, strict=True)]
    terminal.table(title, columns, rows)


def check_all_to_all(arguments: argparse.Namespace) -> None:
    """Raises InputError for options of other collectives."""
    if arguments.bytes is not None:
        raise InputError("bytes: is of --collective; an all-to-all has --bytes-per-pair")


def _show(
    terminal: Terminal,
    arguments: argparse.Namespace,
    costs: CircuitCosts,
    options: list[CollectiveOption],
) -> None:
    rows = [
        [
            option.kind + (" (fastest)" if option is options[0] else ""),
            " x ".join(map(str, option.factors)),
            str(option.plan.pieces),
            str(option.timeline.reconfigurations),
            format_seconds(option.seconds),
        ]
        for option in options
    ]
    size = format_bytes(options[0].timeline.total_bytes)
    heading = title(arguments.collective, size, arguments, costs)
    show_table(terminal, heading, ["kind", "factors", "pieces", "d", "time"], rows, options)


def _show_worth(terminal: Terminal, options: list[CollectiveOption], pays_s: float) -> None:
    """Whether to move, and the longest delay of the switch at which that pays."""
    stay = next(option for option in options if option.stays)
    if stay is not options[0]:
        faster = stay.seconds / options[0].seconds
        terminal.line(f"{faster:.3g} times as fast as circuits that stay")
    if pays_s == 0:
        terminal.line("moving circuits never pays here")
    elif math.isinf(pays_s):
        terminal.line("moving circuits pays at any delay")
    else:
        terminal.line(f"moving circuits pays up to a delay of {format_seconds(pays_s)}")
