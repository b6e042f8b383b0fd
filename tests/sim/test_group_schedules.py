"""AllReduces over schedules of a direct network's links, at both levels and in the search."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused
from support.small_op_graphs import one_all_reduce

from torch_topoopt import _core
from torch_topoopt.architectures import dragonfly, jellyfish, kautz, leaf_spine, topoopt, torus
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.comparison.estimate import predict_architecture, predict_on
from torch_topoopt.plan import AllReduceTime, Cluster, CostModel, Demand, GroupDemand, Plan
from torch_topoopt.search.lowering import degrees_of, lower_ideal_switch, lower_job, lower_network
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import plan_program, run_program
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.architectures import Build
    from torch_topoopt.architectures.topology import Topology

A = 1e-6  # seconds of a hop
BYTES_PER_S = 1.25e9
CLUSTER = Cluster(16, 4, 10.0, link_latency_s=A)
LONG = 160_000_000
EVERYONE = tuple(range(16))


def lowered(topology: Topology, *, schedules: bool) -> _core.RoutedNetwork:
    routes = Routes(topology)
    pairs = set(permutations(range(topology.servers), 2))
    return lower_topology(routes, pairs, schedules=schedules).network


def bound_s(topology: Topology, size_bytes: int) -> float:
    links = [(link.source, link.target, BYTES_PER_S) for link in topology.links]
    group = _core.GraphGroup(topology.servers, links, [], A, 0.0)
    return group.candidates("all_reduce", size_bytes).bound_seconds


@pytest.mark.parametrize("build", [jellyfish.build, kautz.build, kautz.build_de_bruijn])
def test_long_all_reduces_reach_the_slowest_cut(build: Build) -> None:
    topology = build(CLUSTER)
    bound = bound_s(topology, LONG)
    rings = lowered(topology, schedules=False).all_reduce_seconds(EVERYONE, LONG)
    best = lowered(topology, schedules=True).all_reduce_seconds(EVERYONE, LONG)
    assert bound <= best < 1.02 * bound
    assert rings > 1.5 * bound


def test_short_all_reduces_take_as_many_steps_as_the_diameter() -> None:
    network = lowered(kautz.build(CLUSTER), schedules=True)
    links = {(link.source, link.target) for link in kautz.build(CLUSTER).links}
    diameter = _core.hop_summary(16, sorted(links)).diameter
    assert network.all_reduce_seconds(EVERYONE, 1) == pytest.approx(diameter * A, rel=1e-2)


COSTS = {
    "latency of links alone": CostModel.of_latency(A),
    "dear messages": CostModel(2e-6, A, 1e-11, 1 / BYTES_PER_S),
    "measured": CostModel(
        2e-6, A, 0.0, 1 / BYTES_PER_S,
        (AllReduceTime("doubling", 1024, 1e-5), AllReduceTime("ring", 1 << 20, 1e-4)),
    ),
}  # fmt: skip
SIZES = (1, 100, 1000, 4000, 16_000, 60_000, 250_000, 262_145, 10**6, 10**7, LONG)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("degree", [2, 4])
def test_the_choice_and_its_time_are_those_of_the_backend(cost: str, degree: int) -> None:
    """At every size; a simulated schedule may only be slower, where its messages share links."""
    model = COSTS[cost]
    cluster = replace(CLUSTER, degree=degree)
    network = find_network(cluster, Demand((GroupDemand(EVERYONE, LONG),), ()))
    core = lower_network(cluster, network, schedules=True, cost=model)
    links = [(link.source, link.target, BYTES_PER_S) for link in network.links]
    rings = network.groups[0].rings
    backend = _core.GraphGroup(16, links, rings, model.alpha_s, A)
    for size_bytes in SIZES:
        algorithm = core.all_reduce_algorithm(EVERYONE, size_bytes)
        if model.all_reduce:  # ranks take only algorithms that were measured
            assert algorithm in ("doubling", "ring")
            continue
        found = backend.candidates("all_reduce", size_bytes)
        seconds = {each.algorithm: each.seconds for each in found.list}
        if not model.gamma_s_per_byte:  # which GraphGroup leaves out
            assert algorithm == found.chosen
            assert core.all_reduce_seconds(EVERYONE, size_bytes) >= seconds[algorithm] * 0.999
        if algorithm in ("breadth_first", "packing", "flooding"):
            of_model = pytest.approx(seconds[algorithm], rel=0.1)
            assert core.all_reduce_seconds(EVERYONE, size_bytes) == of_model


def test_groups_of_some_servers_leave_measured_times_of_all_out() -> None:
    network = find_network(CLUSTER, Demand((GroupDemand(EVERYONE, LONG),), ()))
    core = lower_network(CLUSTER, network, schedules=True, cost=COSTS["measured"])
    assert core.all_reduce_algorithm(EVERYONE, LONG) == "ring"
    assert core.all_reduce_algorithm(tuple(range(8)), LONG) != "ring"


@pytest.mark.parametrize("algorithm", ["ring", "multi_ring", "tree", "doubling", "one_shot"])
def test_a_forced_algorithm_puts_its_bytes_on_links(algorithm: str) -> None:
    network = find_network(CLUSTER, Demand((GroupDemand(EVERYONE, LONG),), ()))
    core = lower_network(CLUSTER, network, schedules=True, algorithm=algorithm)
    size_bytes = 16_000
    assert core.all_reduce_algorithm(EVERYONE, size_bytes) == algorithm
    hops = {
        (a, b): min(len(route.servers) - 1 for route in routes)
        for (a, b), routes in network.routes_by_pair().items()
    }
    order = network.groups[0].rings[0].servers
    sent = {
        "ring": 2 * 15 * size_bytes,
        "multi_ring": 2 * 15 * size_bytes,
        "doubling": sum(
            hops[order[i], order[i ^ step]] for i in range(16) for step in (1, 2, 4, 8)
        ) * size_bytes,
        "one_shot": sum(hops.values()) * size_bytes,
    }  # fmt: skip
    carried = sum(core.all_reduce_link_bytes(EVERYONE, size_bytes))
    if algorithm == "tree":  # two trees carry half each, up and down, over routes
        assert carried >= 2 * 15 * size_bytes
    else:
        assert carried == pytest.approx(sent[algorithm], rel=1e-6)


def test_an_iteration_takes_the_seconds_of_its_all_reduce_at_every_level() -> None:
    """Flow level, flow program, packets and the search; links carry what servers must receive."""
    topology = jellyfish.build(CLUSTER)
    op_graph = one_all_reduce(LONG // 100)
    strategy = data_parallel(op_graph, 16)
    network = lowered(topology, schedules=True)
    seconds = network.all_reduce_seconds(EVERYONE, LONG // 100)
    flow = predict_on(topology, op_graph, CLUSTER, strategy, schedules=True)
    assert flow.iteration_s - flow.compute_s == pytest.approx(seconds, rel=1e-9)
    assert sum(flow.link_bytes) == pytest.approx(2 * 15 * LONG // 100, rel=1e-4)
    assert flow.bandwidth_tax == pytest.approx(1.0, rel=1e-4)
    coarse = _core.CoarseSimulator(lower_job(op_graph, CLUSTER, degrees_of([strategy])), network)
    assert coarse.run(strategy) == pytest.approx(flow.iteration_s, rel=1e-6)
    packets = predict_architecture(
        topology, op_graph, CLUSTER, strategy, level="packet", schedules=True
    )
    assert packets.iteration_s == pytest.approx(flow.iteration_s, rel=3e-2)
    assert sum(packets.link_bytes) == pytest.approx(sum(flow.link_bytes), rel=1e-3)


def test_a_plan_is_priced_as_its_network() -> None:
    """Also where routes of neighbours use other links, which a schedule does not."""
    op_graph = one_all_reduce(LONG)
    strategy = data_parallel(op_graph, 16)
    asked = demand(op_graph, strategy, 16)
    network = find_network(CLUSTER, asked)
    made = replace(Plan.of_network(CLUSTER, network, asked, model=""), strategy=strategy)
    as_topology = predict_on(
        topoopt.build(CLUSTER, network=network), op_graph, CLUSTER, strategy, schedules=True
    )
    result = run_program(plan_program(op_graph, made, schedules=True))
    assert result.completion_s == pytest.approx(as_topology.iteration_s, rel=1e-6)
    core = lower_network(CLUSTER, network, schedules=True)
    rings = lower_network(CLUSTER, network)
    for size_bytes in (1, 10**4, 10**6, LONG):
        best = core.all_reduce_seconds(EVERYONE, size_bytes)
        assert best <= rings.all_reduce_seconds(EVERYONE, size_bytes)


def test_a_group_without_links_of_its_own_keeps_its_rings() -> None:
    topology = torus.build(CLUSTER)  # 4 x 4: 0 and 10 are in different rows and columns
    plain, both = (lowered(topology, schedules=wanted) for wanted in (False, True))
    apart = plain.all_reduce_seconds((0, 10), LONG)
    assert both.all_reduce_seconds((0, 10), LONG) == apart


@pytest.mark.parametrize(("build", "gain"), [(leaf_spine.build, 1.0), (dragonfly.build, 2.0)])
def test_networks_of_switches_have_rings_in_both_directions(build: Build, gain: float) -> None:
    """One direction of a Dragonfly's ring uses one of two cables between neighbouring groups."""
    topology = build(replace(CLUSTER, servers=64))
    one, both = (
        lowered(topology, schedules=wanted).all_reduce_seconds(tuple(range(64)), LONG)
        for wanted in (False, True)
    )
    assert one / both == pytest.approx(gain, rel=1e-2)


@pytest.mark.parametrize("servers", [2, 7, 12, 64])
def test_an_exchange_over_a_switch_takes_a_step_per_dimension_of_its_grid(servers: int) -> None:
    """Its bytes are those of a ring, so it is never slower."""
    dimensions = {2: 1, 7: 1, 12: 1, 64: 2}
    cluster = replace(CLUSTER, servers=servers)
    network = lower_ideal_switch(cluster, schedules=True)
    sent_s = 2 * (servers - 1) / servers * LONG / (4 * BYTES_PER_S)
    seconds = network.all_reduce_seconds(tuple(range(servers)), LONG)
    assert seconds == pytest.approx(sent_s + 2 * dimensions[servers] * A, rel=1e-9)


def test_ends_of_other_links_are_refused() -> None:
    network = lowered(jellyfish.build(CLUSTER), schedules=False)
    with refused(ValueError, "ends", 1):
        network.add_schedules([(0, 1)], CostModel.of_latency(A))
    for servers in ((0,), (0, 16), (3, 3)):
        with refused(ValueError, "servers"):
            network.all_reduce_seconds(servers, 1.0)
