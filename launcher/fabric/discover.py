"""`topoopt discover`: finds which port is cabled to which, and writes a cluster file."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import CHECK_FAILED, OK, InputError
from torch_topoopt.launcher.fabric import discover_agents
from torch_topoopt.plan.units import counted, format_gbps

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from torch_topoopt.discovery.agent import Channel
    from torch_topoopt.discovery.survey import Survey
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry
    from torch_topoopt.fabric.credentials import Password
    from torch_topoopt.fabric.server_file.description import ServerDescription

_TOKEN_VARIABLE = "TOPOOPT_DISCOVER_TOKEN"

_DESCRIPTION = """\
Finds out how machines are cabled, and writes a cluster file for `topoopt run --cluster`: both ends
of every cable, with their addresses, speed and MTU. Every port announces its name on its cable; two
that receive each other's announcements and no others are its ends, and a probe between their
addresses confirms it. The hosts are reached by ssh (keys only, it never asks for a password), or
each runs an agent; the agents and this command authenticate each other by a token that all share.
Nothing is changed on any host.
The order in which the hosts are named is the order of the servers."""

_EXAMPLES = """\
  topoopt discover --ssh box0 box1 box2 box3 -o lab.yaml
  topoopt discover --hostfile mlx-hosts.json --dry-run
  topoopt discover --agent --token-file token              # on each host, and then on one:
  topoopt discover --agents 10.0.0.1 10.0.0.2 10.0.0.3 --token-file token -o lab.yaml --json
