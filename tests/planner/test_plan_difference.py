"""Differences of two plans."""

from __future__ import annotations

from dataclasses import replace

from support.small_op_graphs import chain, embeddings

from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.difference import Changed, difference
from torch_topoopt.planner.options import PlanningOptions


def test_a_plan_does_what_it_does() -> None:
    made = plan(chain(3), Cluster(4, 2, 10.0), PlanningOptions(evaluations=20, rounds=1))
    found = difference(made, made)
    assert found.is_empty
    assert found.links_in_both == len(made.network.links)
    assert found.routes_in_all == 4 * 3


def test_every_part_that_differs_is_named() -> None:
    op_graph = embeddings(6, table_bytes=10**8, rows_bytes=10**7)
    a = plan(op_graph, Cluster(8, 4, 10.0), PlanningOptions(strategy_space="data-parallel"))
    b = plan(op_graph, Cluster(8, 4, 25.0), PlanningOptions(evaluations=500))
    found = difference(a, b)
    assert not found.is_empty
    assert Changed("cluster.link_gbps", 10.0, 25.0) in found.fields
    moved = {name for name, _, _ in found.operators}
    assert {f"table{t}" for t in range(6)} <= moved
    for name, before, after in found.operators:
        assert before == Placement(name, tuple(range(8)))
        assert after != before
    only_a, only_b = len(found.links_only_in_a), len(found.links_only_in_b)
    assert found.links_in_both + only_a == len(a.network.links)
    assert found.links_in_both + only_b == len(b.network.links)
    assert found.routes_changed > 0
    changes = {change.field: change for change in found.prediction}
    assert changes["iteration_s"].a == a.prediction.iteration_s
    assert changes["busiest_link_bytes"].b == max(b.prediction.link_bytes)
    assert difference(b, a).links_only_in_a == found.links_only_in_b


def test_an_operator_that_only_one_model_has_is_there_with_nothing_on_the_other_side() -> None:
    cluster = Cluster(4, 2, 10.0)
    short, long = (
        plan(chain(n), cluster, PlanningOptions(evaluations=20, rounds=1)) for n in (2, 3)
    )
    names = {name: (a, b) for name, a, b in difference(short, long).operators}
    assert names["layer2"] == (None, long.strategy[2])


def test_other_rings_and_routes_are_found_where_links_are_the_same() -> None:
    made = plan(chain(3), Cluster(4, 2, 10.0), PlanningOptions(evaluations=20, rounds=1))
    group = made.network.groups[0]
    network = replace(made.network, groups=(replace(group, rings=group.rings[:1]),))
    found = difference(made, replace(made, network=network))
    assert found.groups == (group.servers,)
    assert found.links_only_in_a == found.links_only_in_b == ()
