"""`topoopt fabric persist`: keeps the settings of cable ports over restarts of their hosts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.fabric.persist.manager_files import MANAGERS
from torch_topoopt.fabric.persist.port_settings import DEFAULT_SUBNETS
from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.persist.manager_files import ConfigFile, Manager
    from torch_topoopt.fabric.persist.port_settings import KeptPort

_DESCRIPTION = """\
Writes the addresses, MTU and ARP settings of all cable ports of a cluster file into the
configuration of each host, so that they outlast a restart: for netplan, NetworkManager or
systemd-networkd, whichever runs there. No other interface is changed, and a port that carries the
ssh connection is left out.

Without --apply it logs in, looks, and prints the files. With --apply it writes them as root (or by
sudo without a password), activates them, and confirms each host over a second connection; a host
that is not confirmed within 60 s restores its earlier settings by itself. --undo --apply removes
what was written.

Addresses stay those of the file: a link-local address that the MAC address gives is derived from it
again, any other is written down. --addresses ipv4 (or ipv6) gives each cable a /31 (or a /64) of
its own; -o then gets the cluster file with these."""

_EXAMPLES = """\
  topoopt fabric persist --cluster lab.yaml
  topoopt fabric persist --cluster lab.yaml --ssh-command "ssh -l root" --apply
  topoopt fabric persist --cluster lab.yaml --addresses ipv4 -o lab-static.yaml --apply
  topoopt fabric persist --cluster lab.yaml --undo --apply"""


@dataclass(frozen=True)
class PersistedHost:
    """The network manager of a host, and the settings and files of its ports."""

    JSON_FIELDS: ClassVar = ("server", "manager", "ports", "files", "notes")

    server: str
    manager: Manager
    ports: tuple[KeptPort, ...]
    files: tuple[ConfigFile, ...]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PersistedCables:
    """The result of `topoopt fabric persist`; `applied`: the hosts were changed."""

    hosts: list[PersistedHost]
    undo: bool
    applied: bool


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric persist", _DESCRIPTION, _EXAMPLES)
    options.add_argument("--cluster", metavar="FILE", required=True, help="the cluster file")
    options.add_argument("--apply", action="store_true", help="change the hosts")
    options.add_argument("--undo", action="store_true", help="remove what was written")
    options.add_argument(
        "--manager",
        choices=MANAGERS,
        help="what to write for, on all hosts (default: what runs on each)",
    )
    options.add_argument(
        "--addresses",
        choices=("keep", *DEFAULT_SUBNETS),
        default="keep",
        help="keep those of the file (default), or a new /31 (ipv4) or /64 (ipv6) for each cable",
    )
    options.add_argument(
        "--subnet",
        metavar="NETWORK",
        help="network of new addresses (default: "
        + ", ".join(f"{kind} {subnet}" for kind, subnet in DEFAULT_SUBNETS.items())
        + ")",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="with new addresses: where to write the cluster file that has them",
    )
    shared_options.add(options, "ssh-command", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    _check(arguments)
    file, subnet = _cluster(arguments)
    ssh = shared_options.ssh_words(arguments)
    terminal = console.Terminal(json_output=arguments.json)
    access = {server.name: _Host(server.name, server.management, ssh) for server in file.servers}
    with terminal.progress("looking at the hosts"):
        looked = _on_all(access, lambda host: _look(host, file, arguments.manager, subnet))
    hosts = {name: found for name, found in looked.items() if found.ports}
    for found in looked.values():
        for note in found.notes:
            terminal.line(f"note: {found.server}: {note}")
    if not hosts:
        raise FabricError(f"cables: cluster {file.name} has no port that could be set up")
    if arguments.apply:
        change = _undo if arguments.undo else _apply
        with terminal.progress("changing the hosts"):
            change({name: access[name] for name in hosts}, hosts)
        if arguments.output and not arguments.undo:
            file.save(arguments.output)
    if arguments.json:
        console.print_json(PersistedCables(list(looked.values()), arguments.undo, arguments.apply))
    else:
        _show(terminal, arguments, hosts)
    return OK


def _check(arguments: argparse.Namespace) -> None:
    new = arguments.addresses != "keep"
    if arguments.undo and new:
        raise InputError("addresses: --undo removes what was written, whatever its addresses")
    if new and arguments.apply and not arguments.output:
        raise InputError("output: missing; name a cluster file for the new addresses, -o FILE")
    for name in ("subnet", "output"):
        if getattr(arguments, name) and not new:
            raise InputError(f"{name}: is of new addresses; add --addresses ipv4 or ipv6")


def _cluster(arguments: argparse.Namespace) -> tuple[ClusterFile, str | None]:
    """The cluster with the addresses to keep, and the network of new ones."""
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.fabric.persist.port_settings import with_static_addresses

    file = load_cluster(arguments.cluster)
    if arguments.addresses == "keep":
        return file, None
    subnet = arguments.subnet or DEFAULT_SUBNETS[arguments.addresses]
    return with_static_addresses(file, arguments.addresses, subnet), subnet


@dataclass(frozen=True)
class _Host:
    server: str
    management: str
    ssh: tuple[str, ...]

    def run(self, script: str, shown: str) -> str:
        """The output of a script of root's; raises FabricError."""
        from torch_topoopt.fabric.persist.scripts import SHELL
        from torch_topoopt.fabric.ssh import run_checked, ssh_command

        command = ssh_command(self.ssh, self.management, SHELL)
        return run_checked(self.server, command, script, shown)


