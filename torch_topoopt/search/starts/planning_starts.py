"""The starts of a search without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.search.starts.pipelines import pipelines
from torch_topoopt.search.starts.split_layers import split_starts
from torch_topoopt.search.strategies import starting_strategies

if TYPE_CHECKING:
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy


def planning_starts(problem: SearchProblem) -> tuple[Strategy, ...]:
    """The starts of `problem`, which has no starts and no network yet; all are `executable`.

    They are `starting_strategies`; with more than one micro-batch, `pipelines`; and, along the
    problem's dimensions, `split_starts`. Raises ValueError if there are none.
    """
    op_graph, count = problem.op_graph, problem.micro_batches
    if op_graph.batch_size % count:
        raise ValueError(
            f"micro_batches: {count} does not divide the batch of {op_graph.batch_size}"
        )
    found, error = _unsplit_starts(problem)
    if problem.dimensions and problem.cluster.servers > 1:
        found += split_starts(problem, found)
    samples, executable = op_graph.batch_size // count, problem.executable
    fit = [
        start
        for start in found
        if all(p.sample <= samples for p in start)
        and (executable is None or all(map(executable, start)))
    ]
    if fit:
        return tuple(dict.fromkeys(fit))
    if error is not None:
        raise error
    raise ValueError(
        f"micro_batches: {count} of {samples} samples are too small for every strategy "
        f"to start from on {problem.cluster.servers} servers; use fewer"
    )


def _unsplit_starts(problem: SearchProblem) -> tuple[list[Strategy], ValueError | None]:
    """`starting_strategies` and `pipelines`; and the error if the former are empty."""
    op_graph, cluster, count = problem.op_graph, problem.cluster, problem.micro_batches
    found: list[Strategy] = []
    error = None
    try:
        found += starting_strategies(
            op_graph,
            cluster,
            problem.executable,
            micro_batches=count,
            optimizer_factor=problem.optimizer_factor,
        )
    except ValueError as raised:
        error = raised  # a pipeline may still fit into memory
    if count > 1:
        made = pipelines(
            op_graph,
            cluster,
            (count,),
            dimensions=problem.dimensions,
            optimizer_factor=problem.optimizer_factor,
        )
        found += (one.strategy for one in made)
    return found, error
