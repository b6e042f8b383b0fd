"""Iterations on architectures as flow programs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.refusals import refused
from support.small_op_graphs import one_all_reduce, random_graph, random_strategy

from torch_topoopt.architectures import ARCHITECTURES
from torch_topoopt.comparison.estimate import demand_bytes, predict_on
from torch_topoopt.op_graph import MeasuredStep
from torch_topoopt.plan import Cluster
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import run_program
from torch_topoopt.sim.architecture_program import architecture_program

CHANGING = ("ocs-reconfig", "ocs-reconfig-no-forwarding", "sip-ml")


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in CHANGING])
def test_every_flow_has_a_shortest_path_and_an_iteration_ends(name: str) -> None:
    servers = 16 if name == "hx4mesh" else 8  # a board of it has 16
    cluster = Cluster(servers, 4, 25.0)
    rng = random.Random(3)
    op_graph = random_graph(rng, servers)
    strategy = random_strategy(rng, op_graph, servers)
    asked = demand(op_graph, strategy, servers)
    topology = ARCHITECTURES[name](cluster, asked)
    program = architecture_program(topology, op_graph, cluster, strategy)
    result = run_program(program)
    spread = predict_on(topology, op_graph, cluster, strategy)
    # The totals do not depend on the choice among shortest paths; those of servers alone do where
    # one path leads over a switch and another of the same length over an accelerator
    assert sum(result.link_bytes) == pytest.approx(sum(spread.link_bytes), rel=1e-4)
    sent = sum(
        size
        for size, link in zip(result.link_bytes, topology.links, strict=True)
        if link.source < servers
    )
    if name not in ("hx2mesh", "hx4mesh"):
        assert sent == pytest.approx(spread.bandwidth_tax * demand_bytes(asked), rel=1e-4)
    assert result.completion_s >= spread.compute_s
    if name == "ideal-switch":  # one path per pair: nothing is left to chance
        assert result.completion_s == pytest.approx(spread.iteration_s, rel=0.02)


def test_iterations_follow_each_other_and_a_seed_chooses_the_paths() -> None:
    cluster = Cluster(16, 4, 25.0, link_latency_s=0.0)
    op_graph = one_all_reduce(10**9)
    strategy = data_parallel(op_graph, 16)
    tree = ARCHITECTURES["fat-tree"](cluster)

    def seconds(seed: int, iterations: int) -> float:
        program = architecture_program(
            tree, op_graph, cluster, strategy, seed=seed, iterations=iterations
        )
        return float(run_program(program).completion_s)

    once = seconds(0, 1)
    assert once == seconds(0, 1)
    # neighbours under one edge switch, or one flow out of and into each: nothing collides
    assert once == pytest.approx(predict_on(tree, op_graph, cluster, strategy).iteration_s)
    assert seconds(1, 3) == pytest.approx(3 * once)


def test_what_cannot_be_a_program_is_named() -> None:
    cluster = Cluster(4, 2, 25.0)
    op_graph = one_all_reduce(10)
    strategy = data_parallel(op_graph, 4)
    torus = ARCHITECTURES["torus"](cluster)
    with refused(ValueError, "iterations", 0):
        architecture_program(torus, op_graph, cluster, strategy, iterations=0)
    with refused(ValueError, "sip-ml"):
        architecture_program(ARCHITECTURES["sip-ml"](cluster), op_graph, cluster, strategy)
    with refused(ValueError, "topology", 4):
        architecture_program(torus, op_graph, Cluster(8, 2, 25.0), strategy)


@pytest.mark.parametrize("level", ["flow", "packet"])
def test_servers_of_one_machine_share_its_processors_at_every_level(level: str) -> None:
    """Eight of them compute on two processors: four times as long, beside short messages."""
    cluster = Cluster(8, 4, 25.0)
    op_graph, strategy = one_all_reduce(1000), data_parallel(one_all_reduce(1000), 8)
    step = MeasuredStep(overhead_s=0.5, servers_at_once=2.0)
    shared = replace(op_graph, measured_step=step)
    switch = ARCHITECTURES["ideal-switch"](cluster)
    result = run_program(architecture_program(switch, shared, cluster, strategy), level=level)
    alone = replace(op_graph, measured_step=replace(step, servers_at_once=None))
    once = predict_on(switch, alone, cluster, strategy)
    assert result.device_busy_s.tolist() == pytest.approx([4 * once.compute_s] * 8)
    assert result.completion_s == pytest.approx(once.iteration_s + 3 * once.compute_s, rel=1e-3)
