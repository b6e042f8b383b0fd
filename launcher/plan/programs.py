"""Programs of a model, and errors of non-executable strategies in words of the command line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan.strategy_files import GivenStrategy
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    import torch

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel import Program
    from torch_topoopt.plan import Cluster, Plan


def graph_and_program(
    model: str,
    *,
    boundary: bool = True,
    batch_size: int | None = None,
    accelerators: int = 1,
    costs: str | None = None,
) -> tuple[OpGraph, Program]:
    """The OpGraph of MODEL, with batch and output if `boundary`, and how to run it.

    `batch_size`, `accelerators` and `costs` as in `documents.op_graph_of`. Raises InputError for a
    saved OpGraph, no such model, or one that cannot be traced.
    """
    from torch_topoopt.parallel import checked_program
    from torch_topoopt.profile import profiling

    if documents.is_saved_graph(model):
        raise InputError(
            f"model: {model} is a saved OpGraph; whether a strategy can be executed is decided by "
            "the module itself, so name a script or file.py:callable"
        )
    try:
        build, example_batch, name = documents.load_model(model, batch_size, accelerators)
        graph = profiling.profile(build, example_batch, name=name, boundary=boundary)
        graph = documents.with_measured_costs(graph, costs)
        return graph, checked_program(build, example_batch)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def module_of(model: str, batch_size: int | None) -> torch.nn.Module:
    """MODEL, on the meta device; raises InputError."""
    from torch_topoopt.profile import profiling

    try:
        return profiling.on_meta(documents.load_model(model, batch_size, 1).build)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def show(terminal: Terminal, program: Program) -> None:
    """Reports the strategies considered, and the operators that stay on all servers, and why."""
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
    if plan.is_data_parallel:
        return
    if documents.is_script_without_model(model):
        raise InputError(
            f"{path}: strategy: is not data parallel, and {model} has no build_model() that could "
            f"be divided; leave --plan out, or make one with `topoopt plan {model}`"
        )
    try:
        _, program = graph_and_program(model)
    except InputError as error:
        raise InputError(
            f"{path}: strategy: is not data parallel, and {model} cannot be divided: {error}"
        ) from None
    given = GivenStrategy(plan.strategy, plan.micro_batches)
    check_strategy(given, program, plan.cluster, path)


def check_strategy(given: GivenStrategy, program: Program, cluster: Cluster, path: str) -> None:
    """Raises InputError if `topoopt run` cannot execute the strategy of file `path`."""
    from torch_topoopt.parallel import StrategyError
    from torch_topoopt.parallel.executable import check_executable

    try:
        check_executable(given.strategy, given.micro_batches, program, cluster)
    except StrategyError as error:
        raise InputError(
            f"{path}: {error}; `topoopt run --strategy-space` plans what can be executed"
        ) from None
