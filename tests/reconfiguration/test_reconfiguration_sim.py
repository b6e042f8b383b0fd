"""Circuits that follow the demand: hand-computed times, and the flow level where none move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.refusals import refused
from support.small_op_graphs import graph, one_all_reduce, operator, random_graph, random_strategy

from torch_topoopt.architectures import ARCHITECTURES, ocs_reconfig, sip_ml
from torch_topoopt.architectures.topology import Reconfiguration
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.reconfiguration.moving_circuits import MovingCircuits
from torch_topoopt.search.strategies import data_parallel

GB = 10**9


def cluster_of(servers: int, degree: int = 2) -> Cluster:
    return Cluster(servers, degree, 80.0, link_latency_s=0.0)  # 10 GB/s a link


@pytest.mark.parametrize("seed", range(3))
def test_without_changes_it_is_the_flow_level_on_the_first_circuits(seed: int) -> None:
    """Circuits that stand still are a static network: same routes, same sharing."""
    rng = random.Random(seed)
    cluster = Cluster(6, 3, 25.0)
    op_graph = random_graph(rng, 8)
    strategy = random_strategy(rng, op_graph, 6)
    topology = ocs_reconfig.build(cluster, seed=seed, window_s=1e6)
    moving = MovingCircuits(topology, op_graph, cluster, strategy, iterations=1)
    result = moving.run()
    still = predict_architecture(
        replace(topology, reconfiguration=None), op_graph, cluster, strategy
    )
    # Every hop of a ring is a flow of its own here; there a ring is one flow that moves in step
    assert result.device_busy_s.max() == pytest.approx(still.compute_s, rel=1e-9)
    assert moving.changes == 0
    assert result.link_bytes.sum() == pytest.approx(sum(still.link_bytes), rel=1e-6)
    assert result.completion_s <= still.iteration_s * (1 + 1e-2) + 1e-3


def test_a_transfer_waits_for_the_window_and_the_switch_and_then_has_every_circuit() -> None:
    """10 GB from server 0 to 1 over two links of 10 GB/s, measured after 50 ms, moved in 10 ms."""
    cluster = cluster_of(8)
    op_graph = graph(operator("a", output=GB), operator("b", (0, 10 * GB, 0)), batch_size=1)
    strategy = (Placement("a", (0,)), Placement("b", (1,)))
    topology = ocs_reconfig.build_no_forwarding(cluster, seed=0)
    assert (0, 1) not in {(link.source, link.target) for link in topology.links}
    moving = MovingCircuits(topology, op_graph, cluster, strategy, iterations=2)
    result = moving.run()
    first, second = (float(result.finish_s[end]) for end in moving.ends)
    compute_s = float(result.device_busy_s.max())
    assert moving.changes == 1
    assert first == pytest.approx(0.06 + 0.5, abs=compute_s + 1e-4)
    assert result.link_bytes.sum() == pytest.approx(20 * GB)
    # the second finds the circuits in place
    assert second - first == pytest.approx(0.5, abs=compute_s + 1e-4)


def test_discount_serves_two_demands_at_once_and_sip_ml_one_after_the_other() -> None:
    cluster = cluster_of(8)
    op_graph = graph(
        operator("a"), operator("b", (0, 6 * GB, 0)), operator("c", (0, 5 * GB, 0)), batch_size=1
    )
    strategy = (Placement("a", (0,)), Placement("b", (1,)), Placement("c", (2,)))
    topology = ocs_reconfig.build_no_forwarding(cluster)
    policy = Reconfiguration(0.01, 0.0, halve=True, forwarding=False)

    def circuits_after(halve: bool) -> list[tuple[int, int]]:
        changed = replace(topology, reconfiguration=replace(policy, halve=halve))
        moving = MovingCircuits(changed, op_graph, cluster, strategy, iterations=1)
        moving.run()
        assert moving.changes > 0
        return [circuit for circuit in moving.phases[1] if circuit[0] == 0]

    assert circuits_after(True) == [(0, 1), (0, 2)]
    assert circuits_after(False) == [(0, 1), (0, 1)]


def test_an_all_reduce_ends_on_circuits_along_its_ring() -> None:
    servers = 6
    cluster = cluster_of(servers)
    op_graph = one_all_reduce(4 * GB)
    strategy = data_parallel(op_graph, servers)
    least = 2 * (servers - 1) / servers * 4 * GB / (2 * cluster.link_bytes_per_s)
    for name in ("ocs-reconfig-no-forwarding", "sip-ml"):
        topology = ARCHITECTURES[name](cluster)
        estimate = predict_architecture(topology, op_graph, cluster, strategy)
        assert estimate.iteration_s == pytest.approx(least + estimate.compute_s, rel=1e-6)
        assert estimate.bandwidth_tax == pytest.approx(1.0, rel=1e-6)


def test_forwarding_pays_a_tax() -> None:
    cluster = cluster_of(8)
    op_graph = graph(operator("a", output=GB), operator("b", (0, GB, GB)))
    strategy = (Placement("a", (0,)), Placement("b", tuple(range(8))))
    estimate = predict_architecture(ocs_reconfig.build(cluster), op_graph, cluster, strategy)
    assert estimate.bandwidth_tax > 1.1
    assert estimate == predict_architecture(
        ocs_reconfig.build(cluster), op_graph, cluster, strategy
    )


def test_what_cannot_be_simulated_is_named() -> None:
    cluster = cluster_of(4)
    op_graph = one_all_reduce(10)
    strategy = data_parallel(op_graph, 4)
    with refused(ValueError, "torus", "change"):
        MovingCircuits(ARCHITECTURES["torus"](cluster), op_graph, cluster, strategy)
    with refused(ValueError, "iterations", 0):
        MovingCircuits(sip_ml.build(cluster), op_graph, cluster, strategy, iterations=0)
    with refused(ValueError, "window_s", 0):
        sip_ml.build(cluster, window_s=0)
    with refused(ValueError, "delay_s", -1):
        ocs_reconfig.build(cluster, delay_s=-1)


def test_an_iteration_takes_at_least_as_long_as_its_computation_however_short_it_is() -> None:
    """Microseconds each, in a chain: none of them may vanish in what counts as one event."""
    cluster = cluster_of(4)
    op_graph = graph(operator("a", output=8), *(operator(f"b{i}", (i, 8, 8)) for i in range(20)))
    strategy = data_parallel(op_graph, 4)
    for name in ("ocs-reconfig", "ocs-reconfig-no-forwarding"):
        estimate = predict_architecture(ARCHITECTURES[name](cluster), op_graph, cluster, strategy)
        assert 0 < estimate.compute_s <= estimate.iteration_s
