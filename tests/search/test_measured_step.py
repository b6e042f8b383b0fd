"""An OpGraph that takes as long as its script was measured to take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.small_op_graphs import chain, graph, operator

from torch_topoopt.op_graph import MeasuredStep
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.planner.alternation import Planning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.measured_step import with_measured_step
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.sim import predict_ideal_switch


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_step_as_measured_is_what_servers_are_busy_for(micro_batches: int) -> None:
    cluster, op_graph = Cluster(4, 2, 10.0), chain(6)
    stages = tuple(
        Placement(op.name, ((0, 1), (2, 3))[i // 3]) for i, op in enumerate(op_graph.operators)
    )
    for strategy, above in ((data_parallel(op_graph, 4), 0.0), (stages, 0.1)):
        measured = with_measured_step(
            op_graph,
            cluster,
            strategy,
            forward_s=0.3,
            backward_s=0.5,
            overhead_s=0.2,
            micro_batches=micro_batches,
        )
        estimate = predict_ideal_switch(measured, cluster, strategy, micro_batches=micro_batches)
        # of the busiest server; the first stage has one operator that returns no gradient
        assert 1.0 - 1e-9 <= estimate.compute_s <= 1.0 + above + 1e-9


def test_stages_that_take_turns_do_not_share_processors_and_those_that_overlap_do() -> None:
    """Two servers on one processor: alone each is as fast, and both together need the sum."""
    cluster, op_graph = Cluster(2, 1, 1e6), chain(2)
    stages = tuple(Placement(op.name, (i,)) for i, op in enumerate(op_graph.operators))
    shared = replace(op_graph, measured_step=MeasuredStep(0.0, servers_at_once=1.0))
    alone = predict_ideal_switch(op_graph, cluster, stages).iteration_s
    assert predict_ideal_switch(shared, cluster, stages).iteration_s == pytest.approx(alone)
    both = data_parallel(op_graph, 2)
    twice = 2 * predict_ideal_switch(op_graph, cluster, both).compute_s
    assert predict_ideal_switch(shared, cluster, both).compute_s == pytest.approx(twice)


def test_seconds_of_operators_that_cost_nothing_are_overhead() -> None:
    op_graph = graph(operator("view"))
    strategy = data_parallel(op_graph, 2)
    measured = with_measured_step(
        op_graph, Cluster(2, 1, 10.0), strategy, forward_s=1.0, backward_s=2.0, overhead_s=4.0
    )
    assert measured.measured_step == MeasuredStep(7.0, 1.0, 1.0)


def test_a_plan_is_priced_anew_and_stays_the_same() -> None:
    cluster, op_graph = Cluster(4, 2, 1.0), chain(6)
    options = PlanningOptions(strategy_space="data-parallel")
    plan = Planning(op_graph, cluster, options).run()
    assert Planning(op_graph, cluster, options).priced(plan) == plan
    slower = replace(op_graph, measured_step=MeasuredStep(3.0))
    again = Planning(slower, cluster, options).priced(plan)
    assert again.prediction.iteration_s == pytest.approx(plan.prediction.iteration_s + 3.0)
    assert again.prediction.single_ring_s == pytest.approx(plan.prediction.single_ring_s + 3.0)
    assert replace(again, prediction=plan.prediction) == plan
