"""Reading what the user names on the command line, with one clear line where that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch_topoopt.data_model import Document
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.topology.routing_policies import Policy

DEFAULT_ROUNDS = 4
DEFAULT_EVALUATIONS = 2000

AnyDocument = TypeVar("AnyDocument", bound=Document)


def load(kind: type[AnyDocument], path: str) -> AnyDocument:
    """Reads a document; raises DocumentError for a bad one and InputError for no readable file."""
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
    """Raises InputError for a plan with links of unequal rates: emulated ones are all alike."""
    if plan.cluster.port_gbps is not None:
        raise InputError(
            f"{path}: cluster.port_gbps: the ports of this plan are not alike, and emulated links "
            "all have one rate; run it on its machines with --cluster"
        )


def op_graph_of(model: str, batch_size: int | None = None, *, accelerators: int = 1) -> OpGraph:
    """The OpGraph of MODEL: a saved one (*.json), or the profile of a model.

    `batch_size` is the number of samples of one iteration on `accelerators` together (None: for a
    shipped model, as many times List 1's batch of one; for a file, what its example_batch gives).
    Raises InputError if there is no such model, if it cannot be traced, and if `batch_size` cannot
    be shared evenly.
    """
    from torch_topoopt.op_graph import OpGraph

    if Path(model).suffix == ".json":
        if batch_size is not None:
            raise InputError(f"batch-size: {model} is a saved OpGraph and has its batch size")
        return load(OpGraph, model)
    if batch_size is not None and batch_size % accelerators:
        raise InputError(
            f"batch-size: {batch_size} samples cannot be shared evenly by {accelerators} "
            f"accelerators; use a multiple of {accelerators}"
        )
    from torch_topoopt import profiling
    from torch_topoopt.tracing import batch_size_of, positional_and_keyword

    try:
        loaded = profiling.load_model(model, batch_size=batch_size)
        if batch_size is None and accelerators > 1 and not profiling.is_file(model):
            own = batch_size_of(positional_and_keyword(loaded.example_batch), None)
            loaded = profiling.load_model(model, batch_size=own * accelerators)
        return profiling.profile(loaded.build, loaded.example_batch, name=loaded.name)
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None


def make_plan(
    graph: OpGraph,
    cluster: Cluster,
    *,
    seed: int,
    strategy_space: Literal["data-parallel", "full"],
    progress: Callable[[float | None, str], None],
    rounds: int = DEFAULT_ROUNDS,
    evaluations: int = DEFAULT_EVALUATIONS,
    mode: Literal["paper", "best"] = "paper",
    network: Network | None = None,
    routing: Policy = "shortest",
) -> Plan:
    """Runs the planner and reports its progress; raises InputError for what cannot be planned.

    `network` is one that is there already: then only the strategy is planned.
    """
    from torch_topoopt import planner

    def show(now: planner.PlanProgress) -> None:
        if now.stage == "network":
            progress(None, f"round {now.round} of at most {now.rounds}: TopologyFinder")
            return
        progress(
            now.evaluations / now.budget if now.budget else None,
            f"round {now.round} of at most {now.rounds}: strategy search, "
            f"best {format_seconds(now.best_s)}",
        )

    try:
        return planner.plan(
            graph,
            cluster,
            seed=seed,
            strategy_space=strategy_space,
            rounds=rounds,
            evaluations=evaluations,
            mode=mode,
            network=network,
            routing=routing,
            on_progress=show,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
