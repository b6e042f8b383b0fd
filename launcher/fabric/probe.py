"""`topoopt probe`: the path of each source port of this host through the switches."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.route_control.network_file import NetworkFile

    PortPaths = dict[str, dict[int, tuple[str, ...]]]

_MOST_PORTS = 1000  # for each target
_PROTOCOLS = {"tcp": 6, "udp": 17}

_DESCRIPTION = """\
Finds out which source port of this host takes which path to other hosts: packets of the connections
that are to be made, with a time to live that ends at one switch after the other, which say so
(ICMP). No packet reaches another host. The network file needs the addresses of hosts, and those
with which switches answer. Needs the right to open raw sockets (root, or CAP_NET_RAW).

With --controller it is reported to `topoopt controller`, which assigns paths by it. After a cable
has died or come back, switches hash differently: probe again."""

_EXAMPLES = """\
  topoopt probe --network network.json --target-port 20000
  topoopt probe --network network.json --target-port 20000 \\
      --controller http://10.0.0.1:7411 --token-file token"""


@dataclass(frozen=True)
class ProbedPorts:
    """The result of `topoopt probe`: by target, source port -> path, and paths without a port."""

    host: str
    ports: PortPaths
    without_ports: dict[str, list[list[str]]]
    url: str | None


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("probe", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "network", required=True)
    options.add_argument(
        "--target-port", type=int, required=True, metavar="N", help="where the others listen"
    )
    options.add_argument(
        "--host",
        metavar="NAME",
        help="which host of the file this one is (default: the one with an address of this host)",
    )
    options.add_argument(
        "--targets", metavar="NAMES", help="hosts, with commas between (default: all others)"
    )
    options.add_argument(
        "--protocol",
        choices=list(_PROTOCOLS),
        default="tcp",
        help="protocol of the probes (default: %(default)s)",
    )
    options.add_argument(
        "--ports-per-path",
        type=int,
        default=2,
        metavar="N",
        help="source ports to find for each path (default: %(default)s)",
    )
    options.add_argument("--controller", metavar="URL", help="report it to this one")
    options.add_argument(
        "--token-file", metavar="FILE", help="file with the token of the controller"
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.route_control.network_file import NetworkFile

    for name, value, most in (
        ("target-port", arguments.target_port, 2**16 - 1),
        ("ports-per-path", arguments.ports_per_path, _MOST_PORTS),
    ):
        if not 1 <= value <= most:
            raise InputError(f"{name}: {value} is not in 1..{most}")
    if (arguments.controller is None) != (arguments.token_file is None):
        raise InputError("controller: --controller and --token-file need each other")
    network = documents.load(NetworkFile, arguments.network)
    host = _own_name(network, arguments.host)
    targets = _targets(network, host, arguments.targets)
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress(f"probing from {host}"):
        found = _probe(network, host, targets, arguments)
    if arguments.controller is not None:
        _report(arguments, host, found)
    missing = _without_ports(network, host, found)
    if arguments.json:
        console.print_json(ProbedPorts(host, found, missing, arguments.controller))
        return OK
    terminal.table(
        f"Source ports of {host} to port {arguments.target_port}",
        ("target", "path", "source ports"),
        [
            (target, " - ".join(path), ", ".join(map(str, ports)) or "none found")
            for target, table in found.items()
            for path, ports in sorted(_by_path(table, missing.get(target, [])).items())
        ],
    )
    if arguments.controller is not None:
        terminal.line(f"reported to {arguments.controller}")
    return OK


def _probe(
    network: NetworkFile, host: str, targets: list[str], arguments: argparse.Namespace
) -> PortPaths:
    from torch_topoopt.route_control.probing.port_choice import FIRST_PORT, PortChooser
    from torch_topoopt.route_control.probing.traced_paths import PathTracer

    (own,) = (entry.addresses[0] for entry in network.hosts if entry.name == host)
    with PathTracer(network, own) as tracer:
        chooser = PortChooser(
            network,
            tracer.trace,
            arguments.target_port,
            per_path=arguments.ports_per_path,
            protocol=_PROTOCOLS[arguments.protocol],
            ports=range(FIRST_PORT, FIRST_PORT + _MOST_PORTS),
            lenient=True,
        )
        return chooser.choose(host, targets)


def _report(arguments: argparse.Namespace, host: str, found: PortPaths) -> None:
    from torch_topoopt.fabric.credentials import CredentialError, PasswordSource
    from torch_topoopt.route_control.controller.client import (
        ControllerClient,
        ControllerRefused,
        ControllerUnavailable,
    )

    try:
        token = PasswordSource(file=arguments.token_file).read().reveal()
    except CredentialError as error:
        raise InputError(f"token-file: {error}") from None
    try:
        with ControllerClient(arguments.controller, token, limit_s=10.0) as client:
            client.set_ports(host, found)
    except (ControllerRefused, ControllerUnavailable) as error:
        raise InputError(str(error)) from None


def _own_name(network: NetworkFile, given: str | None) -> str:
    """This host's name; raises InputError if it is unknown, or has no address in the file."""
    for host in network.hosts:
        if given is None and any(map(_is_here, host.addresses)):
            return host.name
        if host.name == given:
            if not host.addresses:
                raise InputError(f"host: the network file has no address of {given}")
            return host.name
    if given is not None:
        raise InputError(f"host: {given!r} is not a host of the network file")
    raise InputError("host: no host of the network file has an address of this one; name it")


def _is_here(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.bind((address, 0))
        return True
    return False


def _targets(network: NetworkFile, host: str, given: str | None) -> list[str]:
    known = {entry.name: entry.switch for entry in network.hosts}
    if given is None:
        return [name for name, switch in known.items() if switch != known[host]]
    names = given.split(",")
    for name in names:
        if name not in known or name == host:
            raise InputError(f"targets: {name!r} is not another host of the network file")
    return names


def _without_ports(network: NetworkFile, host: str, found: PortPaths) -> dict[str, list[list[str]]]:
    """Target -> paths without a port; only targets with such paths."""
    numbered, tor_of, clos = network.numbered, network.tor_of, network.network()
    missing = {}
    for target, table in found.items():
        if tor_of[host] == tor_of[target]:
            continue
        paths = clos.paths(tor_of[host], tor_of[target])
        named = [tuple(numbered[switch] for switch in path) for path in paths]
        left = [list(path) for path in named if path not in table.values()]
        if left:
            missing[target] = left
    return missing


def _by_path(
    table: dict[int, tuple[str, ...]], missing: list[list[str]]
) -> dict[tuple[str, ...], list[int]]:
    ports: dict[tuple[str, ...], list[int]] = {tuple(path): [] for path in missing}
    for port, path in table.items():
        ports.setdefault(path, []).append(port)
    return ports
