"""Plans as flow programs: the rates of their links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.refusals import refused
from support.small_op_graphs import one_all_reduce

from torch_topoopt.plan import Cluster
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.sim import plan_program, predict, run_program
from torch_topoopt.sim.iteration_program import RING_STEPS


def test_links_have_the_rates_of_their_ports() -> None:
    """Ports of 10 and 40 Gb/s: a program that gave all links one rate would be as fast as 10."""
    servers = 4
    rates = ((10.0, 40.0),) * servers
    cluster = replace(Cluster(servers, 2, 10.0, link_latency_s=0.0), port_gbps=rates)
    graph = one_all_reduce(10**8)
    made = planner.plan(graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    program = plan_program(graph, made)
    assert [link.bits_per_s for link in program.links] == [
        cluster.gbps_of(link) * 1e9 for link in made.network.links
    ]
    expected = predict(graph, cluster, made.network, made.strategy)
    assert run_program(program).completion_s == pytest.approx(expected.iteration_s, rel=1e-6)


@pytest.mark.parametrize("level", ["flow", "packet"])
def test_a_ring_alone_takes_as_long_in_steps_as_at_once(level: str) -> None:
    """And sends the same bytes: nothing else is on its links."""
    cluster = Cluster(8, 4, 10.0, link_latency_s=0.0)
    graph = one_all_reduce(10**7)
    made = planner.plan(graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    results = {
        steps: run_program(plan_program(graph, made, ring_steps=steps), level=level)
        for steps in RING_STEPS
    }
    at_once = results.pop("together")
    for result in results.values():
        # headers of packets: the last one of each step may be short
        assert result.completion_s == pytest.approx(at_once.completion_s, rel=2e-2)
        assert result.link_bytes.sum() == pytest.approx(at_once.link_bytes.sum(), rel=2e-2)


def test_steps_pay_their_latencies_one_after_another() -> None:
    """2 (k - 1) of them."""
    cluster = Cluster(4, 2, 10.0, link_latency_s=1e-3)
    graph = one_all_reduce(4000)
    made = planner.plan(graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    for steps in RING_STEPS:
        done = run_program(plan_program(graph, made, ring_steps=steps))
        assert done.completion_s == pytest.approx(6e-3, rel=1e-3), steps


def test_other_ring_steps_are_refused() -> None:
    cluster = Cluster(4, 2, 10.0)
    graph = one_all_reduce(4000)
    made = planner.plan(graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    with refused(ValueError, "ring_steps", "some"):
        plan_program(graph, made, ring_steps="some")  # type: ignore[arg-type]
