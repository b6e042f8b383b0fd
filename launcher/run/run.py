"""`topoopt run`: profile, co-optimise, wire, train; a drop-in for torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.cluster import static_plan, switched_plan
from torch_topoopt.fabric.cluster.switched import SwitchedFabric
from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.launcher import console, documents, report, script_plan, signals
from torch_topoopt.launcher.errors import OK, SCRIPT_FAILED, InputError, input_errors
from torch_topoopt.launcher.fabric import switch_verbs
from torch_topoopt.launcher.plan import plan_tables, planning, programs
from torch_topoopt.launcher.profile import profile
from torch_topoopt.launcher.run import (
    alltoall,
    asked_groups,
    controller_options,
    fabrics,
    link_bytes,
    link_options,
    nccl_ranks,
    processor_use,
    rank_work,
    ranks,
    restarts,
    tensorboard_log,
    wandb_log,
    watch,
)
from torch_topoopt.launcher.run import costs as run_costs
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.launcher.run import steps as run_steps
from torch_topoopt.launcher.run.alltoall import AllToAlls
from torch_topoopt.launcher.run.asked_groups import AskedGroups
from torch_topoopt.launcher.run.elastic_agent import Attempt
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.launcher.run.ranks import RankFailure
from torch_topoopt.launcher.supervise import timeline
from torch_topoopt.plan import LinkTraffic
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.rank_work import RankWork
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds
from torch_topoopt.processes.fork_server import ForkServer
from torch_topoopt.reconfiguration.circuit_service import CIRCUITS_VARIABLE
from torch_topoopt.runtime.asked_backends import TAKE_OVER_VARIABLE
from torch_topoopt.runtime.cluster_site import ClusterSite
from torch_topoopt.runtime.metrics import METRICS_VARIABLE, STARTED_VARIABLE, MetricsWriter
from torch_topoopt.runtime.versions import BuildMismatchError, check_installed, check_tls
from torch_topoopt.supervision.recorded_timeline import FOLDER, TIMELINE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.launcher.console import StageProgress, Terminal
    from torch_topoopt.launcher.run.fabrics import Hosts
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.launcher.run.restarts import Restart
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Demand, IterationTimes, Network, Plan
    from torch_topoopt.profile.script import CommunicationTrace
    from torch_topoopt.runtime.hosts_attempt import HostsAttempt

_SAME = 0.01  # bytes of links that are further apart than this part are not as predicted
_TRACKERS = {"wandb": wandb_log, "tensorboard": tensorboard_log}
STAGES = ("profile", "co-optimise", "wire", "train")


@dataclass
class RunInProgress:
    """One run from its first stage to its summary."""

    options: RunOptions
    terminal: Terminal
    folder: RunFolder
    metrics: MetricsWriter
    server: ForkServer | None = None  # of the ranks, and what traces them before
    site: ClusterSite | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    start_up_s: float | None = None  # of the train stage, until the first iteration had ended
    counts: tuple[list[LinkTraffic], IterationTimes | None] = ([], None)
    works: list[RankWork] = field(default_factory=list)  # of all ranks, where measured
    other_processors: float | None = None  # that others kept busy while emulated servers trained
    short_calls: str = ""
    attempt: Attempt | None = None
    restarts: list[Restart] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self.all_to_alls = AllToAlls(self.terminal, self.metrics, self.folder.path)

    @contextlib.contextmanager
    def stage(self, name: str, *, live: bool = True) -> Iterator[StageProgress]:
        """A stage that is shown, timed, and recorded in metrics.jsonl when it has ended."""
        number = STAGES.index(name) + 1
        with self.terminal.stage(number, len(STAGES), name, live=live) as stage:
            yield stage
        self.stage_s[name] = self.stage_s.get(name, 0.0) + stage.seconds
        self.metrics.write("stage", name=name, seconds=stage.seconds)

    def end(self, code: int) -> None:
        """Records the exit code, once: a signal during the summary does not change it."""
        if not self.ended:
            self.ended = True
            self.metrics.write("end", exit_code=code)

    @property
    def leads(self) -> bool:
        """Whether this is the host that plans and reports, for all of them."""
        return self.site is None or self.site.leads

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, this host is with the others, if there are any."""
        choice = self.options.site
        if choice is None:
            yield
            return
        self.terminal.line(
            f"this host is {choice.describe(choice.server)} of {choice.file.name}; waiting up to "
            f"{choice.meet_timeout_s:g} s for {counted(len(choice.file.servers), 'server')}"
        )
        with ClusterSite.join(choice) as self.site:
            yield

    def driver(self) -> FabricDriver:
        """Controls the fabric that was asked for."""
        if self.site is not None:
            return self.site.fabric(self.folder / "switches-before")
        options = self.options
        return fabrics.driver(options.fabric, options.gbps, options.relay, options.switch_delay_s)

    def attempts(self) -> tuple[Plan, list[RankFailure]]:
        """All stages, and those that follow from restarts; the last plan, and the ranks that failed
        on it first."""
        plan = self.plan()
        while True:
            driver = self.driver()
            try:
                wiring = self.wire(plan, driver)
                with alltoall.served(
                    self.options.alltoall, driver, plan, self.all_to_alls, self.terminal
                ) as circuits:
                    variables = self._variables(plan, wiring, circuits)
                    failures = self.train(self._hosts(driver, plan), variables)
            finally:
                driver.close()
            signals.check()
            gone: tuple[int, ...] = ()
            if self.attempt is not None and self.attempt.hosts is not None:
                failures, gone = self._settle(self.attempt.hosts, failures)
            restart = restarts.after(failures, self.options, len(self.restarts), gone)
            if restart is None and gone and not failures:
                raise FabricError(
                    "the ranks of the servers that are gone have not ended their work"
                )
            if restart is None:
                return plan, failures
            plan = self._restart(restart, plan)

    def _settle(
        self, hosts: HostsAttempt, failures: list[RankFailure]
    ) -> tuple[list[RankFailure], tuple[int, ...]]:
        """The failures of all hosts, and the servers whose launchers have ended."""
        assert self.site is not None
        outcomes, gone = hosts.settle(json.dumps([asdict(failure) for failure in failures]))
        for server in gone:
            console.warning(f"{self.site.choice.describe(server)} is gone: its launcher has ended")
        listed = [RankFailure(**one) for text in outcomes.values() for one in json.loads(text)]
        return ranks.causes_of(listed), gone

    def _restart(self, restart: Restart, plan: Plan) -> Plan:
        """The plan of the next attempt. What the one before has counted is left out."""
        script = self.options.torchrun.training_script
        restart.announce(script, self.options.least_servers)
        self.restarts.append(restart)
        self.metrics.write("restart", **restart.figures())
        asked_groups.remove(self.folder.path)
        shutil.rmtree(self.folder / FOLDER, ignore_errors=True)
        if self.site is not None:
            self.site.go_on(restart.lost)
        if not restart.lost:
            return plan
        documents.save(plan, str(self.folder / f"plan-{restart.number - 1}.json"))
        if self.site is not None:
            self.options = restarts.options_at(self.options, self.site.choice)
        else:
            self.options = restarts.options_for(self.options, restart.left)
        return self.plan()

    def plan(self) -> Plan:
        """Stages 1 and 2, unless the user brought a plan, or another host makes it."""
        plan = self._make_plan() if self.site is None else self.site.share_plan(self._make_plan)
        documents.save(plan, str(self.folder / "plan.json"))
        self.metrics.write("demand", of_script=self.options.of_script)
        if self.site is not None and not self.leads:
            leader = self.site.choice.describe(0)
            self.terminal.line(f"[1-2/{len(STAGES)}] the plan {plan.digest()} is that of {leader}")
        else:
            plan_tables.show_plan(self.terminal, plan)
        return plan

    def _make_plan(self) -> Plan:
        plan = self.options.plan
        cluster = self.options.cluster
        choice = self.options.planning
        self.terminal.line(
            planning.assumptions(
                cluster,
                choice.space if plan is None and self.options.model else None,
                "" if plan is None else plan.model,
                choice.batch_size if plan is None else plan.batch_size,
            )
        )
        if self.options.plan is not None:
            plan = self.options.plan
            self.terminal.line(f"[1-2/{len(STAGES)}] the plan {plan.digest()} was given")
        else:
            plan = self._plan_for_model() or self._plan_for_script()
        if self.options.site is not None and self.options.site.file.switches:
            switched_plan.place_on_switches(plan, self.options.site.file)  # or fail on all hosts
        return plan

    def _plan_for_model(self) -> Plan | None:
        """None without a model, and where the one that the script seems to have is none."""
        if not self.options.model:
            return None
        try:
            graph, program = self._profile()
        except InputError as error:
            script = self.options.script
            if script is None or self.options.planning.space != "data-parallel":
                raise
            self.terminal.line(f"      {error}; {script.name} is traced instead")
            return None
        return self._co_optimise(graph, program)

    def _plan_for_script(self) -> Plan:
        """For what a trace of the script finds, else for an unknown demand."""
        from torch_topoopt.planner import demand_plan

        cluster = self.options.cluster
        demand, trace, why = self._demand_of_script()
        if trace is None:
            self.terminal.line(f"      rings for an unknown demand, nothing predicted: {why}")
        else:
            documents.save(trace, str(self.folder / "trace.json"))
            self.short_calls = script_plan.short_calls(trace)
        with self.stage("co-optimise") as stage:
            stage.progress(None, "TopologyFinder")
            arguments = self.options.torchrun
            with input_errors():
                plan = demand_plan.plan_for_demand(
                    cluster,
                    demand,
                    trace,
                    name=script_plan.name_of(arguments.training_script, module=arguments.module),
                    seed=self.options.seed,
                    network=self._given_network(),
                    mode=self.options.planning.options.mode,
                    routing=self.options.planning.options.routing,
                )
            plan = documents.with_failures(plan, stage.progress)
            stage.result = f"network for this demand, plan {plan.digest()}"
        return plan

    def _demand_of_script(self) -> tuple[Demand, CommunicationTrace | None, str]:
        """With the trace that found it, or without one and why."""
        script, cluster = self.options.script, self.options.cluster
        if script is None:
            from torch_topoopt.planner.demand_plan import unknown_demand

            return unknown_demand(cluster), None, self.options.unknown
        self.terminal.line(
            f"      tracing {script.name}: its first iterations are run without a network, to see "
            f"what they communicate (at most {script.limits.time_s:g} s; --model none does without)"
        )
        with self.stage("profile") as stage:
            stage.progress(None, f"tracing {script.name}")
            demand, trace, why = script_plan.demand_of_script(script, cluster, self.server)
            found = trace is not None
            stage.result = script_plan.demand_text(demand) if found else "no demand was found"
        return demand, trace, why

    def _given_network(self) -> Network | None:
        """That of the cables, where they are plugged already."""
        site = self.options.site
        if site is None or site.file.switches:
            return None
        return static_plan.network_of(site.file)

    def _profile(self) -> tuple[OpGraph, Program | None]:
        with self.stage("profile") as stage:
            stage.progress(None, self.options.model)
            program = None
            choice, cluster = self.options.planning, self.options.cluster
            if choice.space != "data-parallel":
                # a pipeline's first stage has its input, and its last its output, already
                graph, program = programs.graph_and_program(
                    self.options.model,
                    boundary=choice.space != "pipeline",
                    batch_size=choice.batch_size,
                    accelerators=cluster.servers * cluster.accelerators_per_server,
                    costs=choice.costs,
                )
            else:
                graph = choice.op_graph(self.options.model, cluster)
            measured = ""
            if self.options.measure:
                graph, measured = run_costs.measured(
                    graph,
                    self.options.model,
                    self.options.cluster,
                    stage.progress,
                    emulated=self.options.site is None,
                )
            graph, steps = run_steps.measured_graph(
                graph, self.options, stage.progress, self.server
            )
            documents.save(graph, str(self.folder / "opgraph.json"))
            stage.result = profile.summary(graph)
        for line in filter(None, (measured, steps)):
            self.terminal.line(f"      {line}")
        return graph, program

    def _co_optimise(self, graph: OpGraph, program: Program | None) -> Plan:
        cluster = self.options.cluster
        space = self.options.planning.space
        if program is not None and space != "pipeline":
            programs.show(self.terminal, program)
        elif space == "data-parallel":
            self.terminal.line(
                f"      data parallelism over all {cluster.servers} servers; --strategy-space full "
                "also considers tables and operators on some of them"
            )
        network = self._given_network()
        if self.options.site is not None and self.options.site.file.switches:
            self.terminal.line(
                f"      {counted(cluster.degree, 'port')} of every server on switches, planned "
                f"for {format_gbps(cluster.link_gbps)} per link"
            )
        elif network is not None:
            self.terminal.line(
                f"      {counted(len(network.links) // 2, 'cable')} that are plugged already, of "
                f"{format_gbps(cluster.link_gbps)} or more"
            )
        elif self.options.gbps is None:
            self.terminal.line(
                f"      no --bandwidth: planned for {format_gbps(cluster.link_gbps)} per link, "
                "links as fast as this machine"
            )
        with self.stage("co-optimise") as stage:
            plan = self.options.planning.plan(
                graph, cluster, stage.progress, network=network, program=program
            )
            plan, steps = self._price_as_measured(graph, plan, stage)
            plan = documents.with_failures(plan, stage.progress)
            stage.result = f"{counted(len(plan.rounds), 'round')}, plan {plan.digest()}"
        if steps:
            self.terminal.line(f"      as planned: {steps}")
        return plan

    def _price_as_measured(
        self, graph: OpGraph, plan: Plan, stage: StageProgress
    ) -> tuple[Plan, str]:
        """A plan that is more than data parallel, priced by its own steps; what was measured."""
        if not run_steps.measures(self.options) or plan.is_data_parallel:
            return plan, ""
        graph, plan, steps = run_steps.measured_plan(
            graph, plan, self.options, stage.progress, self.server
        )
        documents.save(graph, str(self.folder / "opgraph.json"))
        return plan, steps

    def wire(self, plan: Plan, driver: FabricDriver) -> Wiring:
        """Stage 3."""
        # where a person moves cables, a moving line would wipe the questions away
        asked = self.site is not None and switch_verbs.panels_of_people(self.site.choice.file)
        with self.stage("wire", live=not asked) as stage:
            stage.progress(None, driver.name)
            if isinstance(driver, SwitchedFabric):
                driver.progress = lambda name, done, of, what: stage.progress(
                    done / of if of else None, f"{name}: {what}"
                )
            wiring = driver.connect(plan)
            documents.save(wiring, str(self.folder / "wiring.json"))
            rate = "not limited" if self.options.gbps is None else format_gbps(self.options.gbps)
            if self.site is not None:
                rate = "that of the cables"
            stage.result = (
                f"{counted(len(plan.network.links), 'link')} on {wiring.fabric}, "
                f"each verified from both ends, rate {rate}"
            )
        return wiring

    def _hosts(self, driver: FabricDriver, plan: Plan) -> Hosts | None:
        """Where the ranks run; those of NCCL in the order of its ring."""
        hosts = fabrics.hosts(driver, plan)
        order = nccl_ranks.order_of(plan) if self.options.nccl else ()
        if order and self.site is not None:
            if self.options.max_restarts:
                raise InputError(
                    f"max-restarts: {self.options.max_restarts}: ranks of NCCL are in the order of "
                    f"a ring, servers {' '.join(map(str, order))}, and restarts keep that of the "
                    "cluster file; list its servers in that order, or leave --max-restarts out"
                )
            self.options.torchrun.node_rank = order.index(self.site.choice.server)
        return hosts if hosts is None else replace(hosts, order=order)

    def _variables(self, plan: Plan, wiring: Wiring, circuits: str) -> dict[str, str]:
        """Of the ranks' environment. `circuits` is where they ask for moves."""
        if self.options.nccl:
            return nccl_ranks.variables(
                plan,
                wiring,
                self.folder / nccl_ranks.WIRING_FILE,
                encrypt=self.options.encrypt,
                site=self.site,
                interface={"loopback": "lo", "netns": "management"}.get(wiring.fabric),
            )
        variables = {
            "TOPOOPT_PLAN": _absolute(self.folder / "plan.json"),
            "TOPOOPT_WIRING": _absolute(self.folder / "wiring.json"),
            "TOPOOPT_RUN_DIR": _absolute(self.folder.path),
            METRICS_VARIABLE: _absolute(self.metrics.path),
            STARTED_VARIABLE: repr(self.metrics.started),
            TAKE_OVER_VARIABLE: ",".join(self.options.take_over),
            **controller_options.variables(self.options.torchrun),
            **link_options.variables(self.options.torchrun),
        }
        if circuits:
            variables[CIRCUITS_VARIABLE] = circuits
        if self.options.torchrun.timeline:
            variables[TIMELINE_VARIABLE] = self.options.torchrun.timeline
        return variables

    def train(self, hosts: Hosts | None, variables: dict[str, str]) -> list[RankFailure]:
        """Stage 4; returns the ranks that failed first."""
        with self.stage("train", live=False) as stage:
            sys.stdout.flush()
            logs = self.folder / "logs"
            started = time.time()
            use = processor_use.ProcessorUse()
            self.attempt = Attempt(len(self.restarts), self.options.max_restarts)
            if self.site is not None and self.options.max_restarts:
                self.attempt.hosts = self.site.attempt(self.options.torchrun.rdzv_id)
            with watch.watching(self.options.torchrun, self.terminal, self.folder.path):
                failures = ranks.train(
                    self.options.torchrun, variables, logs, self.attempt, hosts, self.server
                )
            ended = time.time()
            if self.site is None:
                self.other_processors = use.of_others()
            links, iterations, self.works = link_bytes.gather(self.folder.path)
            self.counts = links, iterations
            if iterations is not None and iterations.first_ended_s is not None:
                self.start_up_s = min(max(iterations.first_ended_s, started), ended) - started
                stage.result = (
                    f"{format_seconds(self.start_up_s)} until the first iteration had ended, "
                    f"{format_seconds(ended - started - self.start_up_s)} of training"
                )
            stage.result = "failed" if failures else stage.result
        return failures


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
    for name in options.trackers:
        _TRACKERS[name].require()
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
        )
    rank_work.write(job.metrics, job.works)
    code = SCRIPT_FAILED if failures else OK
    job.end(code)
    return code, _finish(job, plan, (links, iterations, groups), failures, code)


