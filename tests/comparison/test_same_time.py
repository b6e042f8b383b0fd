"""The bandwidth at which architectures take the same time, and what they then cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused
from support.small_op_graphs import chain

from torch_topoopt.comparison.compare import Comparison, compare, planned_again
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.comparison.same_time import (
    NEAR,
    SameTimes,
    least_factor,
    same_times,
    scaled,
)
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.options import PlanningOptions

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.strategies import Strategy

CLUSTER = Cluster(16, 4, 10.0, accelerator="a100")
NAMES = ("topoopt", "torus", "hx2mesh", "ideal-switch")
FEW = PlanningOptions(rounds=1, evaluations=20, strategy_space="data-parallel")


@pytest.fixture(scope="module")
def job() -> OpGraph:
    return chain(3, flops=10**13, parameters=10**8)


@pytest.fixture(scope="module")
def comparison(job: OpGraph) -> Comparison:
    return compare(job, CLUSTER, NAMES, options=FEW)


@pytest.fixture(scope="module")
def found(comparison: Comparison, job: OpGraph) -> SameTimes:
    return same_times(comparison, job, CLUSTER, "topoopt")


def test_each_is_as_fast_and_with_less_bandwidth_is_not(
    found: SameTimes, comparison: Comparison, job: OpGraph
) -> None:
    assert found.target_s == pytest.approx(comparison.row("topoopt").iteration_s)
    assert [row.architecture for row in found.rows] == list(NAMES)
    for row in found.rows:
        assert row.factor is not None
        assert row.iteration_s is not None
        limit_s = found.target_s * (1 + NEAR)
        assert row.iteration_s <= limit_s
        less = scaled(comparison.topologies[row.architecture], row.factor / 1.01)
        strategy = comparison.strategies[row.architecture]
        assert predict_on(less, job, CLUSTER, strategy).iteration_s > limit_s
        sent = comparison.row(row.architecture).server_gbps
        assert row.server_gbps == pytest.approx(row.factor * sent)


def test_costs_are_those_at_that_bandwidth_and_the_least_is_named(found: SameTimes) -> None:
    for prices in ("cost", "cable_cost"):
        costs = {row.architecture: getattr(row, prices) for row in found.rows}
        assert all(cost > 0 for cost in costs.values())
        assert found.cheapest(prices) == min(costs, key=costs.__getitem__)


def test_what_is_faster_when_planned_again_needs_less(
    comparison: Comparison, found: SameTimes, job: OpGraph
) -> None:
    """The torus gets links twice as fast the first time, and is as it was the second."""
    asked: list[tuple[str, float]] = []

    def plan_again(name: str, factor: float) -> tuple[Strategy, Topology, int] | None:
        asked.append((name, factor))
        if name != "torus":
            return None
        times = factor * (2 if len([n for n, _ in asked if n == name]) == 1 else 1)
        return comparison.strategies[name], scaled(comparison.topologies[name], times), 1

    again = same_times(comparison, job, CLUSTER, "topoopt", plan_again=plan_again)
    names = [name for name, _ in asked]
    assert names == ["torus", "torus", "hx2mesh", "ideal-switch"]  # the reference stays
    for before, after in zip(found.rows, again.rows, strict=True):
        assert after.planned_again == (after.architecture == "torus")
        assert before.factor is not None
        part = 0.5 if after.planned_again else 1.0
        assert after.factor == pytest.approx(before.factor * part, rel=2e-3)
        assert after.server_gbps == pytest.approx(before.server_gbps, rel=2e-3)


def test_planned_again_a_mesh_has_its_placement_at_that_rate() -> None:
    job = chain(3, flops=10**13, parameters=10**8)
    options = PlanningOptions(rounds=1, evaluations=20)
    comparison = compare(job, CLUSTER, ("topoopt", "torus"), options=options)
    assert "torus" in comparison.grid_plans
    found = planned_again(comparison, job, CLUSTER, "torus", 0.25, options=options)
    assert found is not None
    strategy, topology, parts = found
    assert parts == comparison.plan.micro_batches
    slower = scaled(comparison.topologies["torus"], 0.25)
    assert [link.gbps for link in topology.links] == [link.gbps for link in slower.links]
    known_s = predict_on(slower, job, CLUSTER, comparison.strategies["torus"]).iteration_s
    assert predict_on(topology, job, CLUSTER, strategy).iteration_s <= known_s * (1 + 1e-9)


@pytest.mark.parametrize("least", [0.003, 0.5, 0.9, 1.0, 3.7, 4000.0])
def test_the_least_factor_is_found_to_a_thousandth(least: float) -> None:
    factor = least_factor(lambda tried: tried >= least)
    assert factor is not None
    assert least <= factor <= least * 1.001


def test_what_no_bandwidth_reaches_has_none_and_what_any_reaches_the_least_that_is_tried() -> None:
    assert least_factor(lambda factor: False) is None
    assert least_factor(lambda factor: True) == 2.0**-12


def test_a_reference_that_is_not_compared_is_refused(comparison: Comparison, job: OpGraph) -> None:
    with refused(ValueError, "same-time", "kautz"):
        same_times(comparison, job, CLUSTER, "kautz")
