"""Computing times of the released simulations, as a cost table."""

from __future__ import annotations

import pytest
from support.refusals import refused
from support.small_op_graphs import chain

from figures.cells.released_costs import released_costs
from figures.cells.workloads import graph_of
from torch_topoopt.plan import Degrees
from torch_topoopt.profile.cost_table import with_costs
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost

UNKNOWN = {"MaxPool2d", "mul"}


@pytest.mark.parametrize("model", ["vgg:released", "ncf"])
def test_every_operator_but_a_few_small_ones_has_a_time(model: str) -> None:
    graph = graph_of(model, 128)
    covered = {cost.operator for cost in released_costs(graph).costs}
    left = [o for o in graph.operators if o.name not in covered and o.kind not in UNKNOWN]
    assert sum(o.parameter_bytes for o in left) <= 0.02 * graph.parameter_gradient_bytes


def test_times_are_those_of_a_shard_of_128_and_of_a_whole_table() -> None:
    graph = graph_of("dlrm", 128)
    graph = with_costs(graph, released_costs(graph))
    device = accelerator("a100")
    by_name = {o.name: o for o in graph.operators}
    table_s = shard_cost(device, by_name["tables.0"], Degrees(1), 4, 1)[:2]
    dense_s = shard_cost(device, by_name["top.2"], Degrees(128), 4, 1)[:2]
    assert table_s == pytest.approx((4.309e-3, 8.617e-3))
    assert dense_s == pytest.approx((0.270e-3, 0.522e-3))


def test_a_model_without_times_is_one_line() -> None:
    with refused(ValueError, "model", "chain"):
        released_costs(chain(2))
