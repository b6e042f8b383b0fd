"""The commands of a job and their environment. See JobSpec for the three kinds."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.ssh import reach_command
from torch_topoopt.plan.codec import write_text_atomically
from torch_topoopt.tools.queue.partition import job_cluster
from torch_topoopt.tools.queue.processes import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.queue.jobs import QueuedJob

_FIRST_PORT = 29500  # torchrun's; jobs that share a machine must not share it
_PORTS = 2000


def prepare_folder(folder: Path, job: QueuedJob, cluster: ClusterFile) -> None:
    """Writes the job's plan and its cluster file, for it to read. Raises OSError."""
    assert job.layout is not None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_text_atomically(folder / "plan.json", job.plan)
    job_cluster(cluster, job.layout, f"{cluster.name}-job{job.id}").save(folder / "cluster.yaml")


def commands_of(
    folder: Path, job: QueuedJob, cluster: ClusterFile, topoopt: Sequence[str]
) -> list[Command]:
    """The commands of a job. `topoopt`: the words that start it on this machine."""
    assert job.layout is not None
    spec, plan = job.spec, str(folder / "plan.json")
    script = (spec.script, *spec.arguments)
    if spec.launch == "program":
        return [Command("program", script, spec.folder)]
    if spec.launch == "run":
        own = ("run", "--plan", plan, "--run-dir", str(folder / "run"))
        return [Command("run", (*topoopt, *own, *script), spec.folder)]
    commands = []
    servers = [cluster.servers[cluster.server_number(name)] for name in job.layout.servers]
    for rank, server in enumerate(servers):
        options = (
            *("run", "--cluster", str(folder / "cluster.yaml"), "--plan", plan),
            *("--nnodes", str(len(servers)), "--node-rank", str(rank)),
            *("--master-port", str(_FIRST_PORT + job.id % _PORTS)),
            *("--run-dir", str(folder / f"run-{server.name}")),
        )
        reach = reach_command(spec.reach, server=server.name, management=server.management)
        words = ["topoopt", *options, *script]
        if Path(reach[0]).name == "ssh":  # which joins its words for a shell at the other end
            words = [f"cd {shlex.quote(spec.folder)} &&", shlex.join(words)]
        commands.append(Command(f"host-{server.name}", (*reach, *words), spec.folder))
    return commands


def environment_of(folder: Path, job: QueuedJob, cluster: ClusterFile) -> dict[str, str]:
    """The daemon's own, without the passwords of switches, and the variables of the job."""
    assert job.layout is not None
    secrets = {entry.password.env for entry in cluster.switches if entry.password}
    environment = {name: value for name, value in os.environ.items() if name not in secrets}
    environment.update(v.split("=", 1) for v in job.spec.environment)  # type: ignore[misc]
    return environment | {
        "TOPOOPT_JOB_PLAN": str(folder / "plan.json"),
        "TOPOOPT_JOB_CLUSTER": str(folder / "cluster.yaml"),
        "TOPOOPT_JOB_SERVERS": " ".join(job.layout.servers),
    }
