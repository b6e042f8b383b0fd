"""A training iteration at the flow level: closed forms, an unfolded reference, bytes, bad input."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import pytest
from oracles.reference_simulation import IterationReference
from support.refusals import refused
from support.small_op_graphs import (
    chain,
    graph,
    one_all_reduce,
    operator,
    random_buckets,
    random_graph,
    random_hybrid_strategy,
    random_strategy,
)

from torch_topoopt import _core
from torch_topoopt.op_graph import GradientBuckets, MeasuredStep
from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    PairDemand,
    Placement,
    Ring,
    Route,
    RouteTable,
    StrideRoute,
)
from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.search.strategies import Strategy, data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import complete_groups, predict, predict_ideal_switch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.loads import link_load_bytes
from torch_topoopt.topology.routing.next_hops import least_loaded_next_hops

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph


def ring_cluster(servers: int, degree: int = 2, latency_s: float = 1e-6) -> Cluster:
    return Cluster(servers, degree, 10.0, link_latency_s=latency_s)


@pytest.mark.parametrize("servers", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("size_bytes", [1, 1000, 10**8])
def test_a_ring_all_reduce_takes_its_closed_form(servers: int, size_bytes: int) -> None:
    cluster = ring_cluster(servers, 1 if servers == 2 else 2, latency_s=3e-6)
    op_graph = one_all_reduce(size_bytes)
    strategy = data_parallel(op_graph, servers)
    network = single_ring(cluster, demand(op_graph, strategy, servers))
    # backward of an operator without FLOPs costs the write of its gradients
    _, compute_s = operator_seconds(accelerator("cpu-core"), op_graph.operators[0], servers)
    forward_s, _ = operator_seconds(accelerator("cpu-core"), op_graph.operators[0], servers)
    steps = 2 * (servers - 1)
    closed = steps * (size_bytes / servers / cluster.link_bytes_per_s + cluster.link_latency_s)
    estimate = predict(op_graph, cluster, network, strategy)
    assert estimate.iteration_s == pytest.approx(forward_s + compute_s + closed, rel=1e-9)


@pytest.mark.parametrize(("servers", "degree"), [(5, 4), (8, 4), (16, 6)])
def test_rings_of_a_planned_network_divide_the_time_by_their_number(
    servers: int, degree: int
) -> None:
    cluster = ring_cluster(servers, degree, latency_s=0.0)
    op_graph = one_all_reduce(10**9)
    strategy = data_parallel(op_graph, servers)
    network = find_network(cluster, demand(op_graph, strategy, servers))
    compute_s = sum(operator_seconds(accelerator("cpu-core"), op_graph.operators[0], servers))
    closed = 2 * (servers - 1) / servers * 1e9 / (degree * cluster.link_bytes_per_s)
    assert predict(op_graph, cluster, network, strategy).iteration_s == pytest.approx(
        compute_s + closed, rel=1e-9
    )
    assert predict_ideal_switch(op_graph, cluster, strategy).iteration_s == pytest.approx(
        compute_s + closed, rel=1e-9
    )


def test_all_reduce_overlaps_with_the_backward_pass_of_earlier_operators() -> None:
    cluster = ring_cluster(4, latency_s=0.0)
    op_graph = chain(4, flops=10**9, parameters=10**5, output=1)
    strategy = data_parallel(op_graph, 4)
    network = find_network(cluster, demand(op_graph, strategy, 4))
    estimate = predict(op_graph, cluster, network, strategy)
    one = 2 * 3 / 4 * 1e5 / (2 * cluster.link_bytes_per_s)
    assert estimate.iteration_s == pytest.approx(estimate.compute_s + one, rel=1e-9)


@pytest.mark.parametrize(
    ("first_layers", "cap_layers", "last_layers"),
    [(1, 1, 1), (2, 2, 2), (1, 3, 3), (1, 2, 1), (4, 4, 4), (9, 9, 4)],
)
def test_the_last_bucket_is_what_no_computation_hides(
    first_layers: int, cap_layers: int, last_layers: int
) -> None:
    """Four layers whose gradients are 0.1 MB each: the last bucket starts when all is computed."""
    cluster = ring_cluster(4, latency_s=0.0)
    layers = chain(4, flops=10**9, parameters=10**5, output=1)
    buckets = GradientBuckets(first_layers * 10**5, cap_layers * 10**5)
    op_graph = dataclasses.replace(
        layers, gradient_buckets=buckets, measured_step=MeasuredStep(0.25, 3.0, 3.0)
    )
    strategy = data_parallel(op_graph, 4)
    network = find_network(cluster, demand(op_graph, strategy, 4))
    estimate = predict(op_graph, cluster, network, strategy)
    plain = predict(layers, cluster, network, strategy)
    assert estimate.compute_s == pytest.approx(3 * plain.compute_s + 0.25, rel=1e-9)
    one = 2 * 3 / 4 * 1e5 / (2 * cluster.link_bytes_per_s)
    assert estimate.iteration_s == pytest.approx(estimate.compute_s + last_layers * one, rel=1e-9)
    assert estimate.link_bytes == plain.link_bytes


def plain_network(cluster: Cluster, op_graph: OpGraph, strategy: Strategy) -> Network:
    """A planned network with one route per pair and one link per pair."""
    asked = demand(op_graph, strategy, cluster.servers)
    return find_network(cluster, asked, paths=1)


@pytest.mark.parametrize("seed", range(60))
def test_folding_servers_and_flows_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    servers = rng.choice([2, 3, 4, 6, 8])
    cluster = ring_cluster(servers, {2: 1, 3: 2}.get(servers, rng.choice([2, 4])), 0.0)
    if servers == 4:
        cluster = ring_cluster(4, 2, 0.0)
    op_graph = random_graph(rng, rng.randint(1, 8))
    if seed % 3 == 0:
        op_graph = random_buckets(rng, op_graph)
    strategy = random_strategy(rng, op_graph, servers)
    if seed % 4 == 0:
        strategy = data_parallel(op_graph, servers)
    network = plain_network(cluster, op_graph, strategy)
    if len({(link.source, link.target) for link in network.links}) < len(network.links):
        network = single_ring(cluster, demand(op_graph, strategy, servers))
    estimate = predict(op_graph, cluster, network, strategy)
    expected = IterationReference(op_graph, cluster, network, strategy).seconds()
    assert estimate.iteration_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_an_iteration_of_split_operators_is_that_of_their_elements(seed: int) -> None:
    rng = random.Random(seed)
    servers = rng.choice([3, 4, 6])
    cluster = ring_cluster(servers, 2, 0.0)
    op_graph = random_graph(rng, rng.randint(1, 6), splits=True)
    if seed % 3 == 0:
        op_graph = random_buckets(rng, op_graph)
    strategy = random_hybrid_strategy(rng, op_graph, servers)
    network = single_ring(cluster, demand(op_graph, strategy, servers))
    estimate = predict(op_graph, cluster, network, strategy)
    complete = complete_groups(cluster, network, strategy)
    expected = IterationReference(op_graph, cluster, complete, strategy).seconds()
    assert estimate.iteration_s == pytest.approx(expected, rel=1e-9)


def pipeline(stages: int, micro_batches: int) -> tuple[OpGraph, Strategy]:
    op_graph = chain(2 * stages, flops=10**9, parameters=0, output=64 * 10**4)
    return op_graph, tuple(Placement(op.name, (i // 2,)) for i, op in enumerate(op_graph.operators))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 4), (3, 4), (4, 8)])
def test_a_pipeline_of_equal_stages_idles_for_its_filling_and_draining(
    stages: int, micro_batches: int
) -> None:
    # without transfers, of m micro-batches on n stages the busiest works m of m + n - 1 slots
    cluster = Cluster(stages, 1 if stages == 2 else 2, 1e6, link_latency_s=0.0)
    op_graph, strategy = pipeline(stages, micro_batches)
    network = single_ring(cluster, demand(op_graph, strategy, stages))
    estimate = predict(op_graph, cluster, network, strategy, micro_batches=micro_batches)
    slots = (micro_batches + stages - 1) / micro_batches
    assert estimate.iteration_s == pytest.approx(slots * estimate.compute_s, rel=1e-2)


@pytest.mark.parametrize("seed", range(12))
def test_a_pipeline_runs_as_the_plain_simulation_says(seed: int) -> None:
    rng = random.Random(seed)
    servers, micro_batches = rng.choice([2, 3, 4]), rng.choice([2, 4, 8])
    cluster = ring_cluster(servers, 1 if servers == 2 else 2, 0.0)
    cuts = sorted(rng.choices(range(6), k=servers - 1))
    op_graph = chain(6, flops=rng.randrange(10**9), parameters=10**5, output=rng.randrange(10**7))
    strategy = tuple(
        Placement(op.name, (sum(cut <= i for cut in cuts),))
        for i, op in enumerate(op_graph.operators)
    )
    network = single_ring(cluster, demand(op_graph, strategy, servers))
    estimate = predict(op_graph, cluster, network, strategy, micro_batches=micro_batches)
    expected = IterationReference(op_graph, cluster, network, strategy, micro_batches).seconds()
    assert estimate.iteration_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_what_several_of_a_stage_read_comes_once_for_each_micro_batch(micro_batches: int) -> None:
    rng = random.Random(micro_batches)
    size = rng.randrange(10**7)
    layers = [operator("first", flops=10**9)]
    for i in range(3):  # two readers and a shortcut, as in a block of a transformer
        reads = [(3 * i, size, size, 1)]
        layers += [operator(f"{name}{i}", *reads, flops=rng.randrange(10**9)) for name in "ab"]
        both = [(3 * i + 1, size, size), (3 * i + 2, size, size), *reads]
        layers.append(operator(f"sum{i}", *both))
    op_graph = graph(*layers)
    cluster = ring_cluster(4, 2, 0.0)
    strategy = tuple(Placement(op.name, ((i + 2) // 3,)) for i, op in enumerate(layers))
    asked = demand(op_graph, strategy, 4)
    assert [pair.size_bytes for pair in asked.pairs] == [size] * 6
    network = single_ring(cluster, asked)
    estimate = predict(op_graph, cluster, network, strategy, micro_batches=micro_batches)
    expected = IterationReference(op_graph, cluster, network, strategy, micro_batches).seconds()
    assert estimate.iteration_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_simulated_link_bytes_equal_the_bytes_that_the_demand_puts_on_links(seed: int) -> None:
    rng = random.Random(seed)
    servers = rng.choice([2, 3, 5, 8, 12])
    cluster = ring_cluster(
        servers, 1 if servers == 2 else min(4, servers - servers % 2, 2 * (servers // 3))
    )
    op_graph = random_graph(rng, rng.randint(1, 10))
    strategy = random_strategy(rng, op_graph, servers)
    asked = demand(op_graph, strategy, servers)
    network = find_network(cluster, asked)
    estimate = predict(op_graph, cluster, network, strategy)
    # a pair's demand is rounded to whole bytes before it is spread over links
    tolerance = len(asked.pairs) + 1
    loads = link_load_bytes(network, asked)
    assert len(loads) == len(estimate.link_bytes) == len(network.links)
    for simulated, asked_for in zip(estimate.link_bytes, loads, strict=True):
        assert abs(simulated - asked_for) <= tolerance
    busiest = max(estimate.link_bytes, default=0)
    assert estimate.iteration_s >= busiest / cluster.link_bytes_per_s * (1 - 1e-9)
    assert estimate.iteration_s >= estimate.compute_s * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", ["one group", "one transfer"])
def test_no_network_beats_the_ideal_switch_at_one_kind_of_traffic(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    servers = rng.choice([3, 5, 6, 8])
    cluster = ring_cluster(servers, rng.choice([2, 4]) if servers > 4 else 2)
    if kind == "one group":
        op_graph = random_graph(rng, rng.randint(1, 8))
        members = tuple(sorted(rng.sample(range(servers), rng.randint(2, servers))))
        strategy: Strategy = tuple(Placement(op.name, members) for op in op_graph.operators)
    else:
        op_graph = graph(operator("a"), operator("b", (0, rng.randrange(1, 10**8), 0)))
        strategy = random_strategy(rng, op_graph, servers)
    network = find_network(cluster, demand(op_graph, strategy, servers))
    switch = predict_ideal_switch(op_graph, cluster, strategy)
    planned = predict(op_graph, cluster, network, strategy)
    assert switch.iteration_s <= planned.iteration_s * (1 + 1e-9)


def test_a_link_of_its_own_can_beat_a_share_of_the_switch() -> None:
    # Server 0 sends to 1 what a long computation waits for, and twice as much to 2. On the triangle
    # each has a link; in the switch the two share one of double rate, then the rest speeds up.
    links = tuple(
        Link(a, (b - a) % 3 - 1, b, (a - b) % 3 - 1) for a in range(3) for b in range(3) if a != b
    )
    cluster = ring_cluster(3, 2, 0.0)
    size = int(cluster.link_bytes_per_s)  # one second on a link
    op_graph = graph(
        operator("source"),
        operator("long", (0, size, 0), flops=10**11, backward_flops=0),
        *(operator(f"side{i}", (0, size, 0)) for i in range(2)),
    )
    homes = [(0,), (1,), (2,), (2,)]
    strategy = tuple(
        Placement(op.name, home) for op, home in zip(op_graph.operators, homes, strict=True)
    )
    network = Network(links, (), ())
    long_s = predict_ideal_switch(op_graph, cluster, strategy).compute_s
    planned = predict(op_graph, cluster, network, strategy)
    switch = predict_ideal_switch(op_graph, cluster, strategy)
    assert planned.iteration_s == pytest.approx(1 + long_s, rel=1e-9)
    assert switch.iteration_s == pytest.approx(1.5 + long_s, rel=1e-9)


def test_groups_without_rings_use_the_rings_that_complete_groups_adds() -> None:
    cluster = ring_cluster(8, 4)
    everywhere = data_parallel(one_all_reduce(10**6), 8)
    network = find_network(cluster, demand(one_all_reduce(10**6), everywhere, 8))
    half = (Placement("weights", (1, 3, 4, 6)),)
    complete = complete_groups(cluster, network, half)
    (added,) = complete.groups[len(network.groups) :]
    assert added.servers == (1, 3, 4, 6)
    assert sum(ring.share for ring in added.rings) == pytest.approx(1)
    op_graph = one_all_reduce(10**6)
    assert predict(op_graph, cluster, network, half) == predict(op_graph, cluster, complete, half)
    assert complete_groups(cluster, complete, half) is complete


def test_parallel_links_share_a_hop_evenly() -> None:
    links = tuple(Link(a, p, 1 - a, p) for p in range(2) for a in range(2))
    network = Network(links, (Group((0, 1), (Ring((0, 1), 1.0),)),), ())
    core = _core.RoutedNetwork(2, links, 1e9, 0.0, [], [])
    assert core.rings([1, 0]) == [Ring((0, 1), 1.0)]
    cluster = Cluster(3, 2, 8.0, link_latency_s=0.0)  # two links to 1 GB/s each; server 2 is idle
    op_graph = one_all_reduce(4 * 10**9)
    estimate = predict(op_graph, cluster, network, (Placement("weights", (0, 1)),))
    compute_s = sum(operator_seconds(accelerator("cpu-core"), op_graph.operators[0], 2))
    assert estimate.link_bytes == (2 * 10**9,) * 4
    assert estimate.iteration_s == pytest.approx(compute_s + 2.0, rel=1e-9)


def test_a_transfer_over_weighted_routes_loads_every_link_by_its_weight() -> None:
    links = tuple(
        link
        for a, pa, b, pb in [(0, 0, 1, 1), (1, 0, 2, 1), (2, 0, 3, 1), (3, 0, 0, 1)]
        for link in (Link(a, pa, b, pb), Link(b, pb, a, pa))
    )
    routes = (Route((0, 1, 2), 0.75), Route((0, 3, 2), 0.25))
    network = Network(links, (), routes)
    op_graph = graph(operator("a", output=8000), operator("b", (0, 8000, 0)))
    strategy = (Placement("a", (0,)), Placement("b", (2,)))
    sent = predict(op_graph, ring_cluster(4), network, strategy).link_bytes
    by_pair = {(link.source, link.target): size for link, size in zip(links, sent, strict=True)}
    assert by_pair[0, 1] == by_pair[1, 2] == 6000
    assert by_pair[0, 3] == by_pair[3, 2] == 2000
    assert sum(sent) == 16000


@pytest.mark.parametrize(
    ("network", "tokens"),
    [
        (Network((Link(0, 0, 9, 0),), (), ()), ("links[0]", "server 9", "0..3")),
        (Network((Link(1, 0, 1, 0),), (), ()), ("itself",)),
        (Network((Link(0, 0, 1, 0),), (), (Route((0, 1, 2), 1.0),)), ("server 1", 2)),
        (Network((Link(0, 0, 1, 0),), (), ()), ("link", "route", "server 1")),
        (Network((), (), RouteTable(4, (StrideRoute((1,), 1.0),))), ("server 0", 1)),
        (Network((), (), RouteTable(4, (StrideRoute((5,), 1.0),))), ("stride 5", "1..3")),
        (Network((), (), RouteTable(4, (), ((0, 1), (0, 1)))), ("next_hops", 4)),
        (
            Network((), (), RouteTable(4, (), ((0, 9, 2, 3),) * 4)),
            ("next_hops[1]", "server 9"),
        ),
        (Network((), (), RouteTable(4, (), ((0,) * 4,) * 4)), ("loop",)),
    ],
)
def test_a_network_that_cannot_carry_the_strategy_is_named(
    network: Network, tokens: tuple[object, ...]
) -> None:
    op_graph = one_all_reduce(1000)
    with refused(ValueError, *tokens):
        predict(op_graph, ring_cluster(4), network, data_parallel(op_graph, 4))


@pytest.mark.parametrize("rule", ["by_offset", "next_hops"])
def test_the_rules_of_a_route_table_carry_what_the_routes_they_stand_for_carry(rule: str) -> None:
    cluster = ring_cluster(12, 4)
    op_graph = random_graph(random.Random(3), 6)
    strategy = random_strategy(random.Random(4), op_graph, 12)
    asked = Demand((GroupDemand(tuple(range(12)), 10**6),), (PairDemand(0, 6, 10**6),))
    network = find_network(cluster, asked)
    table = network.routes
    assert isinstance(table, RouteTable)
    assert table.listed, "which come before the rules"
    if rule == "next_hops":
        load = {(link.source, link.target): 0.0 for link in network.links}
        next_hops = least_loaded_next_hops(12, load)
        table = dataclasses.replace(table, by_offset=(), next_hops=next_hops)
        network = dataclasses.replace(network, routes=table)
    assert getattr(table, rule)
    expanded = dataclasses.replace(network, routes=tuple(table))
    found = predict(op_graph, cluster, network, strategy)
    assert found == predict(op_graph, cluster, expanded, strategy)
    assert sum(found.link_bytes) > 0


def test_an_unknown_accelerator_is_answered_with_the_known_ones() -> None:
    op_graph = one_all_reduce(1000)
    cluster = Cluster(1, 1, 10.0, accelerator="abacus")
    with refused(ValueError, "accelerator", "abacus", "cpu-core", "a100"):
        predict(op_graph, cluster, Network((), (), ()), data_parallel(op_graph, 1))
