"""Strategy and placement on a grid: as good as the optimum of tiny jobs, never worse than none."""

from __future__ import annotations

import itertools
import random

import pytest
from support.refusals import refused
from support.small_op_graphs import chain, embeddings, graph, operator

from torch_topoopt.architectures import hammingmesh, torus
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.mesh.grid_plan import plan_on_grid, renumbered
from torch_topoopt.planner.mesh.pricing import GridPricing
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategy_space import DIMENSIONS, strategy_space

FEW = PlanningOptions(evaluations=400)


def cluster_of(servers: int) -> Cluster:
    return Cluster(servers, 4, 10.0, accelerator="a100", memory_limited=False)


@pytest.mark.parametrize("seed", range(4))
def test_tiny_jobs_get_the_best_of_all_strategies_in_all_orders(seed: int) -> None:
    """Two operators on 2 x 2 servers: every strategy of the space, servers in any order."""
    rng = random.Random(seed)
    cluster = cluster_of(4)
    columns = (Split("columns", 840, "whole"),)
    sizes = [rng.randrange(10**5, 10**8) for _ in range(4)]
    job = graph(
        operator("first", flops=rng.randrange(10**12), parameters=sizes[0], output=sizes[1],
                 splits=columns),
        operator("second", (0, sizes[1], sizes[1]), flops=rng.randrange(10**12),
                 parameters=sizes[2], output=sizes[3]),
    )  # fmt: skip
    topology = (
        torus.build(cluster, dimensions=(2, 2))
        if seed % 2
        else hammingmesh.build(cluster, board=(2, 1), boards=(1, 2))
    )
    pricing = GridPricing(job, cluster, topology)
    space = strategy_space(job, 4, dimensions=DIMENSIONS)
    placements, groups = space.groups()
    kinds = [[placements[p] for group in of_kind for p in group] for of_kind in groups]
    best_s = min(
        pricing.seconds(strategy, order, natural=natural)
        for placed in itertools.product(*(kinds[kind] for kind in space.kind))
        for strategy in [
            tuple(
                type(p).of(o.name, p.servers, p.degrees)
                for o, p in zip(job.operators, placed, strict=True)
            )
        ]
        for order in itertools.permutations(range(4))
        if order[0] == 0  # the grid looks alike from every server
        for natural in (True, False)
    )
    starts = planning_starts(SearchProblem(job, cluster, dimensions=DIMENSIONS))
    found = plan_on_grid(job, cluster, topology, FEW, starts=starts)
    assert found.placed.iteration_s == pytest.approx(best_s, rel=1e-9)


@pytest.mark.parametrize("shape", ["hx1", "hx2", "torus"])
def test_no_plan_is_slower_than_the_same_without_placement_and_the_price_is_the_simulators(
    shape: str,
) -> None:
    cluster = cluster_of(16)
    topology = {
        "hx1": lambda: hammingmesh.build_hx1(cluster),
        "hx2": lambda: hammingmesh.build_hx2(cluster),
        "torus": lambda: torus.build(cluster, dimensions=(4, 4)),
    }[shape]()
    job = embeddings(4, table_bytes=10**8, rows_bytes=10**7)
    starts = planning_starts(SearchProblem(job, cluster, dimensions=DIMENSIONS))
    options = PlanningOptions(evaluations=200)
    found = plan_on_grid(job, cluster, topology, options, starts=starts)
    assert found.placed.iteration_s <= found.naive.iteration_s
    pricing = GridPricing(job, cluster, topology)
    assert found.naive.iteration_s <= min(pricing.seconds(s, natural=False) for s in starts)
    again = plan_on_grid(job, cluster, topology, options, starts=starts)
    assert found == again
    if found.placed.natural_rings:
        assert found.topology == pricing.with_rings(found.placed.strategy)


def test_known_strategies_are_placed_without_a_search() -> None:
    cluster = cluster_of(16)
    topology = hammingmesh.build_hx2(cluster)
    job = chain(3)
    known = planning_starts(SearchProblem(job, cluster))[0]
    found = plan_on_grid(job, cluster, topology, FEW, starts=(), known=(known,))
    assert [p.degrees for p in found.placed.strategy] == [p.degrees for p in known]
    with refused(ValueError, "strategy", "none"):
        plan_on_grid(job, cluster, topology, FEW, starts=())


def test_a_renumbered_network_has_the_same_distances() -> None:
    topology = hammingmesh.build_hx2(cluster_of(16))
    order = tuple(random.Random(3).sample(range(16), 16))
    before, after = Routes(topology), Routes(renumbered(topology, order).validate())
    for target in range(16):
        far = before.distances_to(order[target])
        assert after.distances_to(target)[:16].tolist() == [far[order[s]] for s in range(16)]
