"""All stages of one `topoopt run`, from the plan to the report."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, signals
from torch_topoopt.launcher.errors import OK, SCRIPT_FAILED
from torch_topoopt.launcher.run import job_watch, link_bytes, outcome, rank_work, requested_groups
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.launcher.run.in_progress import RunInProgress
from torch_topoopt.launcher.run.requested_groups import RequestedGroups
from torch_topoopt.plan import LinkTraffic
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.rank_work import RankWork
from torch_topoopt.plan.result_json import plain
from torch_topoopt.processes.fork_server import ForkServer
from torch_topoopt.runtime.metrics import MetricsWriter

if TYPE_CHECKING:
    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
    from torch_topoopt.launcher.run.options import RunOptions


def run(options: RunOptions, argv: list[str]) -> tuple[int, outcome.RunResult]:
    """Runs the job; returns the exit code and the result for --json."""
    started = time.time()
    site = options.site
    folder = RunFolder(options.run_dir, started, suffix=f"-{site.name}" if site else "")
    metrics = MetricsWriter(folder / "metrics.jsonl", started)
    # Imports torch while a plan is being made.
    server = ForkServer("torch_topoopt.runtime.before_fork") if options.forks else None
    job = RunInProgress(options, console.Terminal.of(options.torchrun), folder, metrics, server)
    cluster = job.options.cluster
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
            _end_early(job, error)
        raise
    finally:
        if server is not None:
            server.close()


def _end_early(job: RunInProgress, error: BaseException) -> None:
    """Says where the results of a stopped run are; after Ctrl-C they include a report."""
    page = None
    if isinstance(error, signals.Interrupted):
        job.end(error.exit_code)
        if error.signum == signal.SIGINT and job.folder.has_plan and job.leads:
            page = outcome.page(job, stopped=True)
    path = job.folder.path
    shown = f"; `topoopt report {path}` shows it" if job.folder.has_plan else ""
    if page is not None:
        shown = f"; report: {page}"
    print(f"topoopt: partial results are in {path}{shown}", file=sys.stderr)


def _of_all_hosts(
    job: RunInProgress, site: ClusterSite, groups: RequestedGroups, *, failed: bool
) -> tuple[list[LinkTraffic], RequestedGroups]:
    """The counters of all hosts, on server 0; those of this one, on the others."""
    here = {
        "links": [asdict(link) for link in job.counts[0]],
        "works": rank_work.as_json(job.works),
        "groups": plain(groups),
    }
    hosts = site.gather("counts", here, failed=failed)
    job.works = [decode(RankWork, work) for host in hosts for work in host["works"]]
    return (
        [LinkTraffic(**link) for host in hosts for link in host["links"]],
        RequestedGroups.together([RequestedGroups.of(host["groups"]) for host in hosts]),
    )


def _stages(job: RunInProgress) -> tuple[int, outcome.RunResult]:
    with job.together():
        plan, failures = job.attempts()
        links, iterations = job.counts
        groups = requested_groups.gather(job.folder.path)
        if job.site is not None:
            links, groups = _of_all_hosts(job, job.site, groups, failed=bool(failures))
    plan = link_bytes.predicted_for_job(
        job.folder.path, plan, job.trace, os.environ.get("TOPOOPT_ALGORITHM", "auto")
    )
    job.metrics.write("predicted", link_bytes=plan.prediction.link_bytes)
    job.all_to_alls.write()
    job.metrics.write("groups", **plain(groups))
    for link in links:
        job.metrics.write("link", **plain(link))
    if iterations is not None:
        job.metrics.write(
            "iterations",
            **asdict(iterations),
            start_up_s=job.start_up_s,
            other_processors=job.other_processors,
            not_compared=job.why_not_compared(plan, iterations),
        )
    rank_work.write(job.metrics, job.works)
    if job.metrics.error:
        job.metrics.write("gap", why=job_watch.UNWRITTEN.format(job.metrics.error))
    code = SCRIPT_FAILED if failures else OK
    job.end(code)
    return code, outcome.finish(job, plan, (links, iterations, groups), failures, code)
