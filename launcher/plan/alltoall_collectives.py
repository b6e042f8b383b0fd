"""`topoopt alltoall --collective ...`: AllReduce and others on circuits that move, or stay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.reconfiguration.collectives.planner import CollectiveOption

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
        help="with --collective: size of the whole message (of all_gather, the gathered one), "
        "with its unit "
        "(default: 64MB)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    for name, default in _OTHERS:
        if getattr(arguments, name) != default:
            raise InputError(f"{name.replace('_', '-')}: is of all_to_all, not of a collective")
    from torch_topoopt.reconfiguration.collectives import planner

    terminal = console.Terminal(json_output=arguments.json)
    size = arguments.bytes if arguments.bytes is not None else _DEFAULT_BYTES
    packets = packet_options.given_options(arguments, seed=False)
    asked = (arguments.collective, arguments.servers, arguments.degree)
    with input_errors():
        costs = CircuitCosts(
            link_gbps=arguments.bandwidth or shared_options.DEFAULT_LINK_GBPS,
            latency_s=arguments.latency,
            reconfiguration_s=arguments.reconfiguration_delay,
        )
        with terminal.progress("planning") as progress:
            progress(None, arguments.collective)
            options = planner.options(*asked, costs, size)
            progress(None, "the delay up to which moving pays")
            pays_s = planner.break_even_s(*asked, costs, size)
        simulated_s = _simulated_s(terminal, arguments, options, costs, packets)
    if arguments.schedule is not None:
        from torch_topoopt.reconfiguration.collectives.timeline_file import timeline_file

        documents.save(timeline_file(options[0].timeline, costs), arguments.schedule)
    if arguments.json:
        results = _results(arguments, costs, size, options, pays_s)
        for option, seconds in zip(results["options"], simulated_s, strict=False):
            option["packet_seconds"] = seconds
        console.print_json(results)
    else:
        _show(terminal, arguments, costs, options, simulated_s)
        _show_worth(terminal, options, pays_s)
        if arguments.schedule is not None:
            terminal.line(f"schedule: {arguments.schedule}")
    return OK


def _simulated_s(
    terminal: Terminal,
    arguments: argparse.Namespace,
    options: list[CollectiveOption],
    costs: CircuitCosts,
    packets: dict[str, Any],
) -> list[float]:
    """Of each option what it takes in the packet simulator; none at level slot."""
    if arguments.level != "packet":
        return []
    from torch_topoopt.reconfiguration.collectives.packet_level import simulated_timeline

    found: list[float] = []
    with terminal.progress("simulating") as progress:
        for i, option in enumerate(options):
            progress(i / len(options), option.kind)
            run = simulated_timeline(option.timeline, costs, seed=arguments.seed, **packets)
            found.append(run.completion_s)
    return found


def check_all_to_all(arguments: argparse.Namespace) -> None:
    """Raises InputError for what is of other collectives."""
    if arguments.bytes is not None:
        raise InputError("bytes: is of --collective; an all-to-all has --bytes-per-pair")


def _results(
    arguments: argparse.Namespace,
    costs: CircuitCosts,
    size: float,
    options: list[CollectiveOption],
    pays_s: float,
) -> dict[str, Any]:
    """The JSON output."""
    return {
        "collective": arguments.collective,
        "servers": arguments.servers,
        "degree": arguments.degree,
        "bytes": size,
        "link_gbps": costs.link_gbps,
        "latency_s": costs.latency_s,
        "reconfiguration_delay_s": costs.reconfiguration_s,
        "fastest": options[0].kind,
        "reconfigure": not options[0].stays,
        "pays_up_to_delay_s": None if math.isinf(pays_s) else pays_s,
        "options": [
            {
                "kind": option.kind,
                "stays": option.stays,
                "seconds": option.seconds,
                "factors": list(option.factors),
                "pieces": option.plan.pieces,
                "reconfigurations": option.timeline.reconfigurations,
            }
            for option in options
        ],
    }


def _show(
    terminal: Terminal,
    arguments: argparse.Namespace,
    costs: CircuitCosts,
    options: list[CollectiveOption],
    simulated_s: list[float],
) -> None:
    title = (
        f"{arguments.collective} of {format_bytes(options[0].timeline.total_bytes)}, "
        f"{counted(arguments.servers, 'server')}, {counted(arguments.degree, 'circuit')} each, "
        f"{format_gbps(costs.link_gbps)}, delay {format_seconds(costs.reconfiguration_s)}"
    )
    rows = [
        [
            option.kind + (" (fastest)" if option is options[0] else ""),
            " x ".join(map(str, option.factors)),
            str(option.plan.pieces),
            str(option.timeline.reconfigurations),
            format_seconds(option.seconds),
            *([format_seconds(simulated_s[i])] if simulated_s else []),
        ]
        for i, option in enumerate(options)
    ]
    columns = ("kind", "factors", "pieces", "d", "time")
    terminal.table(title, (*columns, "packets") if simulated_s else columns, rows)


def _show_worth(terminal: Terminal, options: list[CollectiveOption], pays_s: float) -> None:
    """Whether to move, and up to which delay of the switch that pays."""
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
