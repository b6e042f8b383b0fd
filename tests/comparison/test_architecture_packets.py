"""Architectures packet by packet, and circuits that move: hand-computed times, nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from support.refusals import refused
from support.small_op_graphs import graph, one_all_reduce, operator, random_graph, random_strategy

from torch_topoopt.architectures import ARCHITECTURES, ocs_reconfig, sip_ml
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.reconfiguration.moving_circuits import MovingCircuits
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand

MB = 10**6
TRANSPORTS = ("constant", "roce", "dcqcn", "dctcp", "ndp")
PAYLOAD, WIRE = 8936, 9000


def cluster_of(servers: int, degree: int = 2) -> Cluster:
    return Cluster(servers, degree, 80.0, link_latency_s=1e-6)  # 10 GB/s a link


def one_transfer(size_bytes: int) -> tuple:
    op_graph = graph(operator("a", output=MB), operator("b", (0, size_bytes, 0)), batch_size=1)
    return op_graph, (Placement("a", (0,)), Placement("b", (1,)))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transfer_waits_for_the_window_and_the_switch_and_then_has_every_circuit(
    transport: str,
) -> None:
    """100 MB over both circuits of 10 GB/s, measured after 50 ms, moved in 10 ms."""
    op_graph, strategy = one_transfer(100 * MB)
    topology = ocs_reconfig.build_no_forwarding(cluster_of(8), seed=0)
    moving = MovingCircuits(
        topology, op_graph, cluster_of(8), strategy, level="packet", iterations=2
    )
    result = moving.run(transport=transport)
    first, second = (float(result.finish_s[end]) for end in moving.ends)
    sent_s = 100 * MB * WIRE / PAYLOAD / 20e9
    compute_s = float(result.device_busy_s.max())
    assert first == pytest.approx(0.06 + sent_s, abs=compute_s + 1e-5)
    assert second - first == pytest.approx(sent_s, abs=compute_s + 1e-5)  # circuits are in place
    assert moving.changes == 1
    assert result.link_bytes.sum() == 200 * MB
    flow = MovingCircuits(topology, op_graph, cluster_of(8), strategy, iterations=1).run()
    assert first == pytest.approx(flow.completion_s, rel=2e-3)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("forwarding", [True, False])
def test_what_is_under_way_when_circuits_move_is_drained_not_lost(
    transport: str, forwarding: bool
) -> None:
    cluster = cluster_of(6)
    topology = ocs_reconfig.build(
        cluster, seed=1, window_s=2e-4, delay_s=1e-4, forwarding=forwarding
    )
    rng = random.Random(3)
    op_graph = random_graph(rng, 8)
    strategy = random_strategy(rng, op_graph, cluster.servers)
    moving = MovingCircuits(
        topology, op_graph, cluster, strategy, level="packet", seed=1, iterations=1
    )
    result = moving.run(transport=transport)
    assert moving.changes > 2
    assert result.complete
    assert not result.packet_counts["dropped"].any()
    again = MovingCircuits(
        topology, op_graph, cluster, strategy, level="packet", seed=1, iterations=1
    )
    assert (again.run(transport=transport).finish_s == result.finish_s).all()
    if not forwarding and transport != "ndp":
        sizes = np.zeros(cluster.servers)
        for task in moving.program.flow_tasks:
            flow = moving.program.flow(task)
            sizes[flow.source] += np.ceil(flow.size_bytes)
        sent = np.zeros(cluster.servers)
        for link, size in zip(moving.program.links, result.link_bytes, strict=True):
            sent[link.source] += size
        assert (sent >= sizes).all()
        assert sent.sum() <= sizes.sum() * 1.05  # go-back-N may send a few packets again


def test_both_levels_agree_where_every_pair_has_its_own_circuits() -> None:
    cluster = cluster_of(4, 3)
    op_graph = one_all_reduce(20 * MB)
    strategy = data_parallel(op_graph, 4)
    topology = sip_ml.build(cluster)
    packets = predict_architecture(topology, op_graph, cluster, strategy, level="packet")
    flow = predict_architecture(topology, op_graph, cluster, strategy)
    assert packets.iteration_s == pytest.approx(flow.iteration_s * WIRE / PAYLOAD, rel=0.02)
    assert packets.compute_s == pytest.approx(flow.compute_s)
    assert packets.bandwidth_tax == pytest.approx(flow.bandwidth_tax, rel=1e-3)


def test_a_static_network_is_that_of_the_flow_program() -> None:
    cluster = Cluster(6, 4, 25.0)
    rng = random.Random(0)
    op_graph = random_graph(rng, 5)
    strategy = random_strategy(rng, op_graph, 6)
    topology = ARCHITECTURES["ideal-switch"](cluster)
    packets = predict_architecture(
        topology, op_graph, cluster, strategy, level="packet", transport="roce"
    )
    flow = predict_architecture(topology, op_graph, cluster, strategy)
    assert packets.iteration_s == pytest.approx(flow.iteration_s, rel=0.05)
    assert packets.bandwidth_tax == pytest.approx(flow.bandwidth_tax, rel=1e-3)


def test_wrong_arguments_are_errors() -> None:
    op_graph, strategy = one_transfer(MB)
    cluster = cluster_of(4)
    topology = ocs_reconfig.build(cluster)
    with refused(ValueError, "circuits"):
        MovingCircuits(replace(topology, reconfiguration=None), op_graph, cluster, strategy)
    with refused(ValueError, "iterations", 0, 1):
        MovingCircuits(topology, op_graph, cluster, strategy, iterations=0)
    with refused(ValueError, "transport", "tcp"):
        MovingCircuits(topology, op_graph, cluster, strategy, level="packet").run(transport="tcp")


def servers_of(name: str) -> int:
    return 16 if name == "hx4mesh" else 8  # a board of it has 16


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_all_reduce_takes_the_latency_of_its_ring_at_both_levels(name: str) -> None:
    """Alpha of the alpha-beta model: 2 (k - 1) hops one after the other, of a few bytes; along r
    rows and c columns 2 (r + c - 2)."""
    k = servers_of(name)
    cluster = Cluster(k, 4, 100.0, link_latency_s=1e-3)
    op_graph = one_all_reduce(8000)
    strategy = data_parallel(op_graph, k)
    topology = ARCHITECTURES[name](cluster, demand(op_graph, strategy, k))
    flow = predict_architecture(topology, op_graph, cluster, strategy)
    packets = predict_architecture(topology, op_graph, cluster, strategy, level="packet")
    if topology.reconfiguration is None:
        routes = Routes(topology)
        rows = routes.rings.grid(range(k))
        lines = [tuple(line) for line in (*rows, *zip(*rows, strict=True))]
        orders = lines or [ring.servers for ring in routes.rings.rings(range(k))]
        hops = [hop for order in orders for hop in zip(order, (*order[1:], order[0]), strict=True)]
        alike = {*routes.loads(hops).latency_s.tolist()}
        steps = 2 * (len(rows) + len(rows[0]) - 2) if rows else 2 * (k - 1)
        alpha_s = steps * max(alike)  # an upper bound where the hops of a ring differ
        least_s = steps * min(alike)
    else:  # circuits join the neighbours of a ring, or other servers forward
        alpha_s, least_s = 14 * 4 * cluster.link_latency_s, 14 * cluster.link_latency_s
    for estimate in (flow, packets):
        assert least_s <= estimate.iteration_s - estimate.compute_s <= alpha_s * 1.01
    if topology.reconfiguration is None:
        assert packets.iteration_s == pytest.approx(flow.iteration_s, rel=0.01)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_large_all_reduce_takes_what_its_rings_load_the_busiest_link_with(name: str) -> None:
    """Beta of the alpha-beta model: 2 (k - 1) / k bytes over every hop of a ring, for each byte."""
    k, size_bytes = servers_of(name), 800 * MB
    cluster = Cluster(k, 4, 100.0, link_latency_s=0.0)
    op_graph = one_all_reduce(size_bytes)
    strategy = data_parallel(op_graph, k)
    topology = ARCHITECTURES[name](cluster, demand(op_graph, strategy, k))
    flow = predict_architecture(topology, op_graph, cluster, strategy)
    packets = predict_architecture(topology, op_graph, cluster, strategy, level="packet")
    if topology.reconfiguration is not None:  # four ports at best; forwarding may take three hops
        beta_s = 2 * (k - 1) / k * size_bytes / (4 * cluster.link_bytes_per_s)
        for estimate in (flow, packets):
            reduced_s = estimate.iteration_s - estimate.compute_s
            assert beta_s * (1 - 1e-9) <= reduced_s <= 12 * beta_s
        return
    routes = Routes(topology)
    seconds = np.zeros(len(routes.bytes_per_s))
    for ring in routes.rings.rings(tuple(range(k))):
        order, share = ring.servers, ring.share
        loads = routes.loads(zip(order, (*order[1:], order[0]), strict=True))
        np.add.at(seconds, loads.edge, loads.load * share / routes.bytes_per_s[loads.edge])
    beta_s = 2 * (k - 1) / k * size_bytes * seconds.max()
    assert flow.iteration_s - flow.compute_s == pytest.approx(beta_s, rel=1e-6)
    # one path for each flow, which may meet others where they were spread
    assert packets.iteration_s - packets.compute_s >= beta_s * (1 - 1e-6)
