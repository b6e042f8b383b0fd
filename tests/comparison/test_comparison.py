"""All architectures side by side on a small cluster."""

from __future__ import annotations

import pytest
from support.refusals import refused
from support.small_op_graphs import chain

from torch_topoopt.comparison.compare import compare
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.options import PlanningOptions

FEW = PlanningOptions(rounds=1, evaluations=20)
NAMES = ("ideal-switch", "topoopt", "fat-tree", "jellyfish", "ocs-reconfig", "sip-ml")


def test_figures_belong_together() -> None:
    cluster = Cluster(8, 4, 100.0, accelerator="a100")
    texts: list[str] = []
    fractions: list[float | None] = []

    def show(fraction: float | None, text: str) -> None:
        fractions.append(fraction)
        texts.append(text)

    op_graph = chain(3, flops=10**14, parameters=10**9)
    result = compare(op_graph, cluster, NAMES, options=FEW, on_progress=show)
    assert tuple(row.architecture for row in result.rows) == NAMES
    ideal, ours, tree = (result.row(name) for name in NAMES[:3])
    assert ideal.iteration_s <= ours.iteration_s < tree.iteration_s
    assert ours.cost == pytest.approx(tree.cost, rel=1e-9)
    assert ideal.cost is not None
    assert ours.cost is not None
    assert ideal.cost > 2 * ours.cost
    assert tree.server_gbps == pytest.approx(result.equal_cost_gbps)
    assert ours.iterations_per_s_per_mdollar == pytest.approx(1e6 / (ours.iteration_s * ours.cost))
    assert result.row("sip-ml").cost is None
    assert result.row("ocs-reconfig").cost is not None
    assert texts[-1] == "ideal-switch"  # which gets what is found on the others, too
    assert all(fraction is not None and 0 <= fraction <= 1 for fraction in fractions)
    assert result == compare(op_graph, cluster, NAMES, options=FEW)


def test_an_unknown_architecture_is_refused_before_anything_is_planned() -> None:
    with refused(ValueError, "architecture", "hypercube"):
        compare(chain(2), Cluster(8, 4, 100.0), ("hypercube",))
