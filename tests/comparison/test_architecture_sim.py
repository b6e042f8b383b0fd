"""Iterations on architectures: the planner's figures, closed forms, folded against full."""

from __future__ import annotations

import random

import pytest
from support.refusals import refused
from support.small_op_graphs import (
    chain,
    one_all_reduce,
    random_graph,
    random_hybrid_strategy,
    random_strategy,
)

from torch_topoopt import _core
from torch_topoopt.architectures import ARCHITECTURES, fat_tree, ideal_switch, topoopt
from torch_topoopt.architectures.routing import Routes, grids_of
from torch_topoopt.comparison.estimate import demand_bytes, pairs_of, predict_on
from torch_topoopt.plan import Cluster, Group
from torch_topoopt.search.lowering import degrees_of, lower_job
from torch_topoopt.search.starts.pipelines import pipeline
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import predict, predict_ideal_switch, run_program
from torch_topoopt.sim.architecture_program import architecture_program
from torch_topoopt.topology.find_network import find_network


@pytest.mark.parametrize("seed", range(6))
def test_the_planners_network_and_ideal_switch_give_the_planners_prediction(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(8, 4, 25.0)
    op_graph = random_graph(rng, 12)
    strategy = random_strategy(rng, op_graph, 8)
    network = find_network(cluster, demand(op_graph, strategy, 8))
    ours = predict_on(topoopt.build(cluster, network=network), op_graph, cluster, strategy)
    planned = predict(op_graph, cluster, network, strategy)
    assert ours.iteration_s == pytest.approx(planned.iteration_s, rel=1e-9)
    assert ours.link_bytes == pytest.approx(planned.link_bytes, abs=2)
    switch = predict_on(ideal_switch.build(cluster), op_graph, cluster, strategy)
    ideal_s = predict_ideal_switch(op_graph, cluster, strategy).iteration_s
    assert switch.iteration_s == pytest.approx(ideal_s, rel=1e-9)
    assert switch.bandwidth_tax == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_split_operators_and_micro_batches_are_predicted_alike(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(8, 4, 25.0)
    op_graph = random_graph(rng, 6, splits=True)
    strategy = random_hybrid_strategy(rng, op_graph, 8)
    network = find_network(cluster, demand(op_graph, strategy, 8))
    ours = predict_on(topoopt.build(cluster, network=network), op_graph, cluster, strategy)
    planned = predict(op_graph, cluster, network, strategy)
    assert ours.iteration_s == pytest.approx(planned.iteration_s, rel=1e-9)
    layers = chain(8)
    stages = pipeline(layers, cluster, 4, 8)
    assert stages is not None
    switch = ideal_switch.build(cluster)
    piped = predict_on(switch, layers, cluster, stages, micro_batches=8)
    expected = predict_ideal_switch(layers, cluster, stages, micro_batches=8)
    assert piped.iteration_s == pytest.approx(expected.iteration_s, rel=1e-9)
    program = architecture_program(switch, layers, cluster, stages, micro_batches=8)
    assert run_program(program).completion_s == pytest.approx(expected.iteration_s, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["fat-tree", "oversubscribed-fat-tree", "jellyfish", "torus"])
def test_folded_links_change_nothing(name: str, seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(16, 4, 25.0)
    op_graph = random_graph(rng, 12)
    strategy = random_strategy(rng, op_graph, 16)
    topology = ARCHITECTURES[name](cluster, seed=seed)
    routes, everyone = Routes(topology), tuple(range(16))
    loads = routes.loads(pairs_of(routes, demand(op_graph, strategy, 16)))
    full = _core.network_of_paths(
        16,
        routes.bytes_per_s.tolist(),
        loads.source,
        loads.target,
        loads.latency_s,
        loads.begin,
        loads.edge,
        loads.load,
        [Group(everyone, topology.rings, grids_of(topology).get(everyone, ()))],
    )
    job = lower_job(op_graph, cluster, degrees_of([strategy]))
    simulated = _core.simulate_iteration(job, full, strategy)
    estimate = predict_on(topology, op_graph, cluster, strategy)
    assert estimate.iteration_s == pytest.approx(simulated.iteration_s, rel=1e-9)
    assert estimate.link_bytes == pytest.approx(routes.link_bytes(simulated.link_bytes), abs=1)


def test_a_fat_tree_of_full_bandwidth_is_as_fast_as_the_switch_but_for_latency() -> None:
    cluster = Cluster(16, 4, 25.0, link_latency_s=0.0)
    rng = random.Random(5)
    op_graph = random_graph(rng, 12)
    strategy = random_strategy(rng, op_graph, 16)
    tree = predict_on(fat_tree.build(cluster), op_graph, cluster, strategy)
    switch = predict_on(ideal_switch.build(cluster), op_graph, cluster, strategy)
    # Spread over equal parts, no link above the servers' own is ever fuller than those
    assert tree.iteration_s == pytest.approx(switch.iteration_s, rel=1e-9)
    assert tree.bandwidth_tax == pytest.approx(1.0, rel=1e-5)


def test_an_all_reduce_costs_its_ring_on_every_kind_of_network() -> None:
    size_bytes, servers = 10**9, 16
    cluster = Cluster(servers, 4, 25.0, link_latency_s=0.0)
    op_graph = one_all_reduce(size_bytes)
    strategy = data_parallel(op_graph, servers)
    least = 2 * (servers - 1) / servers * size_bytes / (4 * cluster.link_bytes_per_s)
    for name, slower in (("ideal-switch", 1), ("fat-tree", 1), ("torus", 1), ("rail-only", 1)):
        estimate = predict_on(ARCHITECTURES[name](cluster), op_graph, cluster, strategy)
        network_s = estimate.iteration_s - estimate.compute_s
        assert network_s == pytest.approx(slower * least, rel=1e-6), name
    expander = ARCHITECTURES["jellyfish"](cluster, seed=0)
    estimate = predict_on(expander, op_graph, cluster, strategy)
    assert estimate.bandwidth_tax > 1.2  # neighbours in rank order are several hops apart
    assert estimate.iteration_s - estimate.compute_s > 1.2 * least


def test_the_tax_is_what_servers_send_over_what_they_must() -> None:
    cluster = Cluster(8, 4, 25.0)
    rng = random.Random(2)
    op_graph = random_graph(rng, 12)
    strategy = random_strategy(rng, op_graph, 8)
    asked = demand(op_graph, strategy, 8)
    estimate = predict_on(ARCHITECTURES["xpander"](cluster), op_graph, cluster, strategy)
    assert estimate.bandwidth_tax == pytest.approx(sum(estimate.link_bytes) / demand_bytes(asked))
    assert estimate.bandwidth_tax > 1


def test_another_number_of_servers_is_refused() -> None:
    op_graph = one_all_reduce(10)
    topology = fat_tree.build(Cluster(8, 4, 25.0))
    cluster = Cluster(16, 4, 25.0)
    with refused(ValueError, "topology", 8):
        predict_on(topology, op_graph, cluster, data_parallel(op_graph, 16))
