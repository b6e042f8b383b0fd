"""`topoopt doctor`: the problems of a host or a cluster, and their repair."""

from __future__ import annotations

import shlex
import socket
import sys
from typing import TYPE_CHECKING

from torch_topoopt.fabric.own_command import own_command
from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.tools.doctor import command_output

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.doctor.findings import Finding, Site
    from torch_topoopt.tools.doctor.hosts import HostAccess

_FOUND = 1

_DESCRIPTION = """\
Looks at this host, or at all hosts of a cluster file, and says what would keep jobs from running,
or slow them down: interfaces, cables in wrong ports, MTU along every cable (packets of full size
that may not be cut up), reverse-path filters, forwarding, firewalls that drop (Docker's does),
duplicate addresses, reachability, socket buffers, congestion control, speeds, offloads, CPU
governors, and RDMA: state and GIDs of devices, MTU, pause frames and PFC, PCIe links. It says what
will carry each link, and at most how fast. Each finding comes with its reason and the commands
that repair it.

It only reads, and sends ARP and echo packets, until you say --apply: that runs the commands of
the repair plan (as root), looks after each one whether it helped, and ends with a new look at
everything. Repairs last until the host restarts. As an ordinary user it checks what it can.

With --cluster, it asks every host over ssh (BatchMode: keys, no passwords), where topoopt must be
installed, too; with --local or without --cluster, only this host."""

_EXAMPLES = """\
  topoopt doctor
  topoopt doctor --cluster lab.yaml
  sudo .venv/bin/topoopt doctor --cluster lab.yaml --local
  topoopt doctor --cluster lab.yaml --ssh-command "ssh -o BatchMode=yes -l root" --apply
exit codes: 0 no errors found (or none left), 1 errors, 2 bad input or a repair that failed"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("doctor", _DESCRIPTION, _EXAMPLES)
    options.add_argument("--cluster", metavar="FILE", help="the cluster file; - reads stdin")
    options.add_argument("--local", action="store_true", help="this host only")
    options.add_argument(
        "--host",
        metavar="NAME",
        help="which server of the file this host is (default: auto-detected)",
    )
    options.add_argument("--apply", action="store_true", help="carry out the repair plan")
    options.add_argument(
        "--facts", action="store_true", help="print what this host says about itself, as JSON"
    )
    options.add_argument(
        "--no-probes", action="store_true", help="with --local or --facts: send nothing, only read"
    )
    shared_options.add(options, "ssh-command", "remote-command", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    file = _cluster(arguments.cluster)
    local = arguments.local or arguments.facts or file is None
    if arguments.no_probes and not local:
        raise InputError("no-probes: hosts are checked by probes between them; add --local")
    if arguments.facts:
        from torch_topoopt.tools.doctor.gather import gather

        print(gather(file, _here(file, arguments.host), probing=not arguments.no_probes).to_json())
        return OK
    terminal = console.Terminal(json_output=arguments.json)
    hosts = _hosts(file, arguments, local=local)
    site, findings = _examine(hosts, file, terminal, probing=not arguments.no_probes)
    applied: list[str] = []
    if arguments.apply:
        applied = _apply(findings, site, hosts, terminal)
        if applied:
            site, findings = _examine(hosts, file, terminal, probing=not arguments.no_probes)
    found = command_output.Diagnosis(site, findings, applied)
    if arguments.json:
        console.print_json(found)
    else:
        command_output.show(terminal, found)
        if local and not all(facts.root for facts in site.facts.values()):
            again = f"sudo {own_command()} {shlex.join(['doctor', *argv])}"
            terminal.line(f"as root the doctor sees more: {again}")
    return _FOUND if any(finding.level == "error" for finding in findings) else OK


def _cluster(path: str | None) -> ClusterFile | None:
    from torch_topoopt.fabric.cluster_file.load import cluster_of, load_cluster

    if path is None:
        return None
    return cluster_of(sys.stdin.buffer.read(), "stdin") if path == "-" else load_cluster(path)


def _here(file: ClusterFile | None, name: str | None) -> str:
    """The name of this host: a server of the file, or what the system calls it."""
    from torch_topoopt.tools.doctor.gather import this_server

    if file is None:
        if name is not None:
            raise InputError(f"host: {name!r} names a server of a cluster file; add --cluster FILE")
        return socket.gethostname()
    if name is None:
        return this_server(file)
    return file.servers[file.server_number(name)].name


def _hosts(
    file: ClusterFile | None, arguments: argparse.Namespace, *, local: bool
) -> dict[str, HostAccess]:
    from torch_topoopt.links.errors import FabricError
    from torch_topoopt.tools.doctor.hosts import LocalAccess, RemoteHost

    if local or file is None:
        name = _here(file, arguments.host)
        return {name: LocalAccess(name, file)}
    try:
        here = _here(file, arguments.host)
    except FabricError:
        here = ""  # this machine is not in the cluster: query all over ssh
    ssh = shared_options.ssh_words(arguments)
    return {
        server.name: LocalAccess(server.name, file)
        if server.name == here
        else RemoteHost(server.name, server.management, file, ssh, arguments.remote_command)
        for server in file.servers
    }


def _examine(
    hosts: dict[str, HostAccess],
    file: ClusterFile | None,
    terminal: console.Terminal,
    *,
    probing: bool,
) -> tuple[Site, list[Finding]]:
    """Queries all hosts at once; one that does not answer is a finding."""
    from concurrent.futures import ThreadPoolExecutor

    from torch_topoopt.links.errors import FabricError
    from torch_topoopt.tools.doctor.diagnosis import diagnose
    from torch_topoopt.tools.doctor.findings import Finding, Site
    from torch_topoopt.tools.doctor.link_history import slower_cables

    facts = {}
    silent = []
    with terminal.progress("asking the hosts"), ThreadPoolExecutor(len(hosts)) as workers:
        asked = {name: workers.submit(host.facts, probing=probing) for name, host in hosts.items()}
        for name, answer in asked.items():
            try:
                facts[name] = answer.result()
            except FabricError as error:
                silent.append(
                    Finding(
                        *("error", "host", name, name),
                        what=str(error).removeprefix(f"{name}: "),
                        why="could not connect to it",
                        advice="check that you can log in without a password, and that topoopt "
                        "starts there (--ssh-command, --remote-command)",
                    )
                )
    site = Site(facts, file)
    return site, [*silent, *diagnose(site), *slower_cables(site)]


def _apply(
    findings: list[Finding], site: Site, hosts: dict[str, HostAccess], terminal: console.Terminal
) -> list[str]:
    """Applies the repair plan; returns its commands with their hosts."""
    from torch_topoopt.tools.doctor.repair import apply_repairs, plan_repairs

    done: list[str] = []

    def on_step(finding: Finding, command: str) -> None:
        done.append(f"{finding.server}: {command}")
        terminal.line(f"repairing {finding.server}: {command}")

    apply_repairs(plan_repairs(findings), site, hosts, on_step)
    return done
