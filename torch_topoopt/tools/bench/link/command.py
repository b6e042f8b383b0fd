"""`topoopt bench link`: measures cables between real hosts, and says what limits them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import CHECK_FAILED, OK, InputError
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.discovery.agent import Channel
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.bench.link.cable_bench import MeasuredCable, MeasuredDirection
    from torch_topoopt.tools.doctor.findings import Site

_DESCRIPTION = """\
Measures single cables of a cluster file while nothing else uses them: the rate of TCP with 1, 2 and
4 connections, each direction alone and both together, the latency of 8 bytes and 64 kB, bytes that
TCP sent again, and frames that the cards dropped. Where both ports have an RDMA device, also the
latencies of libfabric's fi_pingpong.

For each direction it says what port, PCIe link and MTU allow, and what is the limit. Results are
kept on the host where this runs; a cable that has become slower makes the exit code 1, and
`topoopt doctor` reports it.

Hosts are reached by ssh at their management addresses, and need torch_topoopt."""

_EXAMPLES = """\
  topoopt bench link box0 box1 --cluster lab.yaml
  topoopt bench link box0 box1 --cluster lab.yaml --port enp1s0f0np0
  topoopt bench link --all --cluster lab.yaml --json"""

_CABLE_LIMIT_S = 300.0  # a host that does not answer must not block the command


@dataclass(frozen=True)
class MeasuredCables:
    """The result of `topoopt bench link`."""

    cluster: str
    cables: list[MeasuredCable]


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("bench link", _DESCRIPTION, _EXAMPLES)
    options.add_argument("servers", nargs="*", metavar="SERVER", help="two servers of the file")
    options.add_argument("--cluster", metavar="FILE", help="the cluster file")
    options.add_argument("--all", action="store_true", help="all cables, one after the other")
    options.add_argument(
        "--port", metavar="NAME", help="of the first server (default: all cables of the two)"
    )
    options.add_argument(
        "--window",
        type=float,
        default=0.3,
        metavar="S",
        help="a rate is the median of five windows of so many seconds (default: %(default)g)",
    )
    options.add_argument(
        "--libfabric",
        metavar="PROVIDER",
        help="measure this provider of libfabric, such as tcp (default: verbs where there is RDMA)",
    )
    options.add_argument("--end", metavar="NAME", help=argparse.SUPPRESS)  # be that host's end
    shared_options.add(options, "ssh-command", "remote-command", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.end is not None:
        return _serve(arguments.end)
    if arguments.cluster is None:
        raise InputError("cluster: missing; name the cluster file of the cables")
    if not arguments.window > 0:
        raise InputError(f"window: {arguments.window:g} is not greater than 0")
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.launcher.fabric.discover_agents import started_agents
    from torch_topoopt.launcher.fabric.host_command import host_command

    file = load_cluster(arguments.cluster)
    cables = _chosen(file, arguments)
    names = list(dict.fromkeys(end.partition(":")[0] for cable in cables for end in cable))
    ends = {name: ["bench", "link", "--end", name] for name in names}
    commands = [
        (name, host_command(file, file.server_number(name), words, arguments))
        for name, words in ends.items()
    ]
    terminal = console.Terminal(json_output=arguments.json)
    with contextlib.ExitStack() as stack:
        channels = stack.enter_context(started_agents(commands, _CABLE_LIMIT_S * len(cables)))
        progress = stack.enter_context(terminal.progress("measuring"))
        agents = dict(zip(names, channels, strict=True))
        site, pingpong = _site(file, agents)
        measured = [
            _measure(site, cable, agents, pingpong, arguments, progress) for cable in cables
        ]
    if arguments.json:
        console.print_json(MeasuredCables(file.name, measured))
    else:
        for one in measured:
            _show(terminal, one)
    slower = any(one.earlier_gbps is not None for one in measured)
    return CHECK_FAILED if slower else OK


def _serve(name: str) -> int:
    from torch_topoopt.discovery.agent import Channel
    from torch_topoopt.tools.bench.link.end import LinkEnd

    LinkEnd(name).serve(Channel(sys.stdin.buffer, sys.stdout.buffer, "topoopt bench link"))
    return OK


def _chosen(file: ClusterFile, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The cables to measure, each from the first server."""
    named = arguments.servers
    if arguments.all:
        if named or arguments.port:
            raise InputError("all: measures all cables; leave out servers and --port")
        found = list(file.cables)
    elif len(named) != 2:
        raise InputError(f"servers: name two of the cluster file, or --all (got {len(named)})")
    else:
        for name in named:
            file.server_number(name)
        both = [way for cable in file.cables for way in (cable, cable[::-1])]
        found = [c for c in both if [end.partition(":")[0] for end in c] == named]
        if found and arguments.port:
            known = ", ".join(c[0].partition(":")[2] for c in found)
            found = [c for c in found if c[0] == f"{named[0]}:{arguments.port}"]
            if not found:
                raise InputError(
                    f"port: {arguments.port!r} of {named[0]} has no cable to {named[1]} "
                    f"(these have: {known})"
                )
    if not found:
        raise InputError(
            f"cables: {file.name} has none" + f" of {' and '.join(named)}" * bool(named)
        )
    return found


