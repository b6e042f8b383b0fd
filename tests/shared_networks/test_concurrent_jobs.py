"""Jobs that repeat their iterations on one network, held against what theory says of them."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from support.refusals import refused
from support.small_op_graphs import one_all_reduce, random_graph, random_strategy

from torch_topoopt import _core
from torch_topoopt.architectures import ARCHITECTURES, fat_tree, ideal_switch, topoopt
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.architectures.topology import NodeLink, NodePath, Topology
from torch_topoopt.plan import Cluster
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.shared_networks.concurrent_jobs import ECMP_CHOICES, PlacedJob, run_concurrent
from torch_topoopt.sim import run_program
from torch_topoopt.sim.architecture_program import architecture_program
from torch_topoopt.sim.iteration_program import IterationTasks

PER_JOB = 4
JOB = Cluster(PER_JOB, 2, 25.0)
CLUSTER = replace(JOB, servers=16)


def tasks_of(seed: int) -> IterationTasks:
    """A random job of four servers."""
    rng = random.Random(seed)
    graph = random_graph(rng, PER_JOB)
    rings = Routes(ideal_switch.build(JOB)).rings
    return IterationTasks.of(graph, JOB, rings, random_strategy(rng, graph, PER_JOB), 1)


def all_reduce_tasks(size_bytes: int) -> IterationTasks:
    graph = one_all_reduce(size_bytes)
    rings = Routes(ideal_switch.build(JOB)).rings
    return IterationTasks.of(graph, JOB, rings, data_parallel(graph, PER_JOB), 1)


def placed(routes: Routes, jobs: list[IterationTasks], servers: list[int]) -> list[PlacedJob]:
    """Job j on the j-th four of `servers`."""
    return [
        PlacedJob.on(routes, tasks, servers[PER_JOB * j : PER_JOB * (j + 1)], seed=j)
        for j, tasks in enumerate(jobs)
    ]


@pytest.mark.parametrize("name", ["ideal-switch", "fat-tree", "oversubscribed-fat-tree"])
def test_one_job_alone_repeats_the_iteration_of_the_single_job_simulation(name: str) -> None:
    rng = random.Random(7)
    graph = random_graph(rng, PER_JOB)
    strategy = random_strategy(rng, graph, PER_JOB)
    topology = ARCHITECTURES[name](JOB)
    single = run_program(architecture_program(topology, graph, JOB, strategy, seed=5))
    routes = Routes(topology)
    tasks = IterationTasks.of(graph, JOB, routes.rings, strategy, 1)
    job = PlacedJob.on(routes, tasks, range(PER_JOB), seed=5)
    (times,), result = run_concurrent(routes, [job], [0.0], 3)
    assert times[0] == single.completion_s
    assert times == pytest.approx(single.completion_s, rel=1e-9)
    # a round puts the bytes of one iteration on every link, and no others
    assert result.link_bytes == pytest.approx(3 * single.link_bytes)
    assert result.complete


def test_jobs_on_an_ideal_switch_do_not_slow_each_other() -> None:
    routes = Routes(ideal_switch.build(CLUSTER))
    servers = random.Random(1).sample(range(16), 16)
    jobs = placed(routes, [tasks_of(seed) for seed in range(4)], servers)
    alone = [float(run_concurrent(routes, [job], [0.0], 1)[0][0][0]) for job in jobs]
    together, _ = run_concurrent(routes, jobs, [0.0, 0.01, 0.002, 0.3], 4)
    for times, seconds in zip(together, alone, strict=True):
        assert len(times) >= 4
        assert times == pytest.approx(seconds, rel=1e-9)


def two_shards(shard: Topology) -> Topology:
    """Twice the network of a TopoOpt shard, beside one another."""
    behind = shard.servers
    links = [replace(i, source=i.source + behind, target=i.target + behind) for i in shard.links]
    paths = [replace(p, nodes=tuple(n + behind for n in p.nodes)) for p in shard.paths]
    return replace(
        shard,
        servers=2 * behind,
        nodes=2 * behind,
        links=(*shard.links, *(NodeLink(**vars(link)) for link in links)),
        paths=(*shard.paths, *(NodePath(**vars(path)) for path in paths)),
    )


def test_jobs_on_topoopt_shards_do_not_slow_each_other() -> None:
    shard = topoopt.build(JOB)
    routes = Routes(shard)
    tasks = [
        IterationTasks.of(graph, JOB, routes.rings, data_parallel(graph, PER_JOB), 1)
        for graph in (one_all_reduce(10**8), one_all_reduce(3 * 10**8))
    ]
    alone = [
        run_concurrent(routes, [PlacedJob.on(routes, t, range(PER_JOB))], [0.0], 1)[0][0][0]
        for t in tasks
    ]
    both = Routes(two_shards(shard))
    together, _ = run_concurrent(both, placed(both, tasks, list(range(8))), [0.0, 0.001], 3)
    for times, seconds in zip(together, alone, strict=True):
        assert times == pytest.approx(seconds, rel=1e-9)


def test_a_shared_tree_is_slower_on_average_the_more_jobs_it_has() -> None:
    tree = ARCHITECTURES["oversubscribed-fat-tree"](CLUSTER)
    routes = Routes(tree)
    servers = random.Random(3).sample(range(16), 16)
    jobs = placed(routes, [all_reduce_tasks(10**8)] * 4, servers)
    means = []
    for count in range(1, 5):
        times, _ = run_concurrent(routes, jobs[:count], [0.001 * j for j in range(count)], 8)
        means.append(mean(float(t[1:].mean()) for t in times[:1]))
    assert means == sorted(means)
    assert means[-1] > 1.05 * means[0]


def test_links_carry_the_bytes_of_the_iterations_that_ran() -> None:
    routes = Routes(fat_tree.build(CLUSTER))
    servers = random.Random(4).sample(range(16), 8)
    jobs = placed(routes, [all_reduce_tasks(10**8), all_reduce_tasks(10**7)], servers)
    times, result = run_concurrent(routes, jobs, [0.0, 0.0], 3)
    assert len(times[1]) > len(times[0]) == 3
    for job, of_job, size_bytes in zip(jobs, times, (10**8, 10**7), strict=True):
        sent = sum(
            result.link_bytes[i]
            for i, link in enumerate(routes.topology.links)
            if link.source in job.servers
        )
        once = 2 * (PER_JOB - 1) * size_bytes  # a ring AllReduce among four
        assert len(of_job) * once <= sent * (1 + 1e-9)
        assert sent <= (len(of_job) + 1) * once * (1 + 1e-9)


@pytest.mark.parametrize("ecmp", ECMP_CHOICES)
def test_a_pair_has_one_path_or_every_flow_its_own(ecmp: str) -> None:
    routes = Routes(fat_tree.build(CLUSTER))
    tasks = tasks_of(2)
    servers = [0, 5, 10, 15]  # of four pods
    job = PlacedJob.on(routes, tasks, servers, ecmp=ecmp, seed=1)
    by_pair: dict[int, set[int]] = {}
    for pair, path in zip(tasks.pair_of_flow.tolist(), job.path_of_flow.tolist(), strict=True):
        by_pair.setdefault(pair, set()).add(path)
        first, last = (routes.topology.links[i] for i in (job.paths[path][0], job.paths[path][-1]))
        source, target = tasks.pairs[pair]
        assert (first.source, last.target) == (servers[source], servers[target])
    most = max(map(len, by_pair.values()))
    assert most == 1 if ecmp == "pair" else most > 1
    again = PlacedJob.on(routes, tasks, servers, ecmp=ecmp, seed=1)
    assert np.array_equal(job.path_of_flow, again.path_of_flow)


def test_what_cannot_be_placed_is_named() -> None:
    routes = Routes(ideal_switch.build(CLUSTER))
    tasks = tasks_of(0)
    with refused(ValueError, "servers", 3, 4):
        PlacedJob.on(routes, tasks, [0, 1, 2])
    with refused(ValueError, "servers", 16, "0..15"):
        PlacedJob.on(routes, tasks, [0, 1, 2, 16])
    jobs = [PlacedJob.on(routes, tasks, four) for four in ([0, 1, 2, 3], [3, 4, 5, 6])]
    with refused(ValueError, "jobs[1].servers", 3):
        run_concurrent(routes, jobs, [0.0, 0.0], 1)
    with refused(ValueError, "rounds", 0, 1):
        run_concurrent(routes, jobs[:1], [0.0], 0)


def program_with(*loops: tuple[int, int], dependencies: tuple[tuple[int, int], ...]) -> str:
    """Four delays of a second with these loops: the message of the error that running them is."""
    program = _core.FlowProgram(2, 2)
    for _ in range(4):
        program.add_delay(1.0)
    for before, after in dependencies:
        program.add_dependency(before, after)
    try:
        for first, end in loops:
            program.add_loop(first, end)
        run_program(program)
    except ValueError as error:
        return str(error)
    return "no error"


def test_loops_that_are_none_are_refused() -> None:
    assert "waits for task 0, and only one" in program_with((2, 3), dependencies=((0, 2), (2, 3)))
    assert "does not wait for all others" in program_with((0, 2), dependencies=((0, 1),))
    assert "are not a part of 2..3" in program_with((0, 1), (1, 3), dependencies=((0, 1),))
    assert "are not a part of 0..3" in program_with((0, 4), dependencies=())
    program = _core.FlowProgram(1, 1)
    program.add_delay(0.0)
    program.add_loop(0, 0)
    with refused(ValueError, "round", "time"):
        run_program(program)


def test_tasks_beside_loops_end_and_a_loop_begins_when_it_is_told() -> None:
    program = _core.FlowProgram(1, 1)
    program.add_delay(10.0)
    program.add_delay(1.0)
    program.add_delay(2.0)
    program.add_dependency(1, 2)
    program.add_loop(1, 2, 0.5)
    program.set_rounds(2)
    result = run_program(program)
    assert result.complete
    assert result.completion_s == 10.0
    assert result.round_ends_s[0].tolist() == [3.5, 6.5, 9.5]
    assert not run_program(program, until_s=5.0).complete


def test_jobs_repeat_packet_by_packet_too() -> None:
    """A job alone takes as long in every round; beside another it is slower where they meet."""
    leaves = ARCHITECTURES["leaf-spine"](CLUSTER)
    routes = Routes(leaves)
    jobs = placed(routes, [all_reduce_tasks(10**6)] * 4, random.Random(6).sample(range(16), 16))
    (alone,), _ = run_concurrent(routes, jobs[:1], [0.0], 3, level="packet", transport="dctcp")
    assert alone == pytest.approx(alone[0], rel=0.02)
    together, result = run_concurrent(routes, jobs, [0.0] * 4, 3, level="packet", transport="dctcp")
    assert result.complete
    assert result.packet_hops > 0
    assert mean(together[0]) > 1.05 * alone[0]
