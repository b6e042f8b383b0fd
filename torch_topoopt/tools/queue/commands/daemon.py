"""`topoopt cluster daemon`: wires the switches and starts the jobs, until it is stopped."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.tools.queue.commands import state as cluster_state

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.queue.store import Event

_DESCRIPTION = """\
Takes the jobs of the queue one after the other: gives them servers, sets their circuits, flips the
1x2 switches, starts their processes, and cleans up behind them. It may be stopped or killed at any
moment: jobs run on, and the next daemon reads the queue, looks at the switches, finds the processes
and goes on. The sockets that the cluster file plugs into server ports are its own: circuits between
them that belong to no job are removed when it starts. It touches nothing else."""

_EXAMPLES = """\
  topoopt cluster daemon --cluster lab.yaml --dry-run   # first, the changes it would make
  topoopt cluster daemon --cluster lab.yaml
  topoopt cluster daemon --cluster lab.yaml --until-idle"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("cluster daemon", _DESCRIPTION, _EXAMPLES)
    cluster_state.add_options(options)
    shared_options.add(options, "dry-run")
    options.add_argument("--until-idle", action="store_true", help="stop when no job is left")
    options.add_argument(
        "--retry",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="pause after a failure, doubled after each further one, up to 60 (seconds, default: "
        "%(default)g)",
    )
    options.add_argument(
        "--check-every",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="pause between comparisons of switches and jobs (seconds, default: %(default)g)",
    )
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    for name in ("retry", "check_every"):
        if not getattr(arguments, name) > 0:
            value = getattr(arguments, name)
            raise InputError(f"{name.replace('_', '-')}: {value:g} is not greater than 0")
    cluster = cluster_state.load_cluster(arguments)
    if arguments.dry_run:
        return _dry_run(arguments, cluster)
    return _serve(arguments, cluster)


def _serve(arguments: argparse.Namespace, cluster: ClusterFile) -> int:
    from torch_topoopt.fabric.switches.open_switch import open_switch
    from torch_topoopt.fabric.switches.selector import open_selector
    from torch_topoopt.tools.queue import service
    from torch_topoopt.tools.queue.daemon import Daemon
    from torch_topoopt.tools.queue.processes import LocalProcesses
    from torch_topoopt.tools.queue.store import Store
    from torch_topoopt.tools.queue.switch_work import SwitchWork

    for entry in cluster.switches:
        open_switch(entry).close()  # bad options end it now, not later in a job
    folder = cluster_state.folder_of(arguments, cluster)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with service.only_daemon(folder):
        store = Store(folder, create=True, upgrade=True)
        service.bind_cluster(store, cluster, change=True)
        wake = threading.Event()
        daemon = Daemon(
            store,
            cluster,
            SwitchWork(on_done=wake.set),
            open_selector(cluster.selector) if cluster.selector else None,
            LocalProcesses(),
            topoopt=(sys.executable, "-m", "torch_topoopt.launcher.main"),
            retry_s=arguments.retry,
            check_s=arguments.check_every,
        )
        service.serve(daemon, store, wake, _show, until_idle=arguments.until_idle)
    return OK


def _show(event: Event) -> None:
    from torch_topoopt.tools.queue.service import stamp

    who = "" if event.job is None else f"job {event.job}: "
    print(f"{stamp(event.at)}  {who}{event.text}", flush=True)


def _dry_run(arguments: argparse.Namespace, cluster: ClusterFile) -> int:
    from torch_topoopt.tools.queue.jobs import WIRED
    from torch_topoopt.tools.queue.partition import cables_of, partition, unheld
    from torch_topoopt.tools.queue.store import FILE, Store
    from torch_topoopt.tools.queue.switch_work import SwitchWork

    folder = cluster_state.folder_of(arguments, cluster)
    jobs = Store(folder).jobs(ended=False) if (folder / FILE).is_file() else []
    work = SwitchWork()
    terminal = console.Terminal()
    held = [(s, job.layout.side) for job in jobs if job.layout for s in job.layout.servers]
    parts: list[tuple[str, ClusterFile | None, dict[str, list[tuple[str, str]]]]]
    parts = [("no job", unheld(cluster, held), {})]
    for job in jobs:
        if job.layout:
            own = partition(cluster, job.layout.servers, job.layout.side)
            wanted = cables_of(job.layout) if job.state in WIRED else {}
            parts.append((f"{job.title}, {job.state}", own, wanted))
    for what, part, cables in parts:
        changes = work.preview(part, cables) if part else {}
        lines = [f"{n} {line}" for n, d in changes.items() for line in d.describe()]
        terminal.line(f"{what}: {', '.join(lines) or 'nothing to change'}")
    return OK
