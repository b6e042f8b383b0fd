"""Plans as flow programs: the rates of their links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.small_op_graphs import one_all_reduce

from torch_topoopt.plan import Cluster
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.sim import plan_program, predict, run_program


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