exit codes: 0 a cluster file was written, 1 no cable was found, 2 bad input or a host that failed"""


@dataclass(frozen=True)
class DiscoveredCable:
    """A cable, and the two ports that it joins."""

    ends: tuple[str, str]
    addresses: list[str]
    gbps: list[float | None]
    mtu: list[int | None]


@dataclass(frozen=True)
class DiscoveredCluster:
    """The result of `topoopt discover`; `output` is the cluster file, if it is written."""

    JSON_FIELDS: ClassVar = (
        "cluster=found.cluster.name", "found.cluster.servers", "cables", "notes", "output",
    )  # fmt: skip

    found: Survey
    output: Path | None

    def cables(self) -> list[DiscoveredCable]:
        cables, known = self.found.cluster.cables, self.found.cluster.ports
        return [
            DiscoveredCable(
                ends,
                [known[end][1].address for end in ends],
                [known[end][1].gbps for end in ends],
                [known[end][1].mtu for end in ends],
            )
            for ends in cables
        ]

    def notes(self) -> list[str]:
        return [*self.found.remarks, *_unconnected(self.found)]


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.agent:
        _run_agent(arguments)
        return OK
    _check(arguments)
    from torch_topoopt.discovery.survey import survey
    from torch_topoopt.fabric.server_file.load import load_server

    server = None if arguments.server_file is None else load_server(arguments.server_file)
    output = Path(arguments.output)
    terminal = console.Terminal(json_output=arguments.json or arguments.dry_run)
    with terminal.progress("discovering") as progress, _channels(arguments) as channels:
        progress(None, counted(len(channels), "host"))
        found = survey(
            channels,
            arguments.name or output.stem,
            interfaces=arguments.interfaces,
            listen_s=arguments.listen_seconds,
        )
    if server is not None:
        found = replace(found, cluster=described(found.cluster, server))
    if not found.cluster.cables:
        if arguments.json:
            console.print_json(DiscoveredCluster(found, None))
        console.error(_nothing(found, arguments.interfaces))
        return CHECK_FAILED
    if not arguments.dry_run:
        try:
            found.cluster.save(output)
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    for remark in (*found.remarks, *_unconnected(found)):
        terminal.line(f"note: {remark}")
    if arguments.json:
        console.print_json(DiscoveredCluster(found, None if arguments.dry_run else output))
    elif arguments.dry_run:
        sys.stdout.write(found.cluster.to_yaml())
    else:
        _show(terminal, found, output)
    return OK


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("discover", _DESCRIPTION, _EXAMPLES)
    _add_hosts(options)
    options.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="cluster.yaml",
        help="the cluster file (default: cluster.yaml)",
    )
    options.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    shared_options.add(options, "dry-run")
    options.add_argument("--name", help="cluster name (default: the file's name)")
    options.add_argument(
        "--interfaces",
        default="",
        metavar="LIST",
        help="prefixes of names of interfaces to look at, such as enp,ib; ^docker,virbr: all but "
        "these (default: all; the network by which a host was reached only by its whole name)",
    )
    shared_options.add(options, "server-file")
    options.add_argument(
        "--listen-seconds",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="listen until no new announcement has arrived for so long, or longer where a host is "
        "too busy to announce its ports (seconds, default: %(default)g)",
    )
    options.add_argument(
        "--remote-command",
        default="topoopt",
        metavar="COMMAND",
        help="with --ssh: how to start topoopt there (default: %(default)s)",
    )
    _add_agent(options)
    shared_options.add(options, "json")
    return options


def _add_hosts(options: argparse.ArgumentParser) -> None:
    hosts = options.add_argument_group("hosts (one of these)").add_mutually_exclusive_group()
    hosts.add_argument("--ssh", nargs="+", metavar="HOST", help="hosts as ssh knows them")
    hosts.add_argument(
        "--hostfile",
        metavar="FILE",
        help="the hosts of an MLX hostfile, a state of exo (GET /state) or its list of peers",
    )
    hosts.add_argument(
        "--agents", nargs="+", metavar="ADDRESS", help="where agents listen: host or host:port"
    )
    hosts.add_argument("--agent", action="store_true", help="be the agent of this host, once")


def _add_agent(options: argparse.ArgumentParser) -> None:
    """The address at which agents listen, and the secret that they share with the survey."""
    token = options.add_argument_group("token of the agents").add_mutually_exclusive_group()
    token.add_argument(
        "--token-env",
        default=_TOKEN_VARIABLE,
        metavar="NAME",
        help="environment variable that holds it (default: %(default)s)",
    )
    token.add_argument("--token-file", metavar="FILE", help="file of mode 600 that holds it")
    agent = options.add_argument_group("agent")
    agent.add_argument(
        "--bind",
        default="0.0.0.0",
        metavar="ADDRESS",
        help="where to listen (default: at every IPv4 address; ::, at every IPv6 address, too)",
    )
    agent.add_argument(
        "--port",
        type=int,
        default=discover_agents.DEFAULT_PORT,
        help="TCP port to listen at (default: %(default)s; 0: a free one)",
    )
    agent.add_argument(
        "--stdio", action="store_true", help="talk over the standard streams, as under ssh"
    )


def _check(arguments: argparse.Namespace) -> None:
    if not (arguments.ssh or arguments.hostfile or arguments.agents):
        raise InputError(
            "hosts: missing; name them with --ssh, --agents or --hostfile (see `topoopt discover "
            "--help`)"
        )
    if not arguments.listen_seconds > 0:
        raise InputError(f"listen-seconds: {arguments.listen_seconds:g} is not greater than 0")
    if not (arguments.dry_run or arguments.force) and os.path.lexists(arguments.output):
        raise InputError(
            f"output: {arguments.output} is there already; name another file, or overwrite it with "
            "--force"
        )


def _channels(arguments: argparse.Namespace) -> AbstractContextManager[list[Channel]]:
    if arguments.agents:
        return discover_agents.listening_agents(arguments.agents, _token(arguments))
    hosts = arguments.ssh or _hosts_of_file(arguments.hostfile)
    return discover_agents.ssh_agents(hosts, arguments.remote_command)


def _hosts_of_file(path: str) -> list[str]:
    from torch_topoopt.fabric.cluster_file.exo_state import addresses_of_exo, is_exo
    from torch_topoopt.fabric.cluster_file.mlx_hostfile import ssh_names
    from torch_topoopt.plan.codec import DocumentError
    from torch_topoopt.plan.file_kinds import EXO_LIST, MLX_HOSTFILE, wrong_kind

    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
        return addresses_of_exo(value) if is_exo(value) else ssh_names(value)
    except OSError as error:
        raise InputError(f"{path}: cannot read this hostfile: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path}: not an MLX hostfile: nested too deeply") from None
    except (DocumentError, ValueError) as error:
        problem = wrong_kind(path, MLX_HOSTFILE, EXO_LIST) or f"not an MLX hostfile: {error}"
        raise InputError(f"{path}: {problem}") from None


def _token(arguments: argparse.Namespace) -> Password:
    from torch_topoopt.fabric.credentials import PasswordSource

    if arguments.token_file is not None:
        return PasswordSource(file=arguments.token_file).read()
    if not os.environ.get(arguments.token_env):
        raise InputError(
            f"token: the environment variable {arguments.token_env} is not set; set it to the "
            "secret that the agents share, or name a --token-file"
        )
    return PasswordSource(env=arguments.token_env).read()


def _run_agent(arguments: argparse.Namespace) -> None:
    from torch_topoopt.discovery.agent import Agent, Channel, serve_tcp
    from torch_topoopt.links.addresses import family_of, is_ipv6
    from torch_topoopt.links.sockets import LISTEN_QUEUE

    if arguments.stdio:
        # SSH_CONNECTION: client, its port, server, its port
        reached = os.environ.get("SSH_CONNECTION", "").split()
        streams = (sys.stdin.buffer, sys.stdout.buffer)
        client, management = (reached[0], reached[2]) if len(reached) == 4 else ("", "")
        Agent(management, client).serve(Channel(*streams, "the survey"))
        return
    token = _token(arguments)
    with socket.socket(family_of(arguments.bind), socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((arguments.bind, arguments.port))
            listener.listen(LISTEN_QUEUE)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"bind: {arguments.bind} port {arguments.port}: {reason}") from None
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if is_ipv6(address) else address
        print(f"agent of {os.uname().nodename}: listening at {shown}:{port}", flush=True)
        serve_tcp(listener, token, discover_agents.LIMIT_S)


def _nothing(found: Survey, interfaces: str) -> str:
    """Why no cable was found, and what to check."""
    looked_at = f" among interfaces {interfaces}" if interfaces else ""
    remarks = "; ".join(found.remarks[:3]) or "no interface is up"
    more = f"; {len(found.remarks) - 3} more" if len(found.remarks) > 3 else ""
    servers = counted(len(found.cluster.servers), "server")
    return (
        f"no cable was found between {servers}{looked_at}, and no file was written: "
        f"{remarks}{more}. Check that both ends of each cable are up (ip link), "
        "have addresses of one subnet (ip address) and let UDP and TCP pass"
    )


def described(cluster: ClusterFile, description: ServerDescription) -> ClusterFile:
    """The cluster with the accelerators and PCIe limits of a description of its servers."""
    limits = {port.name: port.pcie_gbps for port in description.ports if port.pcie_gbps}

    def limited(port: PortEntry) -> PortEntry:
        limit = limits.get(port.interface or port.name)
        slower = limit is not None and port.gbps is not None and limit < port.gbps
        return replace(port, gbps=limit) if slower else port

    servers = (
        replace(
            server,
            accelerators=description.accelerators,
            inside_gbps=description.inside_gbps if description.accelerators > 1 else None,
            ports=tuple(map(limited, server.ports)),
        )
        for server in cluster.servers
    )
    return replace(cluster, servers=tuple(servers)).validate()


def _unconnected(found: Survey) -> list[str]:
    from torch_topoopt.fabric.cluster.static_plan import network_of
    from torch_topoopt.links.errors import FabricError

    try:
        network_of(found.cluster)
    except FabricError as error:
        return [str(error)]
    return []


def _show(terminal: console.Terminal, found: Survey, output: Path) -> None:
    from torch_topoopt.links.addresses import is_link_local

    rows = []
    for cable in found.cluster.cables:
        ports = [found.cluster.ports[end][1] for end in cable]
        speeds = {port.gbps for port in ports}
        rows.append(
            (
                " - ".join(cable),
                "link-local"
                if all(is_link_local(port.address) for port in ports)
                else " - ".join(port.address for port in ports),
                ", ".join(format_gbps(s) if s else "not known" for s in sorted(speeds, key=str)),
                ", ".join(sorted({str(port.mtu) for port in ports})),
            )
        )
    terminal.table(
        f"{counted(len(rows), 'cable')} between {counted(len(found.cluster.servers), 'server')}",
        ("cable", "addresses", "speed", "MTU"),
        rows,
    )
    terminal.line(f"cluster file: {output}")
    keep = shlex.join(["topoopt", "fabric", "persist", "--cluster", str(output)])
    terminal.line(f"keep these addresses over restarts of the hosts: {keep}")
