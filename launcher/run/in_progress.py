"""A run from its first stage to the end of training, restarts included."""

from __future__ import annotations

import contextlib
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
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.launcher.console import StageProgress, Terminal
    from torch_topoopt.launcher.rendezvous.hosts_attempt import HostsAttempt
    from torch_topoopt.launcher.run.fabrics import Hosts
    from torch_topoopt.launcher.run.folder import RunFolder
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.launcher.run.restarts import Restart
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import IterationTimes, LinkTraffic, Plan
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace

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
    ended: bool = False

    def __post_init__(self) -> None:
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

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, this host is with the others, if there are any."""
        choice = self.options.site
        if choice is None:
            yield
            return
        self.terminal.note(
            f"this host is {choice.describe(choice.server)} of {choice.file.name}; waiting up to "
            f"{choice.meet_timeout_s:g} s for {counted(len(choice.file.servers), 'server')}"
        )
        with ClusterSite.join(choice) as self.site:
            if choice.file.cables:
                self._measure_cables(choice.file)
            yield

    def _measure_cables(self, file: ClusterFile) -> None:
        """Checks the hosts before any planning or prediction for them."""
        assert self.site is not None
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
            return self.site.fabric(self.folder / "switches-before")
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
        plan = self.plan()
        while True:
            driver = self.driver()
            try:
                wiring = self.wire(plan, driver)
                choices = (self.options.alltoall, self.options.collectives)
                with (
                    alltoall.served(
                        choices, driver, plan, self.all_to_alls, self.terminal
                    ) as circuits,
                    spare_ports.watching(driver, plan, self.folder.path, self.metrics),
                ):
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
        """The failures of all hosts, and the servers whose launchers are lost."""
        assert self.site is not None
        outcomes, gone = hosts.settle(json.dumps([asdict(failure) for failure in failures]))
        for server in gone:
            console.warning(f"{self.site.choice.describe(server)} is gone: its launcher has ended")
        listed = [RankFailure(**one) for text in outcomes.values() for one in json.loads(text)]
        return ranks.causes_of(listed), gone

    def _restart(self, restart: Restart, plan: Plan) -> Plan:
        """The plan of the next attempt, which drops the counters of the last one."""
        script = self.options.torchrun.training_script
        restart.announce(script, self.options.least_servers)
        self.restarts.append(restart)
        self.metrics.write("restart", **plain(restart))
        requested_groups.remove(self.folder.path)
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
        stages = PlanStages(self.options, self.terminal, self.folder, self.server, self.stage)
        if self.site is not None and not self.leads:
            leader = self.site.choice.describe(0)
            self.terminal.note(f"[1-2/{len(STAGES)}] waiting for the plan of {leader}")
        plan = stages.plan() if self.site is None else self.site.share_plan(stages.plan)
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
            if self.options.max_restarts:
                raise InputError(
                    f"max-restarts: {self.options.max_restarts}: ranks of NCCL are in the order of "
                    f"a ring, servers {' '.join(map(str, order))}, and restarts keep that of the "
                    "cluster file; list its servers in that order, or leave --max-restarts out"
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

    def train(self, hosts: Hosts | None, variables: dict[str, str]) -> list[RankFailure]:
        """Stage 4; returns the ranks that failed first."""
        with self.stage("train", live=False) as stage:
            sys.stdout.flush()
            logs = self.folder / "logs"
            started = time.time()
            use = processor_use.ProcessorUse()
            kills = failure_remarks.KernelKills()
            job = JobFolder(self.folder.path)
            self.attempt = Attempt(len(self.restarts), self.options.max_restarts, job)
            self.metrics.keeps_on = True
            if self.site is not None and self.options.max_restarts:
                self.attempt.hosts = self.site.attempt(self.options.torchrun.rdzv_id)
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
