"""`topoopt fabric up --network`: hosts connected to emulated switches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.plan.units import counted, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.route_control.emulation.clos import EmulatedClos
    from torch_topoopt.route_control.network_file import NetworkFile

_NOT_WITH = {
    "plan": None,
    "servers": None,
    "degree": None,
    "parallel_links": False,
    "mtu": 1500,
    "shaper": None,
    "forwarding": "routes",
    "switch_delay": None,
}


@dataclass(frozen=True)
class NamespaceAddress:
    """The namespace of a host or a switch."""

    namespace: str
    address: str


@dataclass(frozen=True)
class MadeNetwork:
    """The result of `topoopt fabric up --network`."""

    JSON_FIELDS: ClassVar = (
        "clos.names.layout.name", "network=clos.file", "gbps", "hosts", "switches",
        "management=clos.names.layout.management_network",
    )  # fmt: skip

    clos: EmulatedClos
    gbps: float

    def hosts(self) -> dict[str, NamespaceAddress]:
        n = self.clos.names
        return {h: NamespaceAddress(n.namespace(h), n.host_address(h)) for h in n.hosts}

    def switches(self) -> dict[str, NamespaceAddress]:
        n = self.clos.names
        return {s: NamespaceAddress(n.namespace(s), n.switch_address(s)) for s in n.switches}


@dataclass(frozen=True)
class NetworkToMake:
    """The result of `topoopt fabric up --network --dry-run`."""

    dry_run: bool
    hosts: int
    switches: int
    cables: int


def make(arguments: argparse.Namespace) -> int:
    """Runs `fabric up` with --network; returns the exit code."""
    from torch_topoopt.route_control.emulation.clos import EmulatedClos
    from torch_topoopt.route_control.network_file import NetworkFile

    for option, default in _NOT_WITH.items():
        if getattr(arguments, option) != default:
            name = option.replace("_", "-")
            raise InputError(f"{name}: --{name} and --network exclude each other")
    network = documents.load(NetworkFile, arguments.network)
    gbps = _host_gbps(network, arguments)
    terminal = console.Terminal(json_output=arguments.json)
    started = time.monotonic()
    clos = EmulatedClos(arguments.name, network, gbps, keep=True)
    text = (
        f"{counted(len(network.hosts), 'host')} with links of {format_gbps(gbps)}, "
        f"{counted(len(network.links), 'cable')} between switches ({len(network.switches)})"
    )
    if arguments.dry_run:
        if arguments.json:
            counts = (len(network.hosts), len(network.switches), len(network.links))
            console.print_json(NetworkToMake(True, *counts))
        else:
            terminal.line(f"would make {text}")
        return OK
    with terminal.progress(f"making the network {arguments.name}") as show:
        clos.build(lambda step: show(None, step))
    if arguments.json:
        console.print_json(MadeNetwork(clos, gbps))
        return OK
    terminal.line(
        f"network {arguments.name}: {text}, in {format_seconds(time.monotonic() - started)}"
    )
    first, names = network.hosts[0].name, clos.names
    terminal.line(f"a shell on {first}: ip netns exec {names.namespace(first)} bash")
    terminal.line(f"network file with addresses: {clos.file}")
    terminal.line(f"to remove it: topoopt fabric down {arguments.name}")
    return OK


def _host_gbps(network: NetworkFile, arguments: argparse.Namespace) -> float:
    if arguments.bandwidth is not None:
        return float(arguments.bandwidth)
    if not network.links:
        raise InputError(
            "bandwidth: missing; the network has no cable to take the hosts' rate from"
        )
    return max(cable.bits_per_s for cable in network.links) / 1e9
