"""Layouts on architectures."""

from __future__ import annotations

import pytest
from support.refusals import refused
from support.small_op_graphs import decoder

from torch_topoopt.comparison.compare import compare
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions

GRAPH = decoder(4)
CLUSTER = Cluster(4, 3, 10.0, accelerators_per_server=2, accelerator="h100:bf16")
OPTIONS = PlanningOptions(strategy_space="layouts")
NAMES = ("topoopt", "ideal-switch", "fat-tree", "torus", "jellyfish", "ocs-reconfig")


def test_every_static_architecture_has_the_fastest_layout_on_it() -> None:
    made = plan(GRAPH, CLUSTER, OPTIONS)
    found = compare(GRAPH, CLUSTER, NAMES, options=OPTIONS, plan=made)
    assert [row.architecture for row in found.rows] + list(found.impossible) == list(NAMES)
    assert set(found.impossible) == {"ocs-reconfig"}
    seconds = {row.architecture: row.iteration_s for row in found.rows}
    assert seconds["topoopt"] <= made.prediction.iteration_s * (1 + 1e-9)
    assert all(row.layout is not None for row in found.rows)
    assert seconds["ideal-switch"] <= seconds["fat-tree"] * (1 + 1e-9)
    assert all(row.bandwidth_tax >= 1 - 1e-6 for row in found.rows)


def test_an_ideal_switch_is_priced_as_the_plan_says() -> None:
    made = plan(GRAPH, CLUSTER, OPTIONS)
    found = compare(GRAPH, CLUSTER, ["ideal-switch"], options=OPTIONS, plan=made)
    assert found.row("ideal-switch").iteration_s <= made.prediction.ideal_switch_s * (1 + 1e-6)
    assert found.row("ideal-switch").iteration_s == pytest.approx(
        made.prediction.ideal_switch_s, rel=0.05
    )


def test_layouts_are_compared_at_flow_level() -> None:
    made = plan(GRAPH, CLUSTER, OPTIONS)
    with refused(ValueError, "level", "packet"):
        compare(GRAPH, CLUSTER, NAMES, options=OPTIONS, plan=made, level="packet")
