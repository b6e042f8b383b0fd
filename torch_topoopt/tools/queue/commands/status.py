"""`topoopt cluster status`: the jobs, their servers, and why one waits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.plan.result_json import within
from torch_topoopt.tools.queue.commands import state as cluster_state

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.shared_networks.allocation.boards import SubMesh
    from torch_topoopt.tools.queue.jobs import Connection, QueuedJob
    from torch_topoopt.tools.queue.mesh_places import MeshPlaces
    from torch_topoopt.tools.queue.store import Event, Store

_DESCRIPTION = """\
Shows the jobs of the queue. With JOB: everything that happened to it, what its circuits are, and
where its output is. States: queued (no servers yet), preparing (its circuits are being set), ready
(they carry light; its servers are busy), starting, running, stopping, clearing (its circuits are
being removed), and at the end done, failed or cancelled."""

_EXAMPLES = """\
  topoopt cluster status
  topoopt cluster status 3
  topoopt cluster status --all --json"""


_LAUNCHES = {"run": "emulated", "hosts": "on its servers", "program": "a program"}


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("cluster status", _DESCRIPTION, _EXAMPLES)
    options.add_argument("job", type=int, nargs="?", metavar="JOB", help="its number")
    cluster_state.add_options(options)
    options.add_argument("--all", action="store_true", help="also jobs that are over")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.tools.queue.service import daemon_pid
    from torch_topoopt.tools.queue.store import Store

    store = Store(cluster_state.find(arguments))
    pid = daemon_pid(store.folder)
    terminal = console.Terminal(json_output=arguments.json)
    mesh = _mesh(store)
    if arguments.job is not None:
        job = store.job(arguments.job)
        if arguments.json:
            console.print_json(JobDetails(job, store, mesh, pid))
        else:
            _show_job(terminal, store, mesh, job)
        return OK
    jobs = store.jobs(ended=arguments.all)
    if arguments.json:
        console.print_json(ShownQueue(pid, [ShownJob(job, store, mesh) for job in jobs]))
        return OK
    terminal.line(f"daemon: {'none runs' if pid is None else f'process {pid}'}")
    _show_jobs(terminal, mesh, jobs)
    return OK


@dataclass(frozen=True)
class ShownJob:
    """A job of the queue."""

    JSON_FIELDS: ClassVar[tuple[str, ...]] = (
        *within("job", "job=id", "name", "state", "servers", "spec.launch"), "on",
        *within("job", "side", "submitted_at", "changed_at", "cancelled", "exit_code", "problem",
                "attempts"),
        "next_try_at", "folder", "boards",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("boards",)

    job: QueuedJob
    store: Store
    mesh: MeshPlaces | None

    def on(self) -> tuple[str, ...]:
        return self.job.layout.servers if self.job.layout else ()

    def next_try_at(self) -> float | None:
        return self.job.next_try_at or None

    def folder(self) -> Path:
        return self.store.folder / "jobs" / str(self.job.id)

    def boards(self) -> SubMesh | None:
        return _sub_mesh(self.job, self.mesh)


@dataclass(frozen=True)
class JobDetails(ShownJob):
    """The result of `topoopt cluster status JOB`."""

    JSON_FIELDS: ClassVar = ("daemon", *ShownJob.JSON_FIELDS, "circuits", "events")

    daemon: int | None

    def circuits(self) -> tuple[Connection, ...]:
        return self.job.layout.connections if self.job.layout else ()

    def events(self) -> list[Event]:
        return [event for _, event in self.store.events(self.job.id)]


@dataclass(frozen=True)
class ShownQueue:
    """The result of `topoopt cluster status`."""

    daemon: int | None
    jobs: list[ShownJob]


def _mesh(store: Store) -> MeshPlaces | None:
    """Of the cluster of `store`; None if that is no HammingMesh."""
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.queue.mesh_places import MeshPlaces

    text = store.meta("cluster")
    return None if text is None else MeshPlaces.of(ClusterFile.from_yaml(text))


def _sub_mesh(job: QueuedJob, mesh: MeshPlaces | None) -> SubMesh | None:
    """The boards of a job; None on clusters that are no HammingMesh, or while it has none."""
    return None if mesh is None or job.layout is None else mesh.sub_mesh(job.layout.servers)


def _show_jobs(terminal: Terminal, mesh: MeshPlaces | None, jobs: list[QueuedJob]) -> None:
    from torch_topoopt.tools.queue.mesh_places import boards_text
    from torch_topoopt.tools.queue.service import age

    if not jobs:
        terminal.line("no jobs")
        return
    now = time.time()
    rows = [
        (
            f"{job.id} {job.name}",
            job.state,
            " ".join(job.layout.servers) if job.layout else f"{job.servers} wanted",
            job.side or "",
            _LAUNCHES[job.spec.launch],
            age(now - job.changed_at),
        )
        for job in jobs
    ]
    terminal.table("Jobs", ("job", "state", "servers", "side", "runs", "for"), rows)
    for job in jobs:
        if own := _sub_mesh(job, mesh):
            terminal.line(f"job {job.id}: {boards_text(own)}")
        if job.problem:
            terminal.line(f"job {job.id}: {job.problem}{_again(job, now)}")


def _again(job: QueuedJob, now: float) -> str:
    if not job.next_try_at:
        return ""
    return f" (tried {job.attempts} times, again in {max(0.0, job.next_try_at - now):.0f} s)"


def _show_job(terminal: Terminal, store: Store, mesh: MeshPlaces | None, job: QueuedJob) -> None:
    from torch_topoopt.tools.queue.mesh_places import boards_text
    from torch_topoopt.tools.queue.service import stamp

    terminal.line(f"{job.title}: {job.state}{'' if job.exit_code is None else _code(job)}")
    if job.problem:
        terminal.line(f"problem: {job.problem}{_again(job, time.time())}")
    if job.layout:
        own = _sub_mesh(job, mesh)
        where = f"side {job.layout.side}" if own is None else boards_text(own)
        terminal.line(f"servers: {' '.join(job.layout.servers)}, {where}")
        for connection in job.layout.connections:
            terminal.line(f"  {connection}")
    terminal.line(f"runs: {job.spec.where}")
    terminal.line(f"output: {store.folder / 'jobs' / str(job.id)}")
    for _, event in store.events(job.id):
        terminal.line(f"{stamp(event.at)}  {event.text}")


def _code(job: QueuedJob) -> str:
    return f" (exit code {job.exit_code})"
