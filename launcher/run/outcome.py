"""The end of a run: tables, report, summary, and the result for `--json`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, report, script_plan
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan import plan_tables
from torch_topoopt.launcher.run import (
    link_bytes,
    processor_use,
    rank_work,
    ranks,
    requested_groups,
    tensorboard_log,
    wandb_log,
)
from torch_topoopt.launcher.supervise import timeline
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import counted, format_bytes, format_seconds
from torch_topoopt.supervision.recorded_timeline import FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch_topoopt.launcher.run.alltoall import AllToAlls, MoveCounts
    from torch_topoopt.launcher.run.growth import Growth
    from torch_topoopt.launcher.run.in_progress import RunInProgress
    from torch_topoopt.launcher.run.ranks import RankFailure
    from torch_topoopt.launcher.run.requested_groups import RequestedGroups
    from torch_topoopt.launcher.run.restarts import Restart
    from torch_topoopt.plan import IterationTimes, LinkTraffic, Plan
    from torch_topoopt.report.summary import WorkFigures

_TRACKERS = {"wandb": wandb_log, "tensorboard": tensorboard_log}


@dataclass(frozen=True)
class RunResult:
    """The result of a run for `--json`. Paths are None without such a report or tracker."""

    exit_code: int
    run_dir: Path
    report: Path | None
    wandb: Path | None
    tensorboard: Path | None
    stage_s: dict[str, float]
    start_up_s: float | None
    other_processors: float | None
    plan: plan_tables.PlanFigures
    groups: RequestedGroups
    alltoall: AllToAlls
    collectives: MoveCounts
    links: Sequence[LinkTraffic]
    iterations: link_bytes.IterationFigures | None
    work: WorkFigures
    restarts: Sequence[Restart]
    growths: Sequence[Growth]
    failed_ranks: Sequence[int]


def require(trackers: Sequence[str]) -> None:
    """Raises InputError for a tracker that is not installed."""
    for name in trackers:
        _TRACKERS[name].require()


def finish(
    job: RunInProgress,
    plan: Plan,
    measured: tuple[list[LinkTraffic], IterationTimes | None, RequestedGroups],
    failures: list[RankFailure],
    code: int,
) -> RunResult:
    """Report and summary, on the host that leads, and the result for `--json`."""
    links, iterations, groups = measured
    written = page(job) if job.leads else None
    tracked = _track(job, plan, links) if written is not None else {}
    if written is not None and not failures:
        _tables(job, plan, links, iterations)
    _summary(job, written, tracked, failed=bool(failures))
    script = job.options.torchrun.training_script
    if job.leads and plan.network.links and not (failures or job.options.nccl):
        if unused := requested_groups.unused_links(groups, measured=bool(links)):
            console.warning(unused)
        elif beside := requested_groups.beside(groups, job.options.compared):
            console.warning(beside)
    if failures and (others := job.others_text()):
        job.terminal.line(others)
    for line in ranks.describe(failures, script):
        console.error(line)
    return RunResult(
        exit_code=code,
        run_dir=job.folder.path,
        report=written,
        wandb=tracked.get("wandb"),
        tensorboard=tracked.get("tensorboard"),
        stage_s=job.stage_s,
        start_up_s=job.start_up_s,
        other_processors=job.other_processors,
        plan=plan_tables.PlanFigures(plan),
        groups=groups,
        alltoall=job.all_to_alls,
        collectives=job.all_to_alls.others,
        links=links,
        iterations=link_bytes.iteration_figures(
            plan,
            links,
            iterations,
            compared=job.options.source.of_script,
            why_not="" if iterations is None else job.why_not_compared(plan, iterations),
        ),
        work=rank_work.figures(job.works),
        restarts=job.restarts,
        growths=job.growths,
        failed_ranks=[failure.rank for failure in failures],
    )


def page(job: RunInProgress, *, stopped: bool = False) -> Path | None:
    """The report; none if the run folder was broken during training, or of a `stopped` run that
    has none."""
    try:
        return report.write(job.folder.path)
    except (InputError, DocumentError) as error:
        if not (job.metrics.error or stopped):
            raise
        console.warning(f"there is no report: {error}")
        return None


def _tables(
    job: RunInProgress, plan: Plan, links: list[LinkTraffic], iterations: IterationTimes | None
) -> None:
    terminal, of_script = job.terminal, job.options.source.of_script
    terminal.line()
    rows = [(name, f"{seconds:.3f}") for name, seconds in job.stage_s.items()]
    if job.start_up_s is not None and job.starts == 1:
        training_s = job.stage_s["train"] - job.start_up_s
        rows.append(("  of it start-up and first iteration", f"{job.start_up_s:.3f}"))
        rows.append(("  of it further training", f"{training_s:.3f}"))
    terminal.table("Time of each stage", ("stage", "seconds"), rows)
    if links:
        why_not = "" if iterations is None else job.why_not_compared(plan, iterations)
        link_bytes.show(
            terminal,
            plan,
            links,
            iterations,
            compared=job.options.source.of_script,
            why_not=why_not,
        )
        rank_work.show(terminal, job.works)
        if iterations is not None and (others := processor_use.described(job.other_processors)):
            terminal.line(others)
        if not of_script and (plan.predicts_bytes or plan.predicts_time):
            terminal.line(
                f"not compared with the predictions for {plan.model}, which is not seen to be the "
                f"model of {job.options.torchrun.training_script}"
            )
        compared = link_bytes.iteration_figures(plan, links, iterations)
        apart = 0.0 if compared is None else compared.link_bytes_difference
        if job.trace and (why := script_plan.cause_of_difference(job.trace, job.works, apart)):
            terminal.line(why)
        total = sum(link.sent_bytes for link in links)
        terminal.line(f"{format_bytes(total)} on {counted(len(links), 'link')} in all")


def _summary(
    job: RunInProgress, page: Path | None, tracked: dict[str, Path], *, failed: bool
) -> None:
    terminal = job.terminal
    for moves in job.all_to_alls.described():
        terminal.line(moves)
    logs = job.folder / "logs"
    if logs.is_dir():
        terminal.line(f"logs: {logs}")
    if "wandb" in tracked:
        terminal.line(f"Weights & Biases: wandb sync {shlex.quote(str(tracked['wandb']))}")
    if "tensorboard" in tracked:
        where = shlex.quote(str(tracked["tensorboard"]))
        terminal.line(f"TensorBoard: tensorboard --logdir {where}")
    ended = "failed" if failed else "trained"
    terminal.line(f"{ended} in {format_seconds(job.stage_s['train'])}; results: {job.folder.path}")
    if job.options.torchrun.timeline and (job.folder / FOLDER).is_dir():
        trace, contents = timeline.write(job.folder.path)
        terminal.line(f"timeline: {trace} ({contents})")
    if page is not None:
        terminal.line(f"report: {page}")
    elif job.site is not None:
        terminal.line(f"the report is on {job.site.choice.describe(0)}")


def _track(job: RunInProgress, plan: Plan, links: list[LinkTraffic]) -> dict[str, Path]:
    """Per requested tracker: the path of the run there."""
    options, folder = job.options, job.folder.path
    if not options.trackers:
        return {}
    from torch_topoopt.launcher.run.experiment import read_experiment

    experiment = read_experiment(folder, plan, links)
    return {name: _TRACKERS[name].write(folder, experiment) for name in options.trackers}
