"""Which strategies `topoopt run` can execute for a model, said in words of the command line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.units import counted

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Plan
    from torch_topoopt.search.strategies import Executable


def is_data_parallel(plan: Plan) -> bool:
    """Whether every operator is on all servers, in their order."""
    everyone = tuple(range(plan.cluster.servers))
    return all(p.servers == everyone and p.sample == len(everyone) for p in plan.strategy)


def graph_and_program(model: str) -> tuple[OpGraph, Program]:
    """The OpGraph of MODEL, batch and output included, and how to run it.

    Raises InputError for a saved OpGraph, no such model, or one that cannot be traced.
    """
    from torch_topoopt import profiling
    from torch_topoopt.parallel import Program

    if model.endswith(".json"):
        raise InputError(
            f"model: {model} is a saved OpGraph; whether a strategy can be executed is decided by "
            "the module itself, so name a script or file.py:callable"
        )
    try:
        build, example_batch, name = profiling.load_model(model)
        graph = profiling.profile(build, example_batch, name=name, boundary=True)
        return graph, Program.of(build, example_batch)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def executable(program: Program, servers: int) -> Executable:
    """Whether an operator can run as placed."""

    def can_run(placement: Any) -> bool:
        return not program.why_not_placed(placement, servers)

    return can_run


def show(terminal: Terminal, program: Program) -> None:
    """Says what is considered, and what stays on all servers, and why."""
    own = [name for name in program.operators if name not in program.boundary]
    pinned = Counter(program.pinned[name] for name in own if name in program.pinned)
    terminal.line(
        f"      {len(own) - sum(pinned.values())} of {counted(len(own), 'operator')} may be placed "
        "on a part of the servers; the others stay on all of them"
    )
    for why, count in pinned.most_common(3):
        terminal.line(f"      {counted(count, 'operator')}: {why}")


def check_plan(plan: Plan, path: str, model: str) -> None:
    """Raises InputError if `topoopt run` cannot execute the plan's strategy for MODEL."""
    from torch_topoopt.parallel import StrategyError
    from torch_topoopt.parallel.api import placed

    if is_data_parallel(plan):
        return
    per_server = plan.cluster.accelerators_per_server
    if per_server > 1:
        raise InputError(
            f"{path}: strategy: not data parallel, which can be executed with one rank per server, "
            f"not {per_server}; plan with --strategy-space data-parallel"
        )
    try:
        _, program = graph_and_program(model)
    except InputError as error:
        raise InputError(
            f"{path}: strategy: not data parallel, and how to execute it is not known: {error}"
        ) from None
    try:
        placed(program, plan.strategy, plan.cluster.servers)
    except StrategyError as error:
        raise InputError(
            f"{path}: {error}; plan with `topoopt run --strategy-space full`"
        ) from None
