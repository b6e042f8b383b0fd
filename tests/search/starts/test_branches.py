"""Branches of a model, and strategies that place them side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.small_op_graphs import chain, graph, operator

from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.starts.branches import branches
from torch_topoopt.search.strategies import data_parallel

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

_MB = 10**6


def towers(count: int) -> OpGraph:
    """`count` towers of two dense layers each, joined by a small layer; 1.5 s each on one A100."""
    large = {"flops": 10**13, "parameters": 100 * _MB, "output": _MB}
    layers = []
    for k in range(count):
        layers.append(operator(f"tower{k}.0", **large))
        layers.append(operator(f"tower{k}.1", (2 * k, _MB, _MB), **large))
    joined = [(2 * k + 1, _MB, _MB) for k in range(count)]
    return graph(*layers, operator("join", *joined, parameters=_MB), batch_size=1024)


def test_branches_end_where_they_are_joined() -> None:
    assert branches(towers(3)) == ((0, 1), (2, 3), (4, 5))
    assert branches(chain(4)) == ((0, 1, 2, 3),)


def test_a_residual_connection_joins_nothing() -> None:
    op_graph = graph(
        operator("a"), operator("b", (0, 1, 1)), operator("c", (0, 1, 1), (1, 1, 1)), operator("d")
    )
    assert branches(op_graph) == ((0, 1, 2), (3,))


def test_what_follows_a_join_is_on_no_branch() -> None:
    op_graph = graph(
        *(operator("a"), operator("b"), operator("join", (0, 1, 1), (1, 1, 1))),
        operator("after", (2, 1, 1)),
    )
    assert branches(op_graph) == ((0,), (1,))


def test_towers_are_placed_side_by_side() -> None:
    """Their gradients are summed at the same time, by as many servers each as there are for one."""
    op_graph = towers(4)
    cluster = Cluster(16, 4, 1.0, accelerator="a100")
    options = PlanningOptions(strategy_space="samples", evaluations=8, rounds=2)
    made = plan(op_graph, cluster, options)
    at = {p.operator: p.servers for p in made.strategy}
    groups = [set(at[f"tower{k}.0"]) for k in range(4)]
    assert all(len(group) == 4 for group in groups)
    assert len(set.union(*groups)) == 16
    together = plan(op_graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    assert together.strategy == data_parallel(op_graph, 16)
    assert made.prediction.iteration_s < 0.6 * together.prediction.iteration_s
