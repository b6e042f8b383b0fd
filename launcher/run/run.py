"""`topoopt run`: profile, co-optimise, wire, train; a drop-in for torchrun."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, signals
from torch_topoopt.launcher.errors import OK, SCRIPT_FAILED, InputError
from torch_topoopt.launcher.run import (
    asked_groups,
    link_bytes,
    nccl_ranks,
    outcome,
    rank_work,
)
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.launcher.run.asked_groups import AskedGroups
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.launcher.run.in_progress import RunInProgress
from torch_topoopt.plan import LinkTraffic
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.rank_work import RankWork
from torch_topoopt.processes.fork_server import ForkServer
from torch_topoopt.runtime.metrics import MetricsWriter
from torch_topoopt.runtime.versions import BuildMismatchError, check_installed, check_tls

if TYPE_CHECKING:
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.runtime.cluster_site import ClusterSite


def _check_tls() -> None:
    try:
        check_tls()
    except BuildMismatchError as error:
        raise InputError(f"encrypt: {error}") from None


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    options = run_options.parse(argv)
    check_installed()
    if options.encrypt:
        _check_tls()
    if options.nccl:
        nccl_ranks.require(options.cluster, emulated=options.site is None)
    outcome.require(options.trackers)
    if not options.json:
        code, _ = _run(options, argv)
        return code
    with console.stdout_to_stderr():
        code, figures = _run(options, argv)
    console.print_json(figures)
    return code


def _run(options: RunOptions, argv: list[str]) -> tuple[int, dict[str, Any]]:
    started = time.time()
    site = options.site
    folder = RunFolder(options.run_dir, started, suffix=f"-{site.name}" if site else "")
    metrics = MetricsWriter(folder / "metrics.jsonl", started)
    # It imports torch while a plan is made.
    server = ForkServer("torch_topoopt.runtime.before_fork") if options.forks else None
    job = RunInProgress(
        options, console.Terminal(json_output=options.json), folder, metrics, server
    )
    cluster = options.cluster
    try:
        metrics.write(
            "run",
            command=["topoopt", "run", *argv],
            servers=cluster.servers,
            degree=cluster.degree,
            seed=options.plan.seed if options.plan else options.seed,
            time=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        )
        return _stages(job)
    except BaseException as error:
        if folder.discard_unfinished():
            if isinstance(error, signals.Interrupted):
                job.end(error.exit_code)
            print(f"topoopt: what was finished is in {folder.path}", file=sys.stderr)
        raise
    finally:
        if server is not None:
            server.close()


def _of_all_hosts(
    job: RunInProgress, site: ClusterSite, groups: AskedGroups, *, failed: bool
) -> tuple[list[LinkTraffic], AskedGroups]:
    """The counters of all hosts, on server 0; those of this one, on the others."""
    here = {
        "links": [asdict(link) for link in job.counts[0]],
        "works": rank_work.as_json(job.works),
        "groups": groups.figures(),
    }
    hosts = site.gather("counts", here, failed=failed)
    job.works = [decode(RankWork, work) for host in hosts for work in host["works"]]
    return (
        [LinkTraffic(**link) for host in hosts for link in host["links"]],
        AskedGroups.together([AskedGroups.of(host["groups"]) for host in hosts]),
    )


def _stages(job: RunInProgress) -> tuple[int, dict[str, Any]]:
    with job.together():
        plan, failures = job.attempts()
        links, iterations = job.counts
        groups = asked_groups.gather(job.folder.path)
        if job.site is not None:
            links, groups = _of_all_hosts(job, job.site, groups, failed=bool(failures))
    job.all_to_alls.write()
    job.metrics.write("groups", **groups.figures())
    for link in link_bytes.figures(links):
        job.metrics.write("link", **link)
    if iterations is not None:
        job.metrics.write(
            "iterations",
            **asdict(iterations),
            start_up_s=job.start_up_s,
            other_processors=job.other_processors,
            not_compared=job.why_not_compared(plan, iterations),
        )
    rank_work.write(job.metrics, job.works)
    code = SCRIPT_FAILED if failures else OK
    job.end(code)
    return code, outcome.finish(job, plan, (links, iterations, groups), failures, code)
