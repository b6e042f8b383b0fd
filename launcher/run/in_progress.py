"""A run from its first stage to the end of training, restarts and growth included."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.fabric.cluster import static_plan
from torch_topoopt.fabric.cluster.switched import SwitchedFabric
from torch_topoopt.launcher import console, documents, signals
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.fabric import switch_verbs
from torch_topoopt.launcher.plan import plan_tables
from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
from torch_topoopt.launcher.run import (
    alltoall,
    comparability,
    controller_options,
    fabrics,
    failure_remarks,
    growth,
    job_watch,
    link_bytes,
    link_options,
    nccl_ranks,
    processor_use,
    ranks,
    requested_groups,
    restarts,
    spare_ports,
    watch,
)
from torch_topoopt.launcher.run.alltoall import AllToAlls
from torch_topoopt.launcher.run.elastic_agent import Attempt
from torch_topoopt.launcher.run.growth import Growth, GrowthWatch, PlannedGrowth
from torch_topoopt.launcher.run.plan_stages import STAGES, PlanStages
from torch_topoopt.launcher.run.ranks import RankFailure
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.result_json import plain
from torch_topoopt.plan.units import counted, format_gbps, format_seconds
from torch_topoopt.runtime.metrics import METRICS_VARIABLE, STARTED_VARIABLE, MetricsWriter
from torch_topoopt.runtime.rank_errors import ERRORS_VARIABLE
from torch_topoopt.runtime.requested_backends import TAKE_OVER_VARIABLE
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.recorded_timeline import FOLDER, TIMELINE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch_topoopt.discovery.cable_rates import CableRate
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.launcher.console import StageProgress, Terminal
    from torch_topoopt.launcher.run.fabrics import Hosts
    from torch_topoopt.launcher.run.folder import RunFolder
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.launcher.run.restarts import Restart
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import IterationTimes, LinkTraffic, Plan
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace

_GROWTH = "growth"  # in a run folder: documents of a plan for more servers
ERRORS = "logs/errors"  # in a run folder: the tracebacks of all ranks


@dataclass
class RunInProgress:
    """One run from its first stage to its summary."""

    options: RunOptions
    terminal: Terminal
    folder: RunFolder
    metrics: MetricsWriter
    server: ForkServer | None = None  # forks the ranks, and before that the script's trace
    site: ClusterSite | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    start_up_s: float | None = None  # from the train stage to the end of the first iteration
    counts: tuple[list[LinkTraffic], IterationTimes | None] = ([], None)
    works: list[RankWork] = field(default_factory=list)  # of all ranks, if measured
    other_processors: float | None = None  # kept busy by others while emulated servers trained
    trace: CommunicationTrace | None = None  # of the script, if planned for
    rates: Sequence[CableRate] = ()  # of the cables of --cluster
    attempt: Attempt | None = None
    restarts: list[Restart] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    starts: int = 0  # of ranks
    ended: bool = False

    def __post_init__(self) -> None:
        self.whole = self.options  # with all servers of --nnodes MIN:MAX
        self.members = tuple(range(self.options.first_servers))
        if self.options.first_servers < self.options.cluster.servers:
            few = restarts.options_for(self.whole, self.members)
            self.options = replace(few, measure_steps=self.whole.measure_steps)
        self._watch: GrowthWatch | None = None
        self.all_to_alls = AllToAlls(self.terminal, self.metrics, self.folder.path)

    @contextlib.contextmanager
    def stage(self, name: str, *, live: bool = True) -> Iterator[StageProgress]:
        """A stage that is shown, timed, and recorded in metrics.jsonl at its end."""
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

    @property
    def may_grow(self) -> bool:
        """Whether servers may be taken in while the job runs."""
        least = self.whole.least_servers
        return least is not None and least < self.whole.cluster.servers

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, this host is with the others, if there are any."""
        choice = self.options.site
        if choice is None:
            yield
            return
        least = f"{choice.least} of " if choice.may_grow else ""
        self.terminal.note(
            f"this host is {choice.describe(choice.server)} of {choice.file.name}; waiting up to "
            f"{choice.meet_timeout_s:g} s for {least}{counted(len(choice.file.servers), 'server')}"
        )
        with ClusterSite.join(choice) as self.site:
            count = len(self.site.members)
            if count < len(choice.file.servers):
                self.metrics.write("hosts", servers=count)
                self.terminal.note(f"the job has {counted(count, 'server')} now")
            self._measure_cables()
            yield

    def _measure_cables(self) -> None:
        """Checks the hosts before any planning or prediction for them."""
        assert self.site is not None
        self.members, file = self.site.members, self.site.choice.file
        if file.cables:
            self.rates = self.site.measure_cables()
            comparability.show_rates(self.terminal, self.rates, static_plan.stated_rates(file))
        if self.options.plan is None:
            self.options = restarts.options_at(self.options, self.site.choice)
        else:
            self.options = replace(self.options, site=self.site.choice)

    def why_not_compared(self, plan: Plan, iterations: IterationTimes) -> str:
        """Why the measured iteration is not comparable with the prediction; "" if it is."""
        return comparability.why_not_compared(
            iterations,
            plan.cluster,
            None if self.site is None else self.rates,
            paced=self.options.gbps is not None,
        )

    def driver(self) -> FabricDriver:
        """Controls the requested fabric."""
        if self.site is not None:
            before = self.folder / "switches-before"  # of the first attempt
            return self.site.fabric(
                None if before.exists() else before, forwarding=self.options.relay == "kernel"
            )
        options = self.options
        return fabrics.driver(
            options.fabric,
            options.gbps,
            options.relay,
            options.switch_delay_s,
            options.spare_ports,
        )

    def attempts(self) -> tuple[Plan, list[RankFailure]]:
        """All stages, and those after restarts; the last plan, and its first failed ranks."""
        try:
            return self._attempts()
        finally:
            for left_over in (JobFolder(self.folder.path).arrivals, self.folder / _GROWTH):
                shutil.rmtree(left_over, ignore_errors=True)

    def _attempts(self) -> tuple[Plan, list[RankFailure]]:
        plan = self.plan()
        driver, wiring = self._wired(plan)
        while True:
            try:
                choices = (self.options.alltoall, self.options.collectives)
                with (
                    alltoall.served(
                        choices, driver, plan, self.all_to_alls, self.terminal, self.site
                    ) as circuits,
                    spare_ports.watching(driver, plan, self.folder.path, self.metrics),
                ):
                    variables = self._variables(plan, wiring, circuits)
                    failures = self.train(plan, self._hosts(driver, plan), variables)
            finally:
                driver.close()
            signals.check()
            failures, gone, planned = self._settle(failures)
            if planned is not None:
                plan, driver, wiring = self._grow(planned, plan)
                continue
            restart = restarts.after(failures, self.options, self._restarts_before(), gone)
            if restart is None and gone and not failures:
                raise FabricError(
                    "the ranks of the servers that are gone have not ended their work"
                )
            if restart is None:
                return plan, failures
            plan = self._restart(restart, plan)
            driver, wiring = self._wired(plan)

    def _wired(self, plan: Plan) -> tuple[FabricDriver, Wiring]:
        """The driver with the links of `plan`."""
        driver = self.driver()
        try:
            return driver, self.wire(plan, driver)
        except BaseException:
            driver.close()
            raise

    def _restarts_before(self) -> int:
        """Restarts of the job until now, also before this host was taken in."""
        earlier = 0 if self.site is None else self.site.earlier_restarts
        return earlier + len(self.restarts)

    def _settle(
        self, failures: list[RankFailure]
    ) -> tuple[list[RankFailure], tuple[int, ...], PlannedGrowth | None]:
        """The failures of all hosts, the servers whose launchers are lost, and the growth for which
        the attempt was ended, if nothing has failed."""
        assert self.attempt is not None
        hosts, planned = self.attempt.hosts, self._watch.planned if self._watch else None
        interrupted = self.attempt.interrupted_s is not None
        if hosts is None or self.site is None:
            return failures, (), planned if interrupted else None
        outcome = {"failures": [asdict(f) for f in failures], "interrupted": interrupted}
        texts, gone = hosts.settle(json.dumps(outcome))
        self.site.report_gone(gone)
        outcomes = [json.loads(text) for text in texts.values()]
        failures = [RankFailure(**one) for outcome in outcomes for one in outcome["failures"]]
        members = hosts.grown()
        unfinished = any(outcome["interrupted"] for outcome in outcomes)
        if failures or gone or members is None or not unfinished:
            return ranks.causes_of(failures), gone, None
        if planned is None:
            came = tuple(server for server in members if server not in self.members)
            planned = PlannedGrowth(members, came)
        return [], (), planned

    def _prepare_growth(self, came: Sequence[int]) -> PlannedGrowth:
        """Plans for the job with the servers that `came`, while its ranks train. Raises FabricError
        or InputError if there is no such plan."""
        if self.site is None:
            members = sorted({*self.members, *came})
            options = restarts.options_for(self.whole, members)
        else:
            file = self.site.whole.file
            members = static_plan.connected_part(file, [*self.members, *came])
            came = [server for server in members if server not in self.members]
            if not came:
                raise FabricError("no cable or switch joins them with the servers of the job")
            choice = self.site.choice_of(members, self.rates)
            options = restarts.options_at(self.options, choice)
        folder = self.folder / _GROWTH
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        still = functools.partial(self.stage, live=False)
        stages = PlanStages(options, self.terminal, folder, self.server, still)
        return PlannedGrowth(tuple(members), tuple(came), options, stages.plan(), folder)

    def _refuse(
        self, came: Sequence[int], error: str, plan: Plan, *, stopped_s: float = 0.0
    ) -> None:
        """Records servers that cannot be taken in, so that the job goes on with `plan`."""
        console.warning(
            f"{self._names(came)} came, and cannot be taken in: {error}; the job goes on with "
            f"{counted(len(self.members), 'server')}"
        )
        servers = len(self.members)
        self._note_growth(Growth(tuple(came), servers, plan.digest(), stopped_s, error))

    def _note_growth(self, growth: Growth) -> None:
        self.growths.append(growth)
        self.metrics.write("growth", **plain(growth))

    def _names(self, servers: Sequence[int]) -> str:
        """Servers of the whole cluster, for a line of output."""
        if self.site is not None:
            return ", ".join(map(self.site.whole.describe, servers))
        return f"{'server' if len(servers) == 1 else 'servers'} {', '.join(map(str, servers))}"

    def _grow(self, planned: PlannedGrowth, plan: Plan) -> tuple[Plan, FabricDriver, Wiring]:
        """The attempt with more servers; the one before, if they cannot be wired."""
        assert self.attempt is not None
        begun_s = self.attempt.interrupted_s or time.monotonic()
        before = PlannedGrowth(self.members, (), self.options, plan)
        documents.save(plan, str(self.folder / f"plan-{self.starts - 1}.json"))
        self._forget_attempt()
        shutil.rmtree(JobFolder(self.folder.path).dumps(self.attempt.number), ignore_errors=True)
        try:
            larger = self._plan_on(planned)
            driver, wiring = self._wired(larger)
        except (FabricError, InputError) as error:
            plan = self._plan_on(before)
            driver, wiring = self._wired(plan)
            self._refuse(planned.came, str(error), plan, stopped_s=time.monotonic() - begun_s)
            return plan, driver, wiring
        stopped_s = time.monotonic() - begun_s
        grown = Growth(planned.came, len(self.members), larger.digest(), stopped_s)
        self._note_growth(grown)
        self.terminal.line(
            growth.announced(self._names(planned.came), grown, self.whole.cluster.servers, larger)
        )
        return larger, driver, wiring

    def _plan_on(self, planned: PlannedGrowth) -> Plan:
        """The plan for the servers of `planned`, which are the job's from now on."""
        if self.site is not None:
            self.site.regroup(planned.members, self._restarts_before())
            self._measure_cables()
        elif planned.options is not None:
            self.members, self.options = planned.members, planned.options
        if planned.folder is not None:
            for document in planned.folder.iterdir():
                document.replace(self.folder / document.name)
            planned.folder.rmdir()
        return self.plan(planned.plan if growth.fits(planned, self.options) else None)

    def _forget_attempt(self) -> None:
        """Removes the counters of the last attempt."""
        requested_groups.remove(self.folder.path)
        shutil.rmtree(self.folder / FOLDER, ignore_errors=True)

    def _restart(self, restart: Restart, plan: Plan) -> Plan:
        """The plan of the next attempt, which drops the counters of the last one."""
        script = self.options.torchrun.training_script
        restart.announce(script, self.options.least_servers)
        self.restarts.append(restart)
        self.metrics.write("restart", **plain(restart))
        self._forget_attempt()
        if self.site is not None:
            self.site.go_on(restart.lost)
        if not restart.lost:
            return plan
        documents.save(plan, str(self.folder / f"plan-{self.starts - 1}.json"))
        self.members = tuple(self.members[server] for server in restart.left)
        if self.site is not None:
            self.options = restarts.options_at(self.options, self.site.choice)
        else:
            self.options = restarts.options_for(self.whole, self.members)
        return self.plan()

    def plan(self, made: Plan | None = None) -> Plan:
        """Stages 1 and 2, unless the plan is `made`, or another host makes it."""
        stages = PlanStages(self.options, self.terminal, self.folder.path, self.server, self.stage)
        make = stages.plan if made is None else lambda: made
        if self.site is not None and not self.leads:
            leader = self.site.choice.describe(0)
            self.terminal.note(f"[1-2/{len(STAGES)}] waiting for the plan of {leader}")
        plan = make() if self.site is None else self.site.share_plan(make)
        self.trace = stages.trace or self.trace
        documents.save(plan, str(self.folder / "plan.json"))
        self.metrics.write("demand", of_script=self.options.source.of_script)
        if self.site is not None and not self.leads:
            self.terminal.note(f"[1-2/{len(STAGES)}] the plan {plan.digest()} has come")
        elif not self.terminal.quiet:
            plan_tables.show_plan(self.terminal, plan, from_steps=stages.trace is not None)
        return plan

    def wire(self, plan: Plan, driver: FabricDriver) -> Wiring:
        """Stage 3."""
        # a person moves cables: a moving line would erase the prompts
        by_hand = self.site is not None and switch_verbs.panels_of_people(self.site.choice.file)
        with self.stage("wire", live=not by_hand) as stage:
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
        """The place of the ranks; those of NCCL are in the order of its ring."""
        hosts = fabrics.hosts(driver, plan)
        order = nccl_ranks.order_of(plan) if self.options.nccl else ()
        if order and self.site is not None:
            if self._restarts_ranks:
                option = "max-restarts" if self.options.max_restarts else "nnodes"
                value = getattr(self.options.torchrun, option.replace("-", "_"))
                raise InputError(
                    f"{option}: {value}: ranks of NCCL are in the order of "
                    f"a ring, servers {' '.join(map(str, order))}, and restarts keep that of the "
                    f"cluster file; list its servers in that order, or leave --{option} out"
                )
            self.options.torchrun.node_rank = order.index(self.site.choice.server)
        return hosts if hosts is None else replace(hosts, order=order)

    def _variables(self, plan: Plan, wiring: Wiring, circuits: str) -> dict[str, str]:
        """For the ranks' environment. `circuits` is the socket for requests of moves."""
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
        if {self.options.torchrun.redirects, self.options.torchrun.tee} == {"0"}:
            variables[ERRORS_VARIABLE] = _absolute(self.folder / ERRORS)
        if circuits:
            variables[CIRCUITS_VARIABLE] = circuits
        if self.options.torchrun.timeline:
            variables[TIMELINE_VARIABLE] = self.options.torchrun.timeline
        return variables

    @property
    def _restarts_ranks(self) -> bool:
        """Whether ranks may be started more than once."""
        return self.options.max_restarts > 0 or self.may_grow

    def _watch_growth(self, attempt: Attempt, plan: Plan) -> None:
        """Lets the attempt, of `plan`, end for servers that come; where this host leads."""
        self._watch = None
        if not (self.may_grow and self.leads):
            return
        arrivals: growth.Arrivals
        if self.site is None:
            most = range(self.whole.cluster.servers)
            absent = [server for server in most if server not in self.members]
            arrivals = growth.EmulatedArrivals(attempt.job, absent)
        else:
            arrivals = growth.HostArrivals(self.site)
        refuse = functools.partial(self._refuse, plan=plan)
        interval_s = self.options.grow_interval_s
        self._watch = watch = GrowthWatch(
            arrivals, interval_s, self._prepare_growth, refuse, self._names
        )

        def grows() -> bool:
            if watch.look() and watch.planned is not None and attempt.hosts is not None:
                attempt.hosts.grow(watch.planned.members)
            return watch.planned is not None

        attempt.grows = grows

    def train(
        self, plan: Plan, hosts: Hosts | None, variables: dict[str, str]
    ) -> list[RankFailure]:
        """Stage 4; returns the ranks that failed first."""
        with self.stage("train", live=False) as stage:
            sys.stdout.flush()
            logs = self.folder / "logs"
            started = time.time()
            use = processor_use.ProcessorUse()
            kills = failure_remarks.KernelKills()
            job = JobFolder(self.folder.path)
            self.attempt = Attempt(self._restarts_before(), self.options.max_restarts, job)
            self.starts += 1
            self.metrics.keeps_on = True
            if self.site is not None and self._restarts_ranks:
                self.attempt.hosts = self.site.attempt(self.options.torchrun.rdzv_id)
            self._watch_growth(self.attempt, plan)
            with (
                job_watch.watching(self.folder, self.metrics),
                watch.watching(self.options.torchrun, self.terminal, self.folder.path),
            ):
                failures = ranks.train(
                    self.options.torchrun, variables, logs, self.attempt, hosts, self.server
                )
            ended = time.time()
            if self.site is None:
                self.other_processors = use.of_others()
            where = [self._server_of(failure.rank) for failure in failures]
            failures = failure_remarks.remarked(failures, self.folder.path, where, kills)
            links, iterations, self.works = link_bytes.gather(self.folder.path)
            self.counts = links, iterations
            if iterations is not None and iterations.first_ended_s is not None:
                self.start_up_s = min(max(iterations.first_ended_s, started), ended) - started
                stage.result = (
                    f"the first iteration took {format_seconds(self.start_up_s)}, start-up "
                    "included; "
                    f"then {format_seconds(ended - started - self.start_up_s)} of training"
                )
            if self.attempt.interrupted_s is not None:
                stage.result = "stopped"
            stage.result = "failed" if failures else stage.result
        return failures

    def others_text(self) -> str:
        """After a failure: the number of other ranks of this host that it ended, and the logs."""
        parts = []
        if self.attempt is not None and self.attempt.others:
            parts.append(f"{counted(self.attempt.others, 'other rank')} ended because of it")
        if (self.folder / ERRORS).is_dir():
            parts.append(f"the errors of all are in {self.folder / ERRORS}")
        if JobFolder(self.folder.path).last_dumps() is not None:
            parts.append(f"`topoopt inspect {self.folder.path}` shows what each rank was doing")
        return "; ".join(parts)

    def _server_of(self, rank: int) -> str:
        """The server of a rank of this host, in words."""
        if self.site is not None:
            return self.site.choice.describe(self.site.choice.server)
        per_server = self.options.cluster.accelerators_per_server
        return f"server {rank // per_server} of this machine, {platform.node()}"


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