def _finish(
    job: RunInProgress,
    plan: Plan,
    measured: tuple[list[LinkTraffic], IterationTimes | None, AskedGroups],
    failures: list[RankFailure],
    code: int,
) -> dict[str, Any]:
    """Report and summary, on the host that leads, and the figures of `--json`."""
    links, iterations, groups = measured
    page = report.write(job.folder.path) if job.leads else None
    tracked = _track(job, plan, links) if page is not None else {}
    if page is not None and not failures:
        _tables(job, plan, links, iterations)
    _summary(job, page, tracked, failed=bool(failures))
    script = job.options.torchrun.training_script
    if job.leads and plan.network.links and not (failures or job.options.nccl):
        if unused := asked_groups.unused_links(groups, measured=bool(links)):
            console.warning(unused)
        elif beside := asked_groups.beside(groups):
            console.warning(beside)
    for failure in failures:
        console.error(failure.describe(script))
    return {
        "exit_code": code,
        "run_dir": str(job.folder.path),
        "report": str(page) if page else None,
        "wandb": str(tracked["wandb"]) if "wandb" in tracked else None,
        "tensorboard": str(tracked["tensorboard"]) if "tensorboard" in tracked else None,
        "stage_s": job.stage_s,
        "start_up_s": job.start_up_s,
        "other_processors": job.other_processors,
        "plan": plan_tables.figures(plan),
        "groups": groups.figures(),
        "alltoall": job.all_to_alls.figures(),
        "links": link_bytes.figures(links),
        "iterations": link_bytes.iteration_figures(
            plan, links, iterations, compared=job.options.of_script
        ),
        "work": rank_work.figures(job.works),
        "restarts": [restart.figures() for restart in job.restarts],
        "failed_ranks": [failure.rank for failure in failures],
    }


