"""Folding at the flow level: what behaves alike is simulated once, and nothing else changes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from support.small_op_graphs import (
    graph,
    operator,
    random_graph,
    random_hybrid_strategy,
)

from torch_topoopt import _core
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.lowering import (
    degrees_of,
    lower_ideal_switch,
    lower_job,
    lower_network,
    lower_placement,
)
from torch_topoopt.search.traffic import demand
from torch_topoopt.topology.find_network import find_network

Row = tuple[str, int, float, float, int, tuple[int, ...], tuple[int, ...]]


def compute(device: int, seconds: float, after: tuple[int, ...] = (), priority: int = 0) -> Row:
    return ("compute", device, seconds, 0.0, priority, (), after)


def flow(links: tuple[int, ...], size_bytes: float, after: tuple[int, ...] = ()) -> Row:
    return ("flow", -1, size_bytes, 0.5, 0, links, after)


def random_rows(rng: random.Random, links: int) -> list[Row]:
    rows: list[Row] = []
    for i in range(rng.randint(2, 20)):
        after = tuple(sorted(rng.sample(range(i), min(i, rng.choice([0, 1, 1, 2])))))
        if rng.random() < 0.4:
            rows.append(compute(rng.randrange(3), rng.choice([0.0, 1.0]), after, i % 3))
        else:
            hops = tuple(rng.sample(range(links), rng.randint(1, min(3, links))))
            rows.append(flow(hops, rng.choice([1.0, 4.0]), after))
    return rows


def shifted(rows: list[Row], tasks: int, links: int, devices: int) -> list[Row]:
    """The same tasks with other numbers, on links and devices of their own."""
    return [
        (
            kind,
            device + devices if device >= 0 else -1,
            amount,
            latency_s,
            priority,
            tuple(link + links for link in hops),
            tuple(task + tasks for task in after),
        )
        for kind, device, amount, latency_s, priority, hops, after in rows
    ]


def assert_folding_changes_nothing(rates: list[float], devices: int, rows: list[Row]) -> Any:
    whole = _core.simulate_tasks(rates, devices, rows, fold=False)
    folded = _core.simulate_tasks(rates, devices, rows, fold=True)
    for expected, found in zip(whole, folded, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    return folded


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_beside_a_copy_of_itself(seed: int) -> None:
    rng = random.Random(seed)
    rates = [float(rng.choice([1, 2, 5])) for _ in range(rng.randint(2, 6))]
    rows = random_rows(rng, len(rates))
    alone = _core.simulate_tasks(rates, 3, rows, fold=False)
    both = rows + shifted(rows, len(rows), len(rates), 3)
    end_s, finish_s, busy_s, link_bytes = assert_folding_changes_nothing([*rates, *rates], 6, both)
    assert end_s == pytest.approx(alone[0], rel=1e-9)
    # equal to the last bit, as the copy is not simulated at all
    assert finish_s[: len(rows)] == finish_s[len(rows) :]
    assert busy_s[:3] == busy_s[3:]
    assert link_bytes[: len(rates)] == link_bytes[len(rates) :]


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_that_differs_in_one_thing_is_told_apart(seed: int) -> None:
    rng = random.Random(seed)
    rates = [float(rng.choice([1, 2, 5])) for _ in range(rng.randint(2, 6))]
    rows = random_rows(rng, len(rates))
    copy = shifted(rows, len(rows), len(rates), 3)
    slower = [*rates]
    if seed % 2:
        slower[rng.randrange(len(rates))] *= 0.75
    else:
        i = rng.randrange(len(rows))
        copy[i] = (*copy[i][:2], copy[i][2] * 1.5, *copy[i][3:])
    assert_folding_changes_nothing([*rates, *slower], 6, rows + copy)


def test_the_order_of_priorities_on_a_device_tells_devices_apart() -> None:
    rows = [
        compute(0, 1.0, priority=0),
        compute(0, 2.0, priority=1),
        compute(1, 1.0, priority=1),
        compute(1, 2.0, priority=0),
        compute(2, 1.0, priority=5),  # other numbers, the order of device 0
        compute(2, 2.0, priority=9),
    ]
    _, finish_s, busy_s, _ = assert_folding_changes_nothing([], 3, rows)
    assert finish_s == [1.0, 3.0, 3.0, 2.0, 1.0, 3.0]
    assert busy_s == [3.0] * 3


def test_an_all_to_all_on_a_switch_keeps_every_result() -> None:
    hosts = 24  # 552 flows: enough to be folded unasked
    rates = [10.0] * (2 * hosts)
    pairs = list(itertools.permutations(range(hosts), 2))
    rows = [compute(host, 1.0 + host % 2) for host in range(hosts)]
    rows += [flow((a, hosts + b), 5.0, (a,)) for a, b in pairs]
    folded = assert_folding_changes_nothing(rates, hosts, rows)
    assert _core.simulate_tasks(rates, hosts, rows) == folded
    assert folded[3] == [5.0 * (hosts - 1)] * (2 * hosts)


@pytest.mark.parametrize("on_switch", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_an_iteration_of_any_strategy(seed: int, on_switch: bool) -> None:
    rng = random.Random(seed)
    servers = rng.choice([4, 6, 8, 12])
    cluster = Cluster(servers, 2 if servers == 4 else 4, 10.0)
    op_graph = random_graph(rng, rng.randint(1, 8), splits=True)
    strategy = random_hybrid_strategy(rng, op_graph, servers)
    if seed % 3 == 0:  # tables, one on each server, that meet on all of them
        tables = [operator(f"table{i}", parameters=10**6) for i in range(servers)]
        top = operator("top", *((i, 4800, 4800) for i in range(servers)), parameters=10**5)
        op_graph = graph(*tables, top)
        homes = [*((i,) for i in range(servers)), tuple(range(servers))]
        strategy = tuple(
            Placement(op.name, home) for op, home in zip(op_graph.operators, homes, strict=True)
        )
    network = find_network(cluster, demand(op_graph, strategy, servers))
    core = lower_ideal_switch(cluster) if on_switch else lower_network(cluster, network)
    job = lower_job(op_graph, cluster, degrees_of([strategy]))
    placed = [lower_placement(placement) for placement in strategy]
    whole = _core.simulate_iteration(job, core, placed, fold=False)
    folded = _core.simulate_iteration(job, core, placed, fold=True)
    assert folded[:2] == pytest.approx(whole[:2], rel=1e-9)
    assert folded[2] == pytest.approx(whole[2], rel=1e-9)
    assert folded[3] == whole[3]


def test_a_cycle_is_named_as_without_folding() -> None:
    rows = [compute(0, 1.0, (1,)), compute(0, 1.0, (0,))]
    with pytest.raises(ValueError, match="form a cycle"):
        _core.simulate_tasks([], 1, rows, fold=True)
