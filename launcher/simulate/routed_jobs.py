"""`topoopt simulate --routed-jobs`: jobs on a leaf-spine network with paths by a scheme."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents
from torch_topoopt.launcher.errors import OK, input_errors
from torch_topoopt.plan.units import counted, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.shared_networks.routed.jobs_document import RoutedJobs
    from torch_topoopt.shared_networks.routed.run_jobs import ReducedJob

_SCHEMES = ("ecmp", "annealing", "greedy", "local-search")


@dataclass(frozen=True)
class RoutedJobTimes:
    """Means over the iterations of a job."""

    job: str
    iterations: int
    all_reduce_s: float
    completion_s: float
    flow_gbps: float
    exchange_s: float


@dataclass(frozen=True)
class RoutedOutcomes:
    """The result of `topoopt simulate --routed-jobs`: the jobs by scheme."""

    hosts: int
    seed: int
    schemes: dict[str, list[RoutedJobTimes]]


def main(arguments: argparse.Namespace) -> int:
    """Runs the verb with --routed-jobs; returns the exit code."""
    from torch_topoopt.shared_networks.routed.jobs_document import RoutedJobs
    from torch_topoopt.shared_networks.routed.run_jobs import run_jobs

    document = documents.load(RoutedJobs, arguments.routed_jobs)
    terminal = console.Terminal(json_output=arguments.json)
    results = {}
    with terminal.progress(f"simulating {arguments.routed_jobs}") as progress, input_errors():
        jobs = document.placed()
        for done, scheme in enumerate(_SCHEMES):
            progress(done / len(_SCHEMES), scheme)
            found = run_jobs(
                document.fabric(),
                jobs,
                scheme,
                iterations=document.iterations,
                failures=document.failures,
                control_s=document.control_s,
                cross_traffic=document.cross_traffic(),
                seed=document.seed,
            )
            results[scheme] = _rows(document, found.jobs)
    if arguments.json:
        console.print_json(RoutedOutcomes(document.fabric().hosts, document.seed, results))
    else:
        _show(terminal, document, results)
    return OK


def _rows(document: RoutedJobs, outcomes: tuple[ReducedJob, ...]) -> list[RoutedJobTimes]:
    return [
        RoutedJobTimes(
            job.name,
            len(outcome.iterations),
            *map(outcome.mean, ("all_reduce_s", "completion_s", "flow_gbps", "exchange_s")),
        )
        for job, outcome in zip(document.jobs, outcomes, strict=True)
    ]


def _show(
    terminal: console.Terminal, document: RoutedJobs, results: dict[str, list[RoutedJobTimes]]
) -> None:
    columns = ["scheme", "AllReduce", "a flow", "rate of a flow"]
    if has_messages := any(job.tensor_bytes or job.pipeline_bytes for job in document.jobs):
        columns.append("other messages")
    for i, job in enumerate(document.jobs):
        rows = [
            [
                *(scheme, format_seconds(of[i].all_reduce_s)),
                *(format_seconds(of[i].completion_s), format_gbps(round(of[i].flow_gbps, 2))),
                *([format_seconds(of[i].exchange_s)] if has_messages else []),
            ]
            for scheme, of in results.items()
        ]
        hosts = job.tensor * job.pipeline * job.copies
        title = f"{job.name}, rings of {job.copies}, {counted(hosts, 'host')}"
        terminal.table(title, columns, rows)
    slowest = [fmean(row.all_reduce_s for row in of) for of in results.values()]
    least = dict(zip(results, slowest, strict=True))
    terminal.line(
        f"ECMP takes {least['ecmp'] / least['local-search']:.2f} times as long as local-search "
        "for an AllReduce"
    )
