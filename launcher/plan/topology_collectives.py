"""`topoopt topology --collective ...`: the candidates for a collective on a network or any graph of
links, the schedule of one of them as a file, and the check of such a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from torch_topoopt.launcher import console, documents, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import (
    counted,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
)
from torch_topoopt.topology.collectives.schedule_file import (
    Collective,
    CollectiveScheduleFile,
    check_size,
)

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.topology.collectives.candidates import LinkGraph, PricedCollective

PRICED = within("collective", "collective", "bytes=size_bytes", "auto", "candidates")
"""JSON_FIELDS of a result with a PricedCollective."""

_WITH_COLLECTIVE = ("bytes", "alpha", "hop", "links", "schedule")


@dataclass(frozen=True)
class GraphCandidates:
    """The result of `topoopt topology --links`."""

    JSON_FIELDS: ClassVar = ("servers", *PRICED)

    servers: int
    collective: PricedCollective


@dataclass(frozen=True)
class CheckedSchedule:
    """The result of `topoopt topology --check-schedule`."""

    JSON_FIELDS: ClassVar = (
        "file", *within("schedule", "collective", "algorithm", "servers", "bytes", "steps"),
        "busiest_link_bytes=schedule.busiest_link_bytes", "bound_bytes", "over_bound",
    )  # fmt: skip

    file: str
    schedule: CollectiveScheduleFile
    bound_bytes: float

    @property
    def over_bound(self) -> float:
        return self.schedule.phase_bytes() / self.bound_bytes


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--collective",
        choices=get_args(Collective),
        help="also compare the algorithms for this collective (needs --bytes)",
    )
    options.add_argument(
        "--bytes",
        type=shared_options.quantity("bytes", parse_bytes),
        metavar="SIZE",
        help="with --collective: size of the whole message (of all_gather, the gathered one), "
        "such as 64MB (with its unit)",
    )
    options.add_argument(
        "--alpha",
        type=shared_options.quantity("alpha", parse_seconds),
        metavar="TIME",
        help="with --collective: latency of a message (with its unit, default: 2us)",
    )
    options.add_argument(
        "--hop",
        type=shared_options.quantity("hop", parse_seconds),
        metavar="TIME",
        help="with --collective: latency that each link adds to a message (with its unit, "
        "default: 1us)",
    )
    options.add_argument(
        "--links",
        metavar="FILE",
        help="with --collective: use this graph of links instead of a network, JSON: "
        '{"servers": 3, "links": [[source, target, gbps], ...]}',
    )
    options.add_argument(
        "--schedule",
        type=shared_options.output_file,
        metavar="FILE",
        help="with --collective: write the schedule that auto takes, a JSON document",
    )
    options.add_argument(
        "--check-schedule",
        metavar="FILE",
        help="only replay a schedule, anybody's, step by step",
    )


def run_alone(arguments: argparse.Namespace, options: argparse.ArgumentParser) -> int | None:
    """Runs what needs no network, and returns its exit code; None: the verb finds a network."""
    if arguments.check_schedule is not None:
        _refuse_others(arguments, options, "check-schedule", ("json",))
        return _check(arguments)
    if arguments.collective is None:
        for name in _WITH_COLLECTIVE:
            if getattr(arguments, name) is not None:
                raise InputError(
                    f"{name}: needs a collective, as --collective all_reduce --bytes 1MB"
                )
        return None
    _size(arguments)
    if arguments.links is None:
        return None
    _refuse_others(arguments, options, "links", ("json", "collective", *_WITH_COLLECTIVE))
    return _run_links(arguments)


def priced_on(
    cluster: Cluster, network: Network, arguments: argparse.Namespace
) -> PricedCollective | None:
    """The candidates on a network, if there is a collective; writes the schedule, too."""
    if arguments.collective is None:
        return None
    everyone = range(cluster.servers)
    rings = [
        ring for group in network.groups if set(group.servers) == set(everyone)
        for ring in group.rings
    ]  # fmt: skip
    from torch_topoopt.topology.collectives.candidates import LinkGraph

    alpha_s, hop_s = _latencies(arguments)
    with input_errors():
        graph = LinkGraph(
            cluster.servers, cluster.pair_gbps(network.links), rings, alpha_s=alpha_s, hop_s=hop_s
        )
        return _priced(graph, arguments)


def show(terminal: Terminal, priced: PricedCollective, arguments: argparse.Namespace) -> None:
    """The table of the candidates."""
    alpha_s, hop_s = _latencies(arguments)
    terminal.table(
        f"{priced.collective} of {format_bytes(priced.size_bytes)}, {format_seconds(alpha_s)} a "
        f"message, {format_seconds(hop_s)} a hop",
        ("algorithm", "steps", "time", "over bound", "busiest link"),
        [
            (
                each.algorithm + (" (auto)" if each.algorithm == priced.auto else ""),
                str(each.steps),
                format_seconds(each.seconds),
                f"{each.seconds / each.bound_seconds:.3g}x",
                format_bytes(each.busiest_link_bytes),
            )
            for each in priced.candidates
        ],
    )
    bound = priced.candidates[0]
    twice = " of reduce_scatter and then all_gather" if priced.collective == "all_reduce" else ""
    terminal.line(
        f"bound of the slowest cut{twice}: {format_bytes(bound.bound_bytes)} on the busiest link, "
        f"{format_seconds(bound.bound_seconds)} without latencies"
    )
    if arguments.schedule is not None:
        terminal.line(f"schedule: {arguments.schedule}")


def _refuse_others(
    arguments: argparse.Namespace,
    options: argparse.ArgumentParser,
    option: str,
    allowed: tuple[str, ...],
) -> None:
    """Raises InputError for an option that has no meaning beside `option`."""
    for name, value in vars(arguments).items():
        spelt = name.replace("_", "-")
        if spelt not in (option, *allowed) and value != options.get_default(name):
            raise InputError(f"{spelt}: has no meaning with --{option}; leave one of the two out")


def _size(arguments: argparse.Namespace) -> int:
    """The bytes of the collective; raises InputError."""
    size: float | None = arguments.bytes
    if size is None:
        raise InputError("bytes: missing; say how many, as --bytes 1MB")
    check_size(round(size))
    return round(size)


def _latencies(arguments: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a message and of a hop."""
    from torch_topoopt.topology.collectives.candidates import ALPHA_S, HOP_S

    alpha_s, hop_s = arguments.alpha, arguments.hop
    return ALPHA_S if alpha_s is None else alpha_s, HOP_S if hop_s is None else hop_s


