"""`topoopt simulate --jobs`: many jobs on one cluster, on several architectures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.launcher import console, documents
from torch_topoopt.launcher.errors import OK, input_errors
from torch_topoopt.plan.units import counted, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.shared_networks.outcome import (
        MeanAndTail,
        NetworkOutcome,
        WiringCost,
    )


@dataclass(frozen=True)
class SharedOutcomes:
    """The result of `topoopt simulate --jobs`."""

    servers: int
    seed: int
    level: Literal["flow"]
    architectures: tuple[NetworkOutcome, ...]


def main(arguments: argparse.Namespace) -> int:
    """Runs the verb with --jobs; returns the exit code."""
    from torch_topoopt.shared_networks.jobs_file import SharedCluster
    from torch_topoopt.shared_networks.simulate import simulate_jobs

    document = documents.load(SharedCluster, arguments.jobs)
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress(f"simulating {arguments.jobs}") as progress, input_errors():
        outcomes = simulate_jobs(document, _graph_of, on_progress=progress)
    if arguments.json:
        servers = document.cluster.servers
        console.print_json(SharedOutcomes(servers, document.seed, "flow", outcomes))
        return OK
    for outcome in outcomes:
        _show(terminal, outcome, document.cluster.servers)
    return OK


def _graph_of(model: str, accelerators: int) -> OpGraph:
    return documents.op_graph_of(model, accelerators=accelerators)


def _show(terminal: console.Terminal, outcome: NetworkOutcome, servers: int) -> None:
    jobs = outcome.jobs
    counts = {name: sum(job.model == name for job in jobs) for name in outcome.models}
    rows = [[name, str(count), *_times(outcome.iterations(name))] for name, count in counts.items()]
    rows.append(["all jobs", str(len(jobs)), *_times(outcome.iterations())])
    name = outcome.network.partition(" ")[0]
    terminal.table(
        f"{name}, {format_gbps(round(outcome.server_gbps, 1))} a server",
        ["iterations of", "jobs", "mean", "99th percentile"],
        rows,
    )
    late = [job.waiting_s for job in jobs if 0 < job.waiting_s < math.inf]
    never = sum(job.start_s == math.inf for job in jobs)
    ended = [job for job in jobs if job.end_s < math.inf]
    terminal.line(
        f"{len(late)} of {counted(len(jobs), 'job')} waited; on average "
        f"{format_seconds(outcome.waiting_s)} from arrival to start"
        + f"; {never} never started"
        * (never > 0)
    )
    if ended:
        last_s = max(job.end_s for job in ended)
        terminal.line(
            f"{format_seconds(outcome.completion_s)} from arrival to end on average; the last job "
            f"ended after {format_seconds(last_s)}"
        )
    pieces = f"; jobs hang on {outcome.fragmentation:.2f} times as many switches as they need"
    terminal.line(
        f"{outcome.utilisation:.0%} of {counted(servers, 'server')} in use"
        + pieces * (outcome.shards is None)
    )
    if outcome.shards is not None:
        terminal.line(_wiring(outcome.shards))


def _wiring(cost: WiringCost) -> str:
    this, other = ("with", "without") if cost.look_ahead else ("without", "with")
    text = (
        f"servers waited {_seconds(cost.reconfiguration_s)} for their links {this} look-ahead, "
        f"and would {_seconds(cost.other_reconfiguration_s)} {other}; jobs would start "
        f"{_seconds(cost.other_waiting_s)} after their arrival"
    )
    if cost.other_last_end_s:
        text += f", and the last one end after {_seconds(cost.other_last_end_s)}"
    return text


def _times(found: MeanAndTail) -> tuple[str, str]:
    return _seconds(found.mean_s), _seconds(found.p99_s)


def _seconds(value: float) -> str:
    return format_seconds(value) if math.isfinite(value) else "-"
