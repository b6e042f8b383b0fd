"""The optimum with bounds is the optimum of everything, and bounds are bounds."""

from __future__ import annotations

import itertools

import pytest
from support.refusals import refused

from references import exhaustive_optimum
from references.optimality_gaps import job_of
from torch_topoopt import _core
from torch_topoopt.plan import Cluster
from torch_topoopt.search.lowering import degrees_of, lower_job
from torch_topoopt.search.strategy_space import DIMENSIONS, every_strategy
from torch_topoopt.search.traffic import demand
from torch_topoopt.topology.find_network import find_network

CASES = [("random", 3, 2, 3), ("tables", 3, 2, 3), ("matmul", 3, 2, 2), ("experts", 3, 2, 3)]
CASES += [("heavy", 4, 2, 2)]


@pytest.mark.parametrize(("kind", "servers", "degree", "operators"), CASES)
def test_the_optimum_is_that_of_all_strategies_on_all_networks(
    kind: str, servers: int, degree: int, operators: int
) -> None:
    graph = job_of(kind, operators, 1)
    cluster = Cluster(servers, degree, 10.0, accelerator="a100")
    strategies = every_strategy(graph, servers, DIMENSIONS)
    demands = [demand(graph, strategy, servers) for strategy in strategies]
    bound = exhaustive_optimum.StrategyBound(graph, cluster)
    bound_s = [bound.seconds(strategy) for strategy in strategies]
    loads = exhaustive_optimum.LinkLoads(cluster, demands)
    job = lower_job(graph, cluster, degrees_of(strategies))
    least_s = float("inf")
    made = (find_network(cluster, asked) for asked in dict.fromkeys(demands))
    for named in exhaustive_optimum.in_any_order(cluster, made):
        network = _core.RoutedNetwork(
            servers=servers,
            links=named.links,
            bytes_per_s=cluster.link_bytes_per_s,
            latency_s=cluster.link_latency_s,
            routes=named.routes,
            groups=named.groups,
        )
        per_byte = loads.seconds_per_byte(named)
        link_s = loads.seconds(per_byte)
        alone = loads.by_name(per_byte.max(axis=0))
        for i in range(len(strategies)):
            seconds = _core.simulate_iteration(job, network, strategies[i]).iteration_s
            assert seconds >= bound_s[i]
            assert seconds >= link_s[i]
            if i % 7 == 0:
                assert seconds >= bound.seconds(strategies[i], alone) >= bound_s[i]
            least_s = min(least_s, seconds)
    found = exhaustive_optimum.optimum_of(graph, cluster, dimensions=DIMENSIONS)
    assert found.iteration_s == least_s
    assert found.strategies == len(strategies) == found.promising
    known = exhaustive_optimum.optimum_of(
        graph, cluster, dimensions=DIMENSIONS, at_most_s=least_s, also=()
    )
    assert known.iteration_s == least_s
    assert known.promising < found.promising
    with refused(ValueError, "at_most_s"):
        exhaustive_optimum.optimum_of(
            graph, cluster, dimensions=DIMENSIONS, at_most_s=least_s * 0.99
        )


def test_with_two_ports_every_ring_is_among_the_networks() -> None:
    cluster = Cluster(4, 2, 10.0)
    everywhere = demand(job_of("heavy", 2, 0), strategies_of(4)[-1], 4)
    made = list(exhaustive_optimum.in_any_order(cluster, [find_network(cluster, everywhere)] * 2))
    assert len({named.links for named in made}) == 3
    rings = {ring.servers for named in made for group in named.groups for ring in group.rings}
    assert {frozenset(zip(r, (*r[1:], r[0]), strict=True)) for r in rings} == {
        frozenset(zip(r, (*r[1:], r[0]), strict=True)) for r in itertools.permutations(range(4))
    }


def strategies_of(servers: int) -> list[exhaustive_optimum.Strategy]:
    return every_strategy(job_of("heavy", 2, 0), servers)


def test_strategies_are_the_product_of_the_space() -> None:
    found = strategies_of(4)
    assert len(found) == len(set(found)) == 11**2