def _priced(graph: LinkGraph, arguments: argparse.Namespace) -> PricedCollective:
    """The candidates; writes the schedule of the one that `auto` takes, if that is requested."""
    from torch_topoopt.topology.collectives.candidates import NotOverLinksError

    priced = graph.priced(arguments.collective, _size(arguments))
    if arguments.schedule is not None:
        try:
            schedule = graph.schedule(priced.collective, priced.size_bytes, priced.auto)
        except NotOverLinksError as error:
            raise InputError(
                f"schedule: {priced.auto} is fastest, but {error}; try a larger --bytes"
            ) from None
        documents.save(schedule, arguments.schedule)
    return priced


def _run_links(arguments: argparse.Namespace) -> int:
    from torch_topoopt.topology.collectives.candidates import LinkGraph
    from torch_topoopt.topology.collectives.graph import GraphFile, pair_rates

    file = documents.load(GraphFile, arguments.links)
    terminal = console.Terminal(json_output=arguments.json)
    alpha_s, hop_s = _latencies(arguments)
    with input_errors():
        graph = LinkGraph(file.servers, pair_rates(file.links), alpha_s=alpha_s, hop_s=hop_s)
        priced = _priced(graph, arguments)
    if arguments.json:
        console.print_json(GraphCandidates(file.servers, priced))
    else:
        show(terminal, priced, arguments)
    return OK


def _check(arguments: argparse.Namespace) -> int:
    from torch_topoopt.topology.collectives.candidates import bound_bytes

    schedule = documents.load(CollectiveScheduleFile, arguments.check_schedule)
    with input_errors():
        bound = bound_bytes(schedule)
    checked = CheckedSchedule(arguments.check_schedule, schedule, bound)
    if arguments.json:
        console.print_json(checked)
        return OK
    console.Terminal().line(
        f"{checked.file}: right: {schedule.collective} of {format_bytes(schedule.bytes)} on "
        f"{counted(schedule.servers, 'server')} by {schedule.algorithm}: "
        f"{counted(schedule.steps, 'step')}, {format_bytes(schedule.busiest_link_bytes())} on the "
        "busiest link, "
        f"{checked.over_bound:.3f} times the bound of {format_bytes(bound)}"
    )
    return OK