def _site(file: ClusterFile, agents: dict[str, Channel]) -> tuple[Site, set[str]]:
    """The facts of the hosts, and those with libfabric's program."""
    from torch_topoopt.tools.doctor.facts import HostFacts
    from torch_topoopt.tools.doctor.findings import Site

    answers = {name: agent.ask("facts") for name, agent in agents.items()}
    facts = {name: HostFacts.from_json(answer["facts"]) for name, answer in answers.items()}
    return Site(facts, file), {name for name, answer in answers.items() if answer["pingpong"]}


def _measure(
    site: Site,
    cable: tuple[str, str],
    agents: dict[str, Channel],
    pingpong: set[str],
    arguments: argparse.Namespace,
    progress: Callable[[float | None, str], None],
) -> MeasuredCable:
    from torch_topoopt.tools.bench.link.cable_bench import CableBench
    from torch_topoopt.tools.doctor import link_history

    names = [end.partition(":")[0] for end in cable]
    bench = CableBench(
        site,
        cable,
        (agents[names[0]], agents[names[1]]),
        pingpong=pingpong.issuperset(names),
        provider=arguments.libfabric,
        window_s=arguments.window,
    )
    measured = bench.run(progress)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        link_history.keep(site, cable, link_history.KeptMeasurement(now, measured.gbps))
    except OSError as error:
        console.warning(f"the result cannot be kept ({error}); a later one has no comparison")
        return measured
    earlier = link_history.earlier_gbps(link_history.read_history(site, cable))
    return replace(measured, earlier_gbps=earlier)


def _show(terminal: console.Terminal, cable: MeasuredCable) -> None:
    terminal.table(
        " - ".join(cable.ends),
        ("from", "connections", "alone", "both ways", "sent again"),
        [
            (
                direction.source if rate is direction.rates[0] else "",
                str(rate.connections),
                format_gbps(rate.gbps),
                format_gbps(rate.together_gbps),
                f"{rate.resent:.2%}",
            )
            for direction in cable.directions
            for rate in direction.rates
        ],
    )
    for direction in cable.directions:
        terminal.line(_sentence(direction))
    times = [f"{format_bytes(t.size_bytes)} {format_seconds(t.seconds)}" for t in cable.latency]
    terminal.line(f"latency: {', '.join(times)}")
    if (fabric := cable.libfabric) is not None and fabric.gbps is not None:
        times = [
            f"{format_bytes(t.size_bytes)} {format_seconds(t.seconds)}" for t in fabric.latency
        ]
        rate = f"{format_gbps(fabric.gbps)} with one message of 1 MiB at a time"
        terminal.line(f"libfabric ({fabric.provider}): {', '.join(times)}, {rate}")
    elif fabric is not None:
        terminal.line(f"libfabric ({fabric.provider}): {fabric.error}")
    if cable.damaged_frames:
        terminal.line(f"dropped by the cards: {counted(cable.damaged_frames, 'frame')}")
    if cable.earlier_gbps is not None:
        usual = format_gbps(cable.earlier_gbps)
        terminal.line(f"SLOWER: {format_gbps(cable.gbps)} now, {usual} usually")
    terminal.line()


def _sentence(direction: MeasuredDirection) -> str:
    judged = direction.verdict
    should = "" if judged.should_gbps is None else f" of {format_gbps(judged.should_gbps)}"
    advice = f" ({judged.advice})" if judged.advice else ""
    return (
        f"{direction.source} -> {direction.target}: {format_gbps(direction.gbps)}{should}, "
        f"limited by {judged.limit}{advice}"
    )
