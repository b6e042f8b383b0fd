"""Folding at the flow level: what behaves alike is simulated once, and nothing else changes."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import pytest
from support.refusals import refused
from support.small_op_graphs import (
    graph,
    operator,
    random_graph,
    random_hybrid_strategy,
)
from support.task_programs import (
    ComputeTask,
    FlowTask,
    SimLink,
    Task,
    TaskTimes,
    simulate_tasks,
)

from torch_topoopt import _core
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.lowering import (
    degrees_of,
    lower_ideal_switch,
    lower_job,
    lower_network,
)
from torch_topoopt.search.traffic import demand
from torch_topoopt.topology.find_network import find_network

LATENCY_S = 0.5


def links_of(rates: list[float]) -> list[SimLink]:
    return [SimLink(rate, LATENCY_S) for rate in rates]


def random_tasks(rng: random.Random, links: int) -> list[Task]:
    tasks: list[Task] = []
    for i in range(rng.randint(2, 20)):
        after = tuple(sorted(rng.sample(range(i), min(i, rng.choice([0, 1, 1, 2])))))
        if rng.random() < 0.4:
            tasks.append(ComputeTask(rng.randrange(3), rng.choice([0.0, 1.0]), after, i % 3))
        else:
            hops = tuple(rng.sample(range(links), rng.randint(1, min(3, links))))
            tasks.append(FlowTask(hops, rng.choice([1.0, 4.0]), after))
    return tasks


def shifted(tasks: list[Task], links: int, devices: int) -> list[Task]:
    """The same tasks with other numbers, on links and devices of their own."""
    moved: list[Task] = []
    for task in tasks:
        after = tuple(before + len(tasks) for before in task.after)
        if isinstance(task, ComputeTask):
            moved.append(replace(task, device=task.device + devices, after=after))
        else:
            hops = tuple(link + links for link in task.links)
            moved.append(replace(task, links=hops, after=after))
    return moved


def assert_folding_changes_nothing(rates: list[float], tasks: list[Task]) -> TaskTimes:
    whole = simulate_tasks(links_of(rates), tasks, fold=False)
    folded = simulate_tasks(links_of(rates), tasks, fold=True)
    for field in fields(TaskTimes):
        expected = pytest.approx(getattr(whole, field.name), rel=1e-9)
        assert getattr(folded, field.name) == expected
    return folded


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_beside_a_copy_of_itself(seed: int) -> None:
    rng = random.Random(seed)
    rates = [float(rng.choice([1, 2, 5])) for _ in range(rng.randint(2, 6))]
    tasks = [*random_tasks(rng, len(rates)), ComputeTask(2, 0.5)]
    alone = simulate_tasks(links_of(rates), tasks)
    both = tasks + shifted(tasks, len(rates), 3)
    folded = assert_folding_changes_nothing([*rates, *rates], both)
    assert folded.end_s == pytest.approx(alone.end_s, rel=1e-9)
    # equal to the last bit, as the copy is not simulated at all
    assert folded.finish_s[: len(tasks)] == folded.finish_s[len(tasks) :]
    assert folded.device_busy_s[:3] == folded.device_busy_s[3:]
    assert folded.link_bytes[: len(rates)] == folded.link_bytes[len(rates) :]


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_that_differs_in_one_thing_is_no_copy(seed: int) -> None:
    rng = random.Random(seed)
    rates = [float(rng.choice([1, 2, 5])) for _ in range(rng.randint(2, 6))]
    tasks = random_tasks(rng, len(rates))
    copy = shifted(tasks, len(rates), 3)
    slower = [*rates]
    if seed % 2:
        slower[rng.randrange(len(rates))] *= 0.75
    else:
        i = rng.randrange(len(tasks))
        task = copy[i]
        if isinstance(task, ComputeTask):
            copy[i] = replace(task, seconds=task.seconds * 1.5)
        else:
            copy[i] = replace(task, size_bytes=task.size_bytes * 1.5)
    assert_folding_changes_nothing([*rates, *slower], tasks + copy)


def test_the_order_of_priorities_on_a_device_distinguishes_devices() -> None:
    tasks: list[Task] = [
        ComputeTask(0, 1.0, priority=0),
        ComputeTask(0, 2.0, priority=1),
        ComputeTask(1, 1.0, priority=1),
        ComputeTask(1, 2.0, priority=0),
        ComputeTask(2, 1.0, priority=5),  # other numbers, the order of device 0
        ComputeTask(2, 2.0, priority=9),
    ]
    times = assert_folding_changes_nothing([], tasks)
    assert times.finish_s == (1.0, 3.0, 3.0, 2.0, 1.0, 3.0)
    assert times.device_busy_s == (3.0,) * 3


def test_an_all_to_all_on_a_switch_keeps_every_result() -> None:
    hosts = 24  # 552 flows: enough to be folded unasked
    rates = [10.0] * (2 * hosts)
    pairs = list(itertools.permutations(range(hosts), 2))
    tasks: list[Task] = [ComputeTask(host, 1.0 + host % 2) for host in range(hosts)]
    tasks += [FlowTask((a, hosts + b), 5.0, (a,)) for a, b in pairs]
    folded = assert_folding_changes_nothing(rates, tasks)
    assert simulate_tasks(links_of(rates), tasks, fold=None) == folded
    assert folded.link_bytes == (5.0 * (hosts - 1),) * (2 * hosts)


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
    whole = _core.simulate_iteration(job, core, strategy, fold=False)
    folded = _core.simulate_iteration(job, core, strategy, fold=True)
    assert folded.iteration_s == pytest.approx(whole.iteration_s, rel=1e-9)
    assert folded.compute_s == pytest.approx(whole.compute_s, rel=1e-9)
    assert folded.link_bytes == pytest.approx(whole.link_bytes, rel=1e-9)
    assert folded.tasks == whole.tasks


def test_a_cycle_is_named_as_without_folding() -> None:
    tasks = [ComputeTask(0, 1.0, (1,)), ComputeTask(0, 1.0, (0,))]
    with refused(ValueError, "cycle"):
        simulate_tasks([], tasks, fold=True)
