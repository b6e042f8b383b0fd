"""The strategies that `topoopt run` can execute for a model, in words of the command line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan.strategy_files import GivenStrategy
from torch_topoopt.launcher.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Executable


def is_data_parallel(plan: Plan) -> bool:
    """Whether every operator is on all servers, in their order."""
    everyone = tuple(range(plan.cluster.servers))
    return all(p.servers == everyone and p.sample == len(everyone) for p in plan.strategy)


def graph_and_program(
    model: str,
    *,
    boundary: bool = True,
    batch_size: int | None = None,
    accelerators: int = 1,
    costs: str | None = None,
) -> tuple[OpGraph, Program]:
    """The OpGraph of MODEL, with batch and output if `boundary`, and how to run it.

    `batch_size`, `accelerators` and `costs` as in `documents.op_graph_of`.
    Raises InputError for a saved OpGraph, no such model, or one that cannot be traced.
    """
    from torch_topoopt.parallel import Program
    from torch_topoopt.profile import profiling

    if model.endswith(".json"):
        raise InputError(
            f"model: {model} is a saved OpGraph; whether a strategy can be executed is decided by "
            "the module itself, so name a script or file.py:callable"
        )
    try:
        build, example_batch, name = documents.load_model(model, batch_size, accelerators)
        graph = profiling.profile(build, example_batch, name=name, boundary=boundary)
        graph = documents.with_measured_costs(graph, costs)
        return graph, Program.of(build, example_batch)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def executable(program: Program, cluster: Cluster) -> Executable:
    """Whether an operator can run as placed."""
    from torch_topoopt.parallel import on_ranks

    per_server = cluster.accelerators_per_server
    ranks = cluster.servers * per_server

    def can_run(placement: Any) -> bool:
        (on_all,) = on_ranks((placement,), per_server)
        return not program.why_not_placed(on_all, ranks)

    return can_run


def show(terminal: Terminal, program: Program) -> None:
    """Says what is considered, and what stays on all servers, and why."""
    own = [name for name in program.operators if name not in program.boundary]
    pinned = Counter(program.pinned[name] for name in own if name in program.pinned)
    terminal.line(
        f"      {len(own) - sum(pinned.values())} of {counted(len(own), 'operator')} may be placed "
        "on a part of the servers; the others stay on all of them"
    )
    cut = sum(bool(program.cuts[name]) for name in own if name not in program.pinned)
    if cut:
        terminal.line(f"      {cut} of these may be split by columns or rows")
    for why, count in pinned.most_common(3):
        terminal.line(f"      {counted(count, 'operator')}: {why}")


def check_plan(plan: Plan, path: str, model: str) -> None:
    """Raises InputError if `topoopt run` cannot execute the plan's strategy for MODEL."""
    if is_data_parallel(plan):
        return
    try:
        _, program = graph_and_program(model)
    except InputError as error:
        raise InputError(
            f"{path}: strategy: not data parallel, and how to execute it is not known: {error}"
        ) from None
    given = GivenStrategy(plan.strategy, plan.micro_batches)
    check_strategy(given, program, plan.cluster, path)


def check_strategy(given: GivenStrategy, program: Program, cluster: Cluster, path: str) -> None:
    """Raises InputError if `topoopt run` cannot execute the strategy of file `path`."""
    from torch_topoopt.parallel import StrategyError, on_ranks, stages_of
    from torch_topoopt.parallel.api import placed

    per_server = cluster.accelerators_per_server
    try:
        if given.micro_batches > 1:
            stages_of(program, given.strategy)
        else:
            strategy = on_ranks(given.strategy, per_server)
            placed(program, strategy, cluster.servers * per_server)
    except StrategyError as error:
        raise InputError(
            f"{path}: {error}; `topoopt run --strategy-space` plans what can be executed"
        ) from None


def plan_pipeline(
    graph: OpGraph,
    program: Program | None,
    cluster: Cluster,
    options: PlanningOptions,
    stages: int | None,
    progress: Callable[[float | None, str], None],
) -> Plan:
    """The pipeline that is predicted to be fastest; with a `program`, of those it can execute.

    Considered are all numbers of `stages`, or this one; and the micro-batches of the `options`, as
    far as they divide the batch. Each is cut into stages that compute
    equally long and gets a network of its own. Raises InputError where there is none.
    """
    from torch_topoopt.parallel import StrategyError, stages_of
    from torch_topoopt.search.pipelines import pipelines

    counts = [count for count in options.micro_batch_counts(graph.batch_size) if count > 1]
    why = "too few samples, too little memory, or no place where a single tensor passes"
    plans = []
    try:
        found = pipelines(graph, cluster, counts)
    except ValueError as error:
        raise InputError(str(error)) from None
    for candidate in found:
        placements = frozenset(candidate.strategy)
        if stages and len({p.servers for p in placements}) != stages:
            continue
        if program is not None:
            try:
                stages_of(program, candidate.strategy)
            except StrategyError as error:
                why = str(error).removeprefix("strategy: ")
                continue
        fixed = replace(
            options,
            evaluations=0,
            executable=placements.__contains__,
            strategy=candidate.strategy,
            micro_batches=candidate.micro_batches,
        )
        plans.append(documents.make_plan(graph, cluster, fixed, progress))
    if not plans:
        wanted = f" of {stages} stages" if stages else ""
        executed = " that can be executed" if program is not None else ""
        raise InputError(
            f"strategy-space: there is no pipeline{wanted} for {graph.model} on {cluster.servers} "
            f"servers{executed}: {why}"
        )
    return min(plans, key=lambda plan: plan.prediction.iteration_s)