def _on_all(
    hosts: Mapping[str, _Host], work: Callable[[_Host], PersistedHost]
) -> dict[str, PersistedHost]:
    """Runs `work` for all hosts at once; raises FabricError with the failures of all."""
    with ThreadPoolExecutor(len(hosts)) as workers:
        started = {name: workers.submit(work, host) for name, host in hosts.items()}
    failures = [str(error) for one in started.values() if (error := one.exception()) is not None]
    if failures:
        raise FabricError("; ".join(failures))
    return {name: one.result() for name, one in started.items()}


def _look(
    host: _Host, file: ClusterFile, manager: Manager | None, subnet: str | None
) -> PersistedHost:
    from torch_topoopt.fabric.persist.manager_files import config_files
    from torch_topoopt.fabric.persist.port_settings import check_free, kept_ports
    from torch_topoopt.fabric.persist.scripts import LOOK

    runs, connection, *addresses = host.run(LOOK, "look at the network").splitlines()
    chosen = manager or next((one for one in MANAGERS if one == runs), None)
    if chosen is None:
        raise FabricError(
            f"{host.server}: neither netplan, NetworkManager nor systemd-networkd runs there; "
            "install one, or choose with --manager"
        )
    ports = kept_ports(file, host.server)
    if subnet is not None:
        check_free(subnet, host.server, ports, addresses)
    by_ssh = {host.management, *connection.split()[2:3]}
    carrying = {
        interface
        for interface, _, address in (line.partition(" ") for line in addresses)
        if address.partition("/")[0] in by_ssh
    }
    left_alone = [port.port for port in ports if port.interface in carrying]
    kept = tuple(port for port in ports if port.interface not in carrying)
    notes = [f"{port} carries the ssh connection and is left alone" for port in left_alone]
    return PersistedHost(host.server, chosen, kept, config_files(chosen, kept), notes)


def _apply(access: Mapping[str, _Host], hosts: Mapping[str, PersistedHost]) -> None:
    """Applies on all hosts, then confirms all; if one fails, all restore their settings."""
    from torch_topoopt.fabric.persist import scripts

    def step(shown: str, script: Callable[[PersistedHost], str]) -> None:
        def run(host: _Host) -> PersistedHost:
            host.run(script(hosts[host.server]), shown)
            return hosts[host.server]

        _on_all(access, run)

    try:
        step("apply", lambda host: scripts.apply_script(host.manager, host.ports, host.files))
        step("check", lambda host: scripts.check_script(host.ports))
        step("confirm", lambda host: scripts.confirm_script())
    except FabricError as error:
        try:
            step("restore", lambda host: scripts.restore_script())
        except FabricError as unreached:
            raise FabricError(
                f"{error}; what is not confirmed is restored within {scripts.CONFIRM_S} s, also "
                f"where that could not be started ({unreached})"
            ) from None
        raise FabricError(f"{error}; the earlier settings are restored on all hosts") from None


def _undo(access: Mapping[str, _Host], hosts: Mapping[str, PersistedHost]) -> None:
    from torch_topoopt.fabric.persist.scripts import undo_script

    def undo(host: _Host) -> PersistedHost:
        found = hosts[host.server]
        host.run(undo_script(found.manager, found.ports), "undo")
        return found

    _on_all(access, undo)


def _show(
    terminal: console.Terminal, arguments: argparse.Namespace, hosts: Mapping[str, PersistedHost]
) -> None:
    if not arguments.apply and not arguments.undo:
        for found in hosts.values():
            for file in found.files:
                terminal.line(f"# {found.server}: {file.path}")
                terminal.line(file.text)
    terminal.table(
        "cable ports",
        ("port", "interface", "by", "address", "MTU"),
        [
            (port.port, port.interface, found.manager, port.address, str(port.mtu or "as it is"))
            for found in hosts.values()
            for port in found.ports
        ],
    )
    if not arguments.apply:
        what = "removes these settings" if arguments.undo else "writes these files"
        terminal.line(f"nothing was changed; --apply {what}")
    elif arguments.undo:
        terminal.line("the files are removed; the ports are as before")
    else:
        terminal.line("applied and confirmed; --undo --apply removes it")
