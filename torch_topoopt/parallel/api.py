"""`parallelize`: the one line that makes a script follow its job's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torch_topoopt.parallel.checkpoint import DataParallel
from torch_topoopt.parallel.dry_run import checked_program
from torch_topoopt.parallel.gradients import BUCKETS
from torch_topoopt.parallel.layouts import on_ranks
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.parallel.sharded.model import ShardedModel
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.plan import Placement
from torch_topoopt.plan.given import given_plan
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.model_files import TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from torch_topoopt.parallel.program import Program


_PIECE_S = 4e-3
_LEAST_PIECE_BYTES = 4 << 10


def parallelize(
    module: torch.nn.Module,
    example_batch: Any,
    *,
    strategy: Sequence[Placement] | Layout | None = None,
    precision: torch.dtype | None = None,
) -> torch.nn.Module:
    """Distributes `module` over the ranks by the plan of the running job, and returns it.

    Call it on every rank after `init_process_group` and before you make the optimizer: an operator
    on other servers takes its parameters with it. Call the result like DistributedDataParallel:
    `replicas` copies of the model share the samples, and each rank is called with those of its copy
    `replica`. Results and gradients are the same. If the plan is data parallel, it is one.
    `example_batch` is an input of the module (a tensor, a tuple of positional or a dict of
    keyword arguments) with any number of samples; only shapes and types matter. `strategy`, a
    layout or the placement of each operator of the module's OpGraph, replaces the plan's.
    `precision` is the type in which a layout's blocks compute, such as torch.bfloat16 (default: the
    plan's); parameters, sums of gradients and the optimizer's state keep their own.

    Raises RuntimeError without a process group or a plan, StrategyError for a strategy that does
    not fit the module or cannot be executed, and ProfileError for a module that cannot be traced.
    """
    check_process_group("parallelize")
    ranks = dist.get_world_size()
    if strategy is None:
        strategy, micro_batches = planned("parallelize", ranks)
        precision = precision or planned_precision()
        if micro_batches > 1:
            raise RuntimeError(
                f"topoopt: parallelize: the plan works in {micro_batches} micro-batches; use "
                "torch_topoopt.pipeline, which has a step for them"
            )
    if isinstance(strategy, Layout):
        check_without_steps(strategy)
        return divided(module, example_batch, strategy, precision)
    refuse_precision(precision)
    everyone = tuple(range(ranks))
    if all(p.servers == everyone and p.sample == ranks for p in strategy):
        return DataParallel(module, bucket_cap_mb=BUCKETS.cap_bytes / 2**20)
    program = checked_program(module, example_batch)
    return ParallelModule(module, program, placed(program, strategy, ranks), _piece_bytes())


def planned_precision() -> torch.dtype | None:
    """The type in which the plan's layout computes; None for the parameters' own."""
    given = given_plan()
    return None if given is None else TYPES.get(given.plan.trainer.precision)


def check_without_steps(layout: Layout) -> None:
    """Raises StrategyError for a layout that needs the steps of `pipeline`."""
    for field in ("pipeline", "micro_batches"):
        if (degree := getattr(layout, field)) > 1:
            raise StrategyError(
                f"layout: {field}: torch_topoopt.parallelize does not execute {degree}; call "
                "torch_topoopt.pipeline, which has a step"
            )


def check_process_group(function: str) -> None:
    """Raises RuntimeError if `function` is called without a process group."""
    if not dist.is_initialized():
        raise RuntimeError(
            f"topoopt: {function}: no process group; call init_process_group() before"
        )


def refuse_precision(precision: torch.dtype | None) -> None:
    """Raises StrategyError if a strategy of placements has a `precision`."""
    if precision is not None:
        raise StrategyError(
            f"precision: {precision} is for layouts; in other plans, use torch.autocast"
        )


def check_ranks(layout: Layout) -> None:
    """Raises StrategyError for a layout of other ranks than the job's."""
    ranks = dist.get_world_size()
    if layout.validate().accelerators != ranks:
        raise StrategyError(
            f"layout: {layout} is for {layout.accelerators} ranks, and the job has {ranks}"
        )


def divided(
    module: torch.nn.Module, example_batch: Any, layout: Layout, precision: torch.dtype | None
) -> ShardedModel:
    """`module` under a layout without stages; raises StrategyError for one of other ranks."""
    check_ranks(layout)
    return ShardedModel.of(module, example_batch, layout, precision)


def placed(program: Program, strategy: Sequence[Placement], servers: int) -> dict[str, Placement]:
    """The placement of every operator of `program`; raises StrategyError if it cannot run so.

    `servers` have one rank each. A strategy may omit the batch and the output: every server reads
    its own samples.
    """
    everyone = tuple(range(servers))
    where = {placement.operator: placement for placement in strategy}
    for name in program.boundary:
        where.setdefault(name, Placement(name, everyone))
    if set(where) != set(program.operators):
        strange = sorted(set(where) ^ set(program.operators))[0]
        side = "the module has no such operator" if strange in where else "it is not placed"
        raise StrategyError(
            f"strategy: operator {strange!r}: {side}; the strategy is not one of this module"
        )
    for placement in strategy:
        members = placement.servers
        if not members or len(set(members)) < len(members) or not set(members) <= set(everyone):
            raise StrategyError(
                f"strategy: operator {placement.operator!r}: {list(members)} are not different "
                f"servers in 0..{servers - 1}"
            )
        why = program.why_not_placed(placement, servers)
        if why:
            raise StrategyError(
                f"strategy: operator {placement.operator!r} cannot run on servers "
                f"{list(members)}: {why}"
            )
    return where


def _piece_bytes() -> int | None:
    """The bytes that a link of the plan carries in _PIECE_S; None without a plan."""
    given = given_plan()
    if given is None:
        return None
    return max(_LEAST_PIECE_BYTES, round(given.plan.cluster.link_bytes_per_s * _PIECE_S))


def planned(caller: str, ranks: int) -> tuple[Sequence[Placement] | Layout, int]:
    """Strategy and micro-batches of the job's plan; raises RuntimeError, which names `caller`."""
    given = given_plan()
    if given is None:
        raise RuntimeError(
            f"topoopt: {caller}: this job has no plan; start the script with `topoopt run`, or "
            "pass strategy="
        )
    plan = given.plan
    if plan.cluster.servers * plan.cluster.accelerators_per_server != ranks:
        raise RuntimeError(
            f"topoopt: {caller}: the plan is for {plan.cluster.servers} servers with "
            f"{plan.cluster.accelerators_per_server} rank(s) each, the job has {ranks} ranks"
        )
    if plan.layout is not None:
        return plan.layout, 1
    if not plan.strategy:
        raise RuntimeError(
            f"topoopt: {caller}: the plan was made without a model; make one with `topoopt plan`"
        )
    return on_ranks(plan.strategy, plan.cluster.accelerators_per_server), plan.micro_batches
