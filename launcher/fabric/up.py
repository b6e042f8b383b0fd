"""`topoopt fabric up`: makes a fabric of network namespaces that outlives the command."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.fabric import up_network
from torch_topoopt.plan.units import counted, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.fabric.netns.state import FabricRecord
    from torch_topoopt.plan import Plan

_DESCRIPTION = """\
Makes a fabric of emulated servers on this machine, as root: every server a network namespace, every
cable a veth pair of the bandwidth, a management network beside them, and routes over the cables to
every server. Every link is verified first. It stays until `topoopt fabric down NAME`.

With --network the hosts of a network file hang on switches, each a network namespace whose kernel
spreads connections over all shortest paths (ECMP, by a hash of addresses, protocol and ports)."""

_EXAMPLES = """\
  topoopt fabric up lab --servers 12 --degree 4 --bandwidth 25Mbps
  topoopt fabric up lab --plan plan.json --forwarding split
  topoopt fabric up lab --network network.json --bandwidth 30Mbps
  ip netns exec topoopt-lab-0 bash          # a shell on server 0"""


@dataclass(frozen=True)
class MadeFabric:
    """The result of `topoopt fabric up`."""

    JSON_FIELDS: ClassVar = (
        "layout.name", "plan.cluster.servers", "links", "gbps", "record.shaper",
        "record.classifier", "namespaces", "addresses", "management=layout.management_network",
    )  # fmt: skip

    plan: Plan
    gbps: float | None
    record: FabricRecord
    layout: NetnsLayout

    def links(self) -> int:
        return len(self.plan.network.links)

    def namespaces(self) -> list[str]:
        return [self.layout.namespace(server) for server in range(self.plan.cluster.servers)]

    def addresses(self) -> list[str]:
        return [self.layout.server_address(server) for server in range(self.plan.cluster.servers)]


@dataclass(frozen=True)
class FabricToMake:
    """The result of `topoopt fabric up --dry-run`."""

    dry_run: bool
    servers: int
    cables: int
    gbps: float | None


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.network is not None:
        return up_network.make(arguments)
    plan = _plan(arguments)
    gbps = arguments.bandwidth if arguments.plan is None else plan.cluster.link_gbps

    from torch_topoopt.fabric.netns import state as netns_state
    from torch_topoopt.fabric.netns.fabric import NetnsFabric
    from torch_topoopt.fabric.netns.options import NetnsOptions

    terminal = console.Terminal(json_output=arguments.json)
    started = time.monotonic()
    with terminal.progress(f"making the fabric {arguments.name}") as show:
        fabric = NetnsFabric(
            arguments.name,
            NetnsOptions(
                gbps=gbps,
                mtu=arguments.mtu,
                shaper=arguments.shaper,
                forwarding=arguments.forwarding,
                switch_delay_s=arguments.switch_delay,
                keep=True,
            ),
            progress=lambda text: show(None, text),
        )
        if arguments.dry_run:
            return _say_what_would_be(terminal, plan, gbps, arguments)
        fabric.connect(plan)
    layout = fabric.layout
    record, _, _ = netns_state.load(layout.name)
    if arguments.json:
        console.print_json(MadeFabric(plan, gbps, record, layout))
        return OK
    rate = "not limited" if gbps is None else f"{format_gbps(gbps)} (by {record.shaper})"
    terminal.line(
        f"fabric {layout.name}: {counted(plan.cluster.servers, 'server')}, "
        f"{counted(len(plan.network.links), 'link')} of rate {rate}, each verified from both ends, "
        f"in {format_seconds(time.monotonic() - started)}"
    )
    terminal.line(f"a shell on server 0: ip netns exec {layout.namespace(0)} bash")
    terminal.line(
        f"server S is {layout.server_address(0)} + S over the cables, "
        f"{layout.management_address(0)} + S on the management network"
    )
    terminal.line(f"to remove it: topoopt fabric down {layout.name}")
    return OK


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric up", _DESCRIPTION, _EXAMPLES)
    options.add_argument("name", metavar="NAME", help="name of the fabric: a-z, 0-9 and '-'")
    options.add_argument("--name", action=parser.Renamed, now="NAME: topoopt fabric up NAME ...")
    shared_options.add(options, "plan", "servers", "degree", "bandwidth", "parallel-links")
    shared_options.add(options, "network")
    options.add_argument(
        "--mtu",
        type=int,
        default=1500,
        metavar="BYTES",
        help="MTU of the cables (bytes, default: 1500)",
    )
    options.add_argument(
        "--shaper",
        choices=["tbf", "htb"],
        help="queueing discipline that limits rates (default: whichever is available)",
    )
    options.add_argument(
        "--forwarding",
        choices=["routes", "split"],
        default="routes",
        help="how relays recognise packets to forward: by IP address (default), or by the MAC "
        "address of a second interface per port, as in the paper's Appendix I",
    )
    shared_options.add(options, "switch-delay")
    options.add_argument("--switch-delay-s", action=parser.Alias, now="--switch-delay", type=float)
    shared_options.add(options, "dry-run", "json")
    return options


def _plan(arguments: argparse.Namespace) -> Plan:
    from torch_topoopt.plan import Demand, GroupDemand, Plan

    if arguments.plan is not None:
        for option in ("servers", "degree", "bandwidth", "parallel_links"):
            if getattr(arguments, option) not in (None, False):
                name = option.replace("_", "-")
                raise InputError(f"{name}: --{name} and --plan exclude each other")
        plan = documents.load(Plan, arguments.plan)
        documents.check_one_rate(plan, arguments.plan)
        return plan
    if arguments.servers is None:
        raise InputError("servers: missing; say how many, e.g. --servers 4, or give a --plan")
    from torch_topoopt.topology.find_network import find_network

    arguments.ports = "duplex"  # a veth pair carries both directions
    cluster = shared_options.cluster_of(arguments)
    demand = Demand((GroupDemand(tuple(range(cluster.servers)), 1 << 20),), ())
    with input_errors():
        network = find_network(cluster, demand)
    return Plan.of_network(cluster, network, demand, model="none")


def _say_what_would_be(
    terminal: console.Terminal, plan: Plan, gbps: float | None, arguments: argparse.Namespace
) -> int:
    servers = plan.cluster.servers
    cables = len(plan.network.links) // 2
    rate = "no limit" if gbps is None else format_gbps(gbps)
    text = (
        f"would make {counted(servers + 1, 'namespace')} topoopt-{arguments.name}-0 to "
        f"-{servers - 1} and -management, {counted(cables, 'cable')} with {rate} per direction, "
        f"MTU {arguments.mtu}, forwarding by {arguments.forwarding}"
    )
    if arguments.json:
        console.print_json(FabricToMake(True, servers, cables, gbps))
    else:
        terminal.line(text)
    return OK
