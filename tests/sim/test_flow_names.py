"""The flows of a plan's iterations are named for what they carry."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from support.small_op_graphs import chain, embeddings

from torch_topoopt.op_graph import GradientBuckets
from torch_topoopt.plan import Cluster
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.sim import named_plan_program, run_program
from torch_topoopt.sim.flow_names import FlowName, ring_text
from torch_topoopt.sim.results import write_trace


def test_every_byte_of_an_all_reduce_has_its_operator_and_ring() -> None:
    graph = chain(3)
    made = planner.plan(graph, Cluster(4, 3, 10.0), PlanningOptions(strategy_space="data-parallel"))
    assert made.strategy == data_parallel(graph, 4)
    program, names = named_plan_program(graph, made, iterations=2)
    assert sorted(names) == sorted(program.flow_tasks), "every flow has a name"
    sent: dict[tuple[int, str], float] = defaultdict(float)
    for task, name in names.items():
        (operator,) = name.operators
        assert (name.what, name.steps) == ("AllReduce", 6)
        sent[name.iteration, operator] += program.flow(task).size_bytes
    reduced = {o.name: o.parameter_bytes for o in graph.operators if o.parameter_bytes}
    for iteration in range(2):
        for operator, size_bytes in reduced.items():
            assert sent[iteration, operator] == pytest.approx(2 * 3 * size_bytes)
    assert len(sent) == 2 * len(reduced)
    assert {name.ring for name in names.values()} == {
        ring_text(ring.servers) for group in made.network.groups for ring in group.rings
    }


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_transfers_are_called_activations_or_gradients_of_what_computed_them(
    micro_batches: int,
) -> None:
    graph = embeddings(4, table_bytes=10**7)
    made = planner.plan(
        graph, Cluster(4, 2, 10.0), PlanningOptions(evaluations=30, micro_batches=micro_batches)
    )
    tables = {p.operator for p in made.strategy if len(p.servers) == 1}
    assert tables, "the plan places tables on one server each"
    _, names = named_plan_program(graph, made)
    moved = [name for name in names.values() if name.what != "AllReduce"]
    known = {operator.name for operator in graph.operators}
    assert all(set(name.operators) <= known and name.operators for name in moved)
    forward = {o for name in moved if name.what == "activations" for o in name.operators}
    backward = {o for name in moved if name.what == "gradients" for o in name.operators}
    assert tables <= forward, "a table sends its rows forward"
    assert backward, "and gets gradients from what reads them"
    assert not tables & backward


def test_a_trace_shows_the_names() -> None:
    graph = chain(2)
    made = planner.plan(graph, Cluster(3, 2, 10.0), PlanningOptions(strategy_space="data-parallel"))
    program, names = named_plan_program(graph, made)
    trace = io.StringIO()
    write_trace(trace, program, run_program(program), names)
    events = [e for e in json.loads(trace.getvalue())["traceEvents"] if e["ph"] == "X"]
    operator = next(o.name for o in graph.operators if o.parameter_bytes)
    assert f"AllReduce of {operator}, ring +1: 0 -> 1" in {e["name"] for e in events}
    assert all(e["args"]["ring"] in ("+1", "+2") for e in events)


def test_the_text_of_a_name() -> None:
    name = FlowName("gradients", ("a", "b", "c", "d"))
    assert name.text(3, 0) == "gradients of a, b and 2 more: 3 -> 0"
    assert ring_text((0, 4, 2)) == "+2"
    assert ring_text((0, 2, 1, 3)) == "0-2-1-3"


def test_a_bucket_is_named_for_its_own_operators() -> None:
    graph = replace(chain(3), gradient_buckets=GradientBuckets(first_bytes=1, cap_bytes=1))
    made = planner.plan(graph, Cluster(4, 2, 10.0), PlanningOptions(strategy_space="data-parallel"))
    _, names = named_plan_program(graph, made)
    named = [name.operators for name in names.values()]
    assert {len(operators) for operators in named} == {1}
    assert {name for (name,) in named} == {o.name for o in graph.operators if o.parameter_bytes}
