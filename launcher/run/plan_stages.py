"""The first two stages of a run: profile the model or trace the script, and plan for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster import static_plan, switched_plan
from torch_topoopt.launcher import documents, script_plan
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.launcher.plan import planning, programs
from torch_topoopt.launcher.profile import profile
from torch_topoopt.launcher.run import costs as run_costs
from torch_topoopt.launcher.run import steps as run_steps
from torch_topoopt.plan.units import counted, format_gbps

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch_topoopt.launcher.console import StageProgress, Terminal
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Demand, Network, Plan
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace
    from torch_topoopt.profile.script.step_timing import StepTiming

# of a run; this module has the first two
STAGES = ("profile", "co-optimise", "wire", "train")


class PlanStages:
    """Profile and co-optimise, unless the user supplied a plan.

    After `plan`, `trace` is that of the script, if it was traced.
    """

    def __init__(
        self,
        options: RunOptions,
        terminal: Terminal,
        folder: Path,
        server: ForkServer | None,
        stage: Callable[[str], AbstractContextManager[StageProgress]],
    ) -> None:
        """`folder` gets the documents, `server` forks the tracing processes, and `stage` begins one
        of STAGES."""
        self._options = options
        self._terminal = terminal
        self._folder = folder
        self._server = server
        self._stage = stage
        self.trace: CommunicationTrace | None = None
        self._timing: StepTiming | None = None
        self._demand: tuple[Demand, CommunicationTrace | None, str] | None = None

    def plan(self) -> Plan:
        """Both stages. Raises InputError without anything to plan for."""
        plan = self._options.plan
        cluster = self._options.cluster
        choice = self._options.planning
        self._terminal.note(
            planning.assumptions(
                cluster,
                choice.space if plan is None and self._options.source.model else None,
                "" if plan is None else plan.model,
                choice.batch_size if plan is None else plan.batch_size,
            )
        )
        if self._options.plan is not None:
            plan = self._options.plan
            self._terminal.note(f"[1-2/{len(STAGES)}] the plan {plan.digest()} was given")
            if plan.layout is not None:
                self._terminal.note(f"      layout: {plan.layout}")
        else:
            plan = self._plan_for_model() or self._plan_for_script()
        if self._options.site is not None and self._options.site.file.switches:
            switched_plan.place_on_switches(plan, self._options.site.file)  # or fail on all hosts
        return plan

    def _plan_for_model(self) -> Plan | None:
        """None without a model, if the model found in the script is not one, and if the script's
        ranks do not communicate as data parallelism does."""
        if not self._options.source.model:
            return None
        try:
            graph, program = self._profile()
        except InputError as error:
            script = self._options.source.script
            if script is None or self._options.planning.space != "data-parallel":
                raise
            self._terminal.note(f"      {error}; {script.name} is traced instead")
            return None
        if self._communicates_itself(graph):
            self._terminal.note(
                "      the script's own collectives are not those of data parallelism, so it is "
                "predicted from them"
            )
            return None
        return self._co_optimise(graph, program)

    def _communicates_itself(self, graph: OpGraph) -> bool:
        """Not if the user chose the model, or a space of strategies."""
        source = self._options.source
        if source.script is None or self._options.planning.space != "data-parallel":
            return False
        if self._timing is not None:
            return run_steps.communicates_itself(self._timing.events[0], graph)
        if not source.may_shard:
            return False
        self._demand = self._demand_of_script()
        if (trace := self._demand[1]) is None:
            return False
        last = trace.iterations - 1
        calls = [c for c in trace.calls if (c.rank, c.iteration) == (trace.ranks[0], last)]
        return run_steps.communicates_itself(calls, graph)

    def _plan_for_script(self) -> Plan:
        """For the demand in a trace of the script, else for an unknown demand."""
        from torch_topoopt.planner import demand_plan

        cluster = self._options.cluster
        demand, trace, why = self._demand or self._demand_of_script()
        if trace is None:
            self._terminal.note(f"      rings for an unknown demand, nothing predicted: {why}")
        else:
            documents.save(trace, str(self._folder / "trace.json"))
            self.trace = trace
        with self._stage("co-optimise") as stage:
            stage.progress(None, "TopologyFinder")
            arguments = self._options.torchrun
            with input_errors():
                plan = demand_plan.plan_for_demand(
                    cluster,
                    demand,
                    trace,
                    name=script_plan.name_of(arguments.training_script, module=arguments.module),
                    seed=self._options.seed,
                    network=self._given_network(),
                    mode=self._options.planning.options.mode,
                    routing=self._options.planning.options.routing,
                )
            steps = ""
            if trace is not None:
                stage.progress(None, "a few steps without messages")
                plan, steps = run_steps.priced_by_steps(
                    plan, self._timing, self._options, self._server
                )
            plan = documents.with_failures(plan, stage.progress)
            stage.result = f"network for this demand, plan {plan.digest()}"
        if steps and self._timing is None:
            self._terminal.note(f"      {steps}")
        return plan

    def _demand_of_script(self) -> tuple[Demand, CommunicationTrace | None, str]:
        """With the source trace, or the reason for its absence."""
        script, cluster = self._options.source.script, self._options.cluster
        if script is None:
            from torch_topoopt.planner.demand_plan import unknown_demand

            return unknown_demand(cluster), None, self._options.source.unknown
        if self._timing is not None:
            return script_plan.demand_of_steps(script, cluster, self._timing)
        self._terminal.note(
            f"      tracing {script.name}: its first iterations are run without a network, to see "
            f"what they communicate (at most {script.limits.time_s:g} s; --model none does without)"
        )
        with self._stage("profile") as stage:
            stage.progress(None, f"tracing {script.name}")
            demand, trace, why = script_plan.demand_of_script(script, cluster, self._server)
            found = trace is not None
            stage.result = script_plan.demand_text(demand) if found else "no demand was found"
        return demand, trace, why

    def _given_network(self) -> Network | None:
        """The network of the cables, if they are already plugged."""
        site = self._options.site
        if site is None or site.file.switches:
            return None
        return static_plan.network_of(site.file)

    def _profile(self) -> tuple[OpGraph, Program | None]:
        with self._stage("profile") as stage:
            stage.progress(None, self._options.source.model)
            program = None
            choice, cluster = self._options.planning, self._options.cluster
            if choice.space == "layouts":
                graph = choice.op_graph(self._options.source.model, cluster)
            elif choice.space != "data-parallel":
                graph, program = choice.graph_and_program(self._options.source.model, cluster)
            else:
                graph = choice.op_graph(self._options.source.model, cluster)
            measured = ""
            if self._options.measure:
                graph, measured = run_costs.measured(
                    graph,
                    self._options.source.model,
                    self._options.cluster,
                    stage.progress,
                    emulated=self._options.site is None,
                )
            steps = ""
            if choice.space != "layouts":
                graph, self._timing, steps = run_steps.measured_graph(
                    graph, self._options, stage.progress, self._server
                )
            stage.result = profile.summary(graph)
        for line in filter(None, (measured, steps)):
            self._terminal.note(f"      {line}")
        return graph, program

    def _co_optimise(self, graph: OpGraph, program: Program | None) -> Plan:
        documents.save(graph, str(self._folder / "opgraph.json"))
        cluster = documents.in_format_of(self._options.cluster, graph)
        space = self._options.planning.space
        if program is not None and space != "pipeline":
            programs.show(self._terminal, program)
        elif space == "data-parallel":
            self._terminal.note(
                f"      data parallelism over all {cluster.servers} servers; --strategy-space full "
                "also considers tables and operators on some of them"
            )
        network = self._given_network()
        if self._options.site is not None and self._options.site.file.switches:
            self._terminal.note(
                f"      {counted(cluster.degree, 'port')} of every server on switches, planned "
                f"for {format_gbps(cluster.link_gbps)} per link"
            )
        elif network is not None:
            self._terminal.note(
                f"      {counted(len(network.links) // 2, 'cable')} that are plugged already, of "
                f"{format_gbps(cluster.link_gbps)} or more"
            )
        elif self._options.gbps is None:
            self._terminal.note(
                f"      no --bandwidth: planned for {format_gbps(cluster.link_gbps)} per link, "
                "links as fast as this machine"
            )
        with self._stage("co-optimise") as stage:
            plan = self._options.planning.plan(
                graph,
                cluster,
                stage.progress,
                network=network,
                program=program,
                why_not_layout=self._why_not_layout(graph) if space == "layouts" else None,
            )
            if plan.layout is not None:
                planning.check_executes(plan.layout, self._options.torchrun.training_script)
            plan, steps = self._price_as_measured(graph, plan, stage)
            plan = documents.with_failures(plan, stage.progress)
            found = plan.layout or counted(len(plan.rounds), "round")
            stage.result = f"{found}, plan {plan.digest()}"
        if steps:
            self._terminal.note(f"      as planned: {steps}")
        return plan

    def _why_not_layout(self, graph: OpGraph) -> Callable[[Layout], str]:
        options = self._options
        script = options.torchrun.training_script
        return planning.why_not_layout(options.planning, graph, options.source.model, script)

    def _price_as_measured(
        self, graph: OpGraph, plan: Plan, stage: StageProgress
    ) -> tuple[Plan, str]:
        """A plan that is more than data parallel, priced by its own steps; and the measurement."""
        if plan.layout is not None:
            stage.progress(None, "a few steps without messages")
            graph, plan, self.trace, steps = run_steps.measured_layout(
                graph, plan, self._options, self._server
            )
            if self.trace is not None:
                documents.save(graph, str(self._folder / "opgraph.json"))
                documents.save(self.trace, str(self._folder / "trace.json"))
            return plan, steps
        if not run_steps.measures(self._options) or plan.is_data_parallel:
            return plan, ""
        graph, plan, steps = run_steps.measured_plan(
            graph, plan, self._options, stage.progress, self._server
        )
        documents.save(graph, str(self._folder / "opgraph.json"))
        return plan, steps
