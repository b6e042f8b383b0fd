"""Plans with automatic numbers of micro-batches, whose descents end with further changes."""

from __future__ import annotations

import pytest
from support.small_op_graphs import chain

from torch_topoopt.plan import Cluster, Network, Placement
from torch_topoopt.planner.descents import Descents
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.planner.pricing import PairPricing
from torch_topoopt.planner.search_problems import SearchProblems
from torch_topoopt.search.strategies import everywhere

GRAPH = chain(8, flops=10**11, output=10**8)
# A ring, and a second cable between the servers 0 and 1, and 2 and 3.
CLUSTER = Cluster(4, 3, 10.0, accelerator="a100", parallel_links=True)


def descended_s(options: PlanningOptions, *servers: int) -> tuple[float, float]:
    """Seconds of a pipeline on the network for data parallelism, before and after descents."""
    problems = SearchProblems(GRAPH, CLUSTER, options)
    pricing = PairPricing(problems.lowered, options)
    network: Network = pricing.wire(everywhere(GRAPH, 4), "paper", 1)
    strategy = tuple(Placement(f"layer{i}", (server,)) for i, server in enumerate(servers))
    pair = pricing.price(strategy, network, 4)
    found = Descents(problems, pricing, 1, lambda: None).best(pair, [pair], {4: ()}, "paper")
    return pair.iteration_s, found.iteration_s


@pytest.mark.parametrize("servers", [(0, 0, 0, 0, 0, 0, 1, 2), (0, 2, 1, 1, 3, 3, 3, 3)])
def test_stages_are_balanced_though_no_search_is_left(servers: tuple[int, ...]) -> None:
    before_s, after_s = descended_s(PlanningOptions(micro_batches="auto"), *servers)
    assert after_s < 0.9 * before_s


def test_with_a_given_number_of_micro_batches_boundaries_stay() -> None:
    """One of the changes that `descend` makes is not enough."""
    servers = 0, 0, 0, 0, 0, 0, 1, 2
    _, after_s = descended_s(PlanningOptions(micro_batches=4), *servers)
    _, thorough_s = descended_s(PlanningOptions(micro_batches="auto"), *servers)
    assert thorough_s < 0.95 * after_s


def test_stages_and_their_order_of_servers_change_together() -> None:
    """On a ring the fastest stages are not in its order: two paths join servers two links apart."""
    graph, cluster = chain(8, flops=10**11, output=10**7), Cluster(4, 2, 10.0, accelerator="a100")
    options = PlanningOptions(micro_batches="auto", mode="best")
    problems = SearchProblems(graph, cluster, options, schedules=True)
    pricing = PairPricing(problems.lowered, options)
    ends_s = []
    for servers in [(0, 0, 1, 1, 2, 2, 2, 3), (0, 0, 1, 1, 2, 2, 3, 3)]:
        strategy = tuple(Placement(f"layer{i}", (server,)) for i, server in enumerate(servers))
        pair = pricing.wired(strategy, "best", 4)
        found = Descents(problems, pricing, 1, lambda: None).best(pair, [pair], {4: ()}, "best")
        ends_s.append(found.iteration_s)
    assert max(ends_s) <= min(ends_s) * 1.001
