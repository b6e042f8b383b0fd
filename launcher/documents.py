"""Reading files named on the command line, with a one-line error."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from torch_topoopt.launcher import script_syntax
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.launcher.signals import Interrupted
from torch_topoopt.plan.codec import Document
from torch_topoopt.plan.file_kinds import MODEL_CONFIGURATION, is_kind
from torch_topoopt.plan.units import format_seconds
from torch_topoopt.user_functions import is_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.plan.layout import Precision
    from torch_topoopt.planner.alternation import PlanProgress
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.profile.profiling import LoadedModel

AnyDocument = TypeVar("AnyDocument", bound=Document)


def load(kind: type[AnyDocument], path: str) -> AnyDocument:
    """Reads a document; raises DocumentError for a bad one and InputError if unreadable."""
    try:
        return kind.load(path)
    except OSError as error:
        raise InputError(f"{path}: cannot read this {kind.KIND}: {error.strerror}") from None


def save(document: Document, path: str) -> None:
    """Writes a document, whole or not at all; raises InputError where that is impossible."""
    try:
        document.save(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def check_one_rate(plan: Plan, path: str) -> None:
    """Raises InputError for a plan with unequal link rates: emulated ones are all equal."""
    if plan.cluster.port_gbps is not None:
        raise InputError(
            f"{path}: cluster.port_gbps: the ports of this plan are not alike, and emulated links "
            "all have one rate; run it on its machines with --cluster"
        )


@dataclass(frozen=True)
class TextOptions:
    """The model of a configuration of transformers: tokens of a sample, and the task."""

    sequence: int | None = None
    task: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """The options of a verb that has them, else the defaults."""
        return cls(getattr(arguments, "sequence", None), getattr(arguments, "task", None))


_DEFAULT_TEXT = TextOptions()
_MOST_WITH_FAILURES = 256  # servers


def is_saved_graph(model: str) -> bool:
    """Whether MODEL is the file of an OpGraph, and not a model."""
    return Path(model).suffix == ".json" and not is_kind(model, MODEL_CONFIGURATION)


def check_places_operators(plan: Plan, path: str) -> None:
    """Raises InputError for a plan with a layout, whose operators are not placed one by one."""
    if plan.layout is not None:
        raise InputError(
            f"{path}: layout: the plan divides the model into {plan.layout}, and places no "
            "operators; plan with --strategy-space full"
        )


def op_graph_of(
    model: str,
    batch_size: int | None = None,
    *,
    accelerators: int = 1,
    costs: str | None = None,
    text: TextOptions = _DEFAULT_TEXT,
    precision: Precision = "own",
) -> OpGraph:
    """The OpGraph of MODEL: a saved one (*.json), or the profile of a model.

    `batch_size` is the number of samples of one iteration on `accelerators` together. None: for a
    shipped model or a configuration of transformers, as many times the batch of one; for a file,
    that of its example_batch; for a saved OpGraph, its own. `costs` is a file of measured costs
    that replace estimates. With a `precision`, it is of the model in that type. Raises InputError
    if the model is unknown or cannot be traced, and if `batch_size` cannot be shared evenly.
    """
    graph = _op_graph(model, batch_size, accelerators, text, precision)
    return with_measured_costs(graph, costs)


def in_format_of(cluster: Cluster, graph: OpGraph) -> Cluster:
    """`cluster` with the format of the model, unless its accelerator has one."""
    from torch_topoopt.search.accelerators import in_format

    return replace(cluster, accelerator=in_format(cluster.accelerator, graph.number_format))


def with_measured_costs(graph: OpGraph, costs: str | None) -> OpGraph:
    """`graph` with the measured costs of a file, if there is one; raises InputError."""
    if costs is None:
        return graph
    from torch_topoopt.profile.cost_table import CostTable, with_costs

    table = load(CostTable, costs)
    try:
        return with_costs(graph, table)
    except ValueError as error:
        raise InputError(f"{costs}: {error}") from None


def _op_graph(
    model: str,
    batch_size: int | None,
    accelerators: int,
    text: TextOptions,
    precision: Precision,
) -> OpGraph:
    if is_saved_graph(model):
        if precision != "own":
            raise InputError(
                f"precision: {model} is a saved OpGraph, whose precision is chosen; name its model"
            )
        return _saved_graph(model, batch_size, accelerators, text)
    from torch_topoopt.profile import profiling  # imports torch

    try:
        loaded = load_model(model, batch_size, accelerators, text)
        if precision != "own":
            loaded = loaded.in_precision(precision)
        return profiling.profile(loaded.build, loaded.example_batch, name=loaded.name)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def _saved_graph(
    model: str, batch_size: int | None, accelerators: int, text: TextOptions
) -> OpGraph:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.batch_scaling import with_batch_size

    for option, value in vars(text).items():
        if value is not None:
            raise InputError(
                f"{option}: {value} is for a configuration of transformers (config.json); {model} "
                f"is a saved OpGraph with its own {option}"
            )
    graph = load(OpGraph, model)
    if batch_size is None:
        return graph
    check_shared_evenly(batch_size, accelerators)
    with input_errors():
        return with_batch_size(graph, batch_size)


def check_shared_evenly(batch_size: int, accelerators: int) -> None:
    """Raises InputError unless the samples of an iteration have equal parts."""
    if batch_size % accelerators and accelerators % batch_size:
        raise InputError(
            f"batch-size: {batch_size} samples cannot be shared evenly by {accelerators} "
            f"accelerators; use a multiple or a divisor of {accelerators}"
        )


def is_script_without_model(model: str) -> bool:
    """Whether MODEL is a file without a top-level build_model(), so not a model."""
    return (
        model.endswith(".py")
        and Path(model).is_file()
        and not script_syntax.read(model).builds_model
    )


def load_model(
    model: str,
    batch_size: int | None,
    accelerators: int,
    text: TextOptions = _DEFAULT_TEXT,
) -> LoadedModel:
    """The model and its batch on `accelerators` together; see `op_graph_of`.

    Raises ProfileError if it is not a model, and InputError for a batch that cannot be shared.
    """
    from torch_topoopt.profile import profiling
    from torch_topoopt.profile.tracing import batch_size_of, positional_and_keyword

    if batch_size is not None:
        check_shared_evenly(batch_size, accelerators)
    if is_script_without_model(model):
        raise InputError(
            f"model: {model} has no build_model(), so there is no model to profile; of such a "
            "script, `topoopt plan`, `topoopt run` and `topoopt profile --output-demand` trace a "
            "few iterations instead (docs/guides/scripts.md)"
        )
    loaded = profiling.load_model(model, batch_size=batch_size, **vars(text))
    if batch_size is None and accelerators > 1 and not is_file(model):
        own = batch_size_of(positional_and_keyword(loaded.example_batch), None)
        loaded = profiling.load_model(model, batch_size=own * accelerators, **vars(text))
    return loaded


def op_graph_path(plan_path: str | Path) -> Path:
    """The path of the OpGraph of the plan at `plan_path`: plan.json - plan.opgraph.json."""
    return Path(plan_path).with_suffix(".opgraph.json")


def op_graph_of_plan(plan: Plan, plan_path: str, batch_size: int | None = None) -> OpGraph:
    """The OpGraph of a plan: the file next to the plan (`op_graph_path`, or opgraph.json in a run
    folder) with its model and batch size, else the shipped model that the plan names.

    Another `batch_size` than the plan's needs the model. Raises InputError if there is neither.
    """
    from torch_topoopt.op_graph import OpGraph

    beside = (op_graph_path(plan_path), Path(plan_path).with_name("opgraph.json"))
    for path in beside:
        if batch_size is None and path.is_file():
            graph = load(OpGraph, str(path))
            same = (graph.model, graph.batch_size) == (plan.model, plan.batch_size)
            if same and [o.name for o in graph.operators] == [p.operator for p in plan.strategy]:
                return graph
    if not is_file(plan.model):
        try:
            return op_graph_of(plan.model, batch_size or plan.batch_size)
        except InputError:
            pass
    raise InputError(
        f"model: neither {beside[0]} nor {beside[1]} is of {plan.model!r} with a batch of "
        f"{plan.batch_size} samples; name what was planned with --model"
    )


class StoppedEarly(BaseException):
    """A signal ended the planning; `plan` is the best found before. As Interrupted."""

    def __init__(self, plan: Plan, by: Interrupted) -> None:
        super().__init__(str(by))
        self.plan = plan
        self.by = by


def without_progress(part: float | None, what: str) -> None:
    """The progress callback of later planning: intermediate plans are not shown."""


def with_failures(
    plan: Plan, progress: Callable[[float | None, str], None], asked: bool | None = None
) -> Plan:
    """`plan` with recovery plans for the loss of any one link or server, if `asked`.

    By default on at most 256 servers: their time grows with the third power of the servers.
    """
    from torch_topoopt.topology.failures import failure_plans

    if asked is False or (asked is None and plan.cluster.servers > _MOST_WITH_FAILURES):
        return plan
    progress(None, "what the loss of a cable or server costs")
    return failure_plans.with_failures(plan)


def make_plan(
    graph: OpGraph,
    cluster: Cluster,
    options: PlanningOptions,
    progress: Callable[[float | None, str], None],
    *,
    keep_best: bool = False,
) -> Plan:
    """Runs the planner and reports its progress; raises InputError if it cannot plan.

    With `keep_best`, a signal raises StoppedEarly if there is a plan to keep, else Interrupted as
    always.
    """
    from torch_topoopt.planner.alternation import Planning

    with input_errors():
        planning = Planning(graph, cluster, options, shown(progress))
        try:
            return planning.run()
        except Interrupted as interrupted:
            best = planning.best_so_far() if keep_best else None
            if best is None:
                raise
            raise StoppedEarly(best, interrupted) from None


def shown(progress: Callable[[float | None, str], None]) -> Callable[[PlanProgress], None]:
    """Reports to `progress` the state of planning, and the proposals judged per second."""
    round_began = (0, 0.0)

    def show(now: PlanProgress) -> None:
        nonlocal round_began
        where = f"round {now.round} of at most {now.rounds}"
        if now.stage == "network":
            progress(None, f"{where}: TopologyFinder")
            return
        if round_began[0] != now.round:
            round_began = (now.round, time.perf_counter())
        elapsed = time.perf_counter() - round_began[1]
        text = f"{where}: best {format_seconds(now.best_s)}, now {format_seconds(now.current_s)}"
        if now.evaluations and elapsed > 0:
            text += (
                f", {now.accepted / now.evaluations:.0%} accepted, "
                f"{now.evaluations / elapsed:.0f} proposals/s"
            )
        progress(now.evaluations / now.budget if now.budget else None, text)

    return show
