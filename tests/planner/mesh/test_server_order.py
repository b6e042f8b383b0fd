"""The order of servers on a grid is never worse than none, and the best where all can be tried."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused
from support.small_op_graphs import chain, random_graph, random_hybrid_strategy

from figures.papers.training_workloads import gpt3, resnet152
from torch_topoopt.architectures import hammingmesh, torus
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.mesh.pricing import GridPricing, moved
from torch_topoopt.planner.mesh.server_order import best_order, naive

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology


def cluster_of(servers: int, gbps: float = 10.0) -> Cluster:
    return Cluster(servers, 4, gbps, accelerator="a100", memory_limited=False)


def tiny(rng: random.Random) -> Topology:
    kind = rng.choice(["torus", "hx1", "boards"])
    rows, columns = rng.choice([(2, 2), (2, 3)] if rng.random() < 0.3 else [(2, 2)])
    cluster = cluster_of(rows * columns)
    if kind == "torus":
        return torus.build(cluster, dimensions=(rows, columns))
    board = (1, 1) if kind == "hx1" else (columns, 1)
    return hammingmesh.build(cluster, board=board, boards=(columns // board[0], rows))


@pytest.mark.parametrize("seed", range(16))
def test_the_order_is_the_best_of_all_where_there_are_few(seed: int) -> None:
    rng = random.Random(seed)
    topology = tiny(rng)
    graph = random_graph(rng, 5, splits=True)
    strategy = random_hybrid_strategy(rng, graph, topology.servers)
    pricing = GridPricing(graph, cluster_of(topology.servers), topology)
    found = best_order(pricing, strategy)
    assert found.iteration_s <= naive(pricing, strategy).iteration_s
    best_s = min(
        pricing.seconds(strategy, order, natural=natural)
        for order in itertools.permutations(range(topology.servers))
        for natural in (True, False)
    )
    assert found.iteration_s == pytest.approx(best_s, rel=1e-9)


def test_operator_parts_go_onto_boards_and_are_faster_than_in_rows() -> None:
    """GPT-3's four parts in a row of an Hx4Mesh share two links; as a square they have four."""
    job = gpt3(16, 4)
    cluster = cluster_of(64, 400.0)
    topology = hammingmesh.build_hx4(cluster)
    pricing = GridPricing(job.op_graph, cluster, topology)
    strategy = job.strategy()
    found, without = best_order(pricing, strategy), naive(pricing, strategy)
    overhead, before = (p.iteration_s - job.compute_s for p in (found, without))
    assert overhead < 0.9 * before
    groups = {placement.servers for placement in found.strategy if placement.operator[:3] == "out"}
    assert all(len({s // 8 // 4 for s in group}) == 1 for group in groups)  # rows of one board


def test_data_parallelism_over_a_part_of_the_mesh_becomes_a_rectangle_with_four_rings() -> None:
    """16 of 64 accelerators: most-square jobs (HammingMesh, V-B2)."""
    job = resnet152(16)
    cluster = cluster_of(64, 10.0)
    topology = hammingmesh.build_hx2(cluster)
    pricing = GridPricing(job.op_graph, cluster, topology)
    found = best_order(pricing, job.strategy())
    servers = found.strategy[0].servers
    assert len({s // 8 for s in servers}) == len({s % 8 for s in servers}) == 4
    rings = pricing.with_rings(found.strategy).group_rings
    assert [len(of_group) for of_group in rings] == [4]
    assert found.iteration_s < naive(pricing, job.strategy()).iteration_s


@pytest.mark.parametrize("seed", range(4))
def test_a_price_is_that_of_the_simulator_on_the_network_with_rings(seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of(16)
    topology = hammingmesh.build_hx2(cluster)
    graph = random_graph(rng, 4, splits=True)
    strategy = random_hybrid_strategy(rng, graph, 16)
    order = tuple(rng.sample(range(16), 16))
    pricing = GridPricing(graph, cluster, topology)
    there = moved(strategy, order)
    for natural, network in ((True, pricing.with_rings(there)), (False, topology)):
        expected = predict_on(network, graph, cluster, there).iteration_s
        assert pricing.seconds(strategy, order, natural=natural) == pytest.approx(expected)


def test_the_same_arguments_give_the_same_order() -> None:
    graph = chain(4)
    strategy = random_hybrid_strategy(random.Random(5), graph, 16)
    cluster = cluster_of(16)
    found = [
        best_order(
            GridPricing(graph, cluster, hammingmesh.build_hx2(cluster)), strategy, changes=20
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_a_network_without_a_grid_or_of_other_servers_is_refused() -> None:
    cluster = cluster_of(16)
    cube = torus.build(cluster_of(8), dimensions=(8,))
    with refused(ValueError, "topology", "grid"):
        GridPricing(chain(2), cluster, cube)
    with refused(ValueError, "topology", 64, 16):
        GridPricing(chain(2), cluster, hammingmesh.build_hx2(cluster_of(64)))