def _tables(
    job: RunInProgress, plan: Plan, links: list[LinkTraffic], iterations: IterationTimes | None
) -> None:
    terminal = job.terminal
    terminal.line()
    rows = [(name, f"{seconds:.3f}") for name, seconds in job.stage_s.items()]
    if job.start_up_s is not None and not job.restarts:
        training_s = job.stage_s["train"] - job.start_up_s
        rows.append(("  of it start-up and first iteration", f"{job.start_up_s:.3f}"))
        rows.append(("  of it further training", f"{training_s:.3f}"))
    terminal.table("Time of each stage", ("stage", "seconds"), rows)
    if links:
        link_bytes.show(terminal, plan, links, iterations, compared=job.options.of_script)
        rank_work.show(terminal, job.works)
        if iterations is not None and (others := processor_use.described(job.other_processors)):
            terminal.line(others)
        if not job.options.of_script and (plan.predicts_bytes or plan.predicts_time):
            terminal.line(
                f"not compared with the predictions for {plan.model}, which is not seen to be the "
                f"model of {job.options.torchrun.training_script}"
            )
        compared = link_bytes.iteration_figures(plan, links, iterations)
        apart = 0.0 if compared is None else compared["link_bytes_difference"]
        if job.short_calls and (apart is None or apart > _SAME):
            terminal.line(job.short_calls)
        total = sum(link.sent_bytes for link in links)
        terminal.line(f"{format_bytes(total)} on {counted(len(links), 'link')} in all")


def _summary(
    job: RunInProgress, page: Path | None, tracked: dict[str, Path], *, failed: bool
) -> None:
    terminal = job.terminal
    if moves := job.all_to_alls.described():
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
    """Where each tracker that was asked for has the run."""
    options, folder = job.options, job.folder.path
    if not options.trackers:
        return {}
    from torch_topoopt.launcher.run.experiment import read_experiment

    experiment = read_experiment(folder, plan, links)
    return {name: _TRACKERS[name].write(folder, experiment) for name in options.trackers}


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
