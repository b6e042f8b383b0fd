"""AllReduces along rows and columns of a torus, as simulators price them (HammingMesh, V-A2)."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused
from support.small_op_graphs import one_all_reduce

from torch_topoopt import _core
from torch_topoopt.architectures import hammingmesh, torus
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.plan import Cluster, Group, Network, Plan, Ring
from torch_topoopt.search.lowering import degrees_of, lower_job, lower_network
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import named_plan_program, plan_program, predict, run_program
from torch_topoopt.sim.architecture_program import architecture_program
from torch_topoopt.sim.iteration_program import RING_STEPS
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

A = 1e-5  # seconds of a hop
GBPS = 10.0
B = 8 / (GBPS * 1e9)  # seconds of a byte on a link
SHAPES = [(3, 3), (4, 4), (3, 4), (5, 3), (2, 4), (2, 3)]


def torus_of(rows: int, columns: int) -> tuple[Cluster, Network]:
    cluster = replace(torus_cluster(rows, columns, GBPS), link_latency_s=A)
    return cluster, torus_network(cluster, rows, columns)


def reduced_s(op_graph: OpGraph, cluster: Cluster, network: Network) -> float:
    """Of the one AllReduce of `op_graph`."""
    estimate = predict(op_graph, cluster, network, data_parallel(op_graph, cluster.servers))
    return estimate.iteration_s - estimate.compute_s


def plan_of(op_graph: OpGraph, cluster: Cluster, network: Network) -> Plan:
    strategy = data_parallel(op_graph, cluster.servers)
    made = Plan.of_network(cluster, network, demand(op_graph, strategy, cluster.servers), model="")
    return replace(made, strategy=strategy)


def without_grid(network: Network) -> Network:
    everyone, *others = network.groups
    return replace(network, groups=(replace(everyone, grid=()), *others))


def on_grid_s(rows: int, columns: int, size: float) -> float:
    """At most: as if phases waited for the longer line; a quarter of the bytes is in each part."""
    along = max(2 * (n - 1) / n for n in (rows, columns))
    between = max(2 * (n - 1) / (rows * columns) for n in (rows, columns))
    latency = 2 * (rows + columns - 2) * A
    return latency + (along + between) * size / 4 * B


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (5, 5)])
def test_a_square_takes_its_closed_form_and_rings_theirs(rows: int, columns: int) -> None:
    """4 (sqrt(p) - 1) a against 2 (p - 1) a, and S b / 2 of each, less each server's own part."""
    servers = rows * columns
    cluster, network = torus_of(rows, columns)
    for size in (4, 4000, 400_000, 4 * 10**8):
        op_graph = one_all_reduce(size)
        least = 2 * (servers - 1) / servers * size / 4 * B
        grid = reduced_s(op_graph, cluster, network)
        rings = reduced_s(op_graph, cluster, without_grid(network))
        assert grid == pytest.approx(2 * (rows + columns - 2) * A + least, rel=1e-9)
        assert rings == pytest.approx(2 * (servers - 1) * A + least, rel=1e-9)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_every_size_takes_the_faster_of_both(rows: int, columns: int) -> None:
    cluster, network = torus_of(rows, columns)
    for size in (4, 10**4, 10**6, 10**9):
        op_graph = one_all_reduce(size)
        rings = reduced_s(op_graph, cluster, without_grid(network))
        found = reduced_s(op_graph, cluster, network)
        assert found <= min(rings, on_grid_s(rows, columns, size)) * (1 + 1e-9)
        if min(rows, columns) > 2:  # a dimension of two has two cables between its servers
            least = 2 * (rows + columns - 2) * A + 2 * (1 - 1 / (rows * columns)) * size / 4 * B
            assert found >= least * (1 - 1e-9)
    assert lower_network(cluster, network).takes_grid(range(rows * columns), 4)


def test_long_messages_take_rings_where_rows_and_columns_differ() -> None:
    """Where the slower lines hold up the faster ones, rings use links more evenly."""
    core = lower_network(*torus_of(3, 6))
    sizes = [10**k for k in range(3, 11)]
    taken = [core.takes_grid(range(18), size) for size in sizes]
    assert taken[0]
    assert not taken[-1]
    assert taken == sorted(taken, reverse=True)  # one crossing


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("steps", RING_STEPS)
def test_links_carry_what_the_schedule_sends(rows: int, columns: int, steps: str) -> None:
    """A link of a row carries what its server sends to the next one of the row: a quarter's part
    in two phases where rows come first, and between them where columns do."""
    cluster, network = torus_of(rows, columns)
    size = 36_000
    op_graph = one_all_reduce(size)
    plan = plan_of(op_graph, cluster, network)
    result = run_program(plan_program(op_graph, plan, ring_steps=steps))  # type: ignore[arg-type]
    sent = {
        n: size / 4 * (2 * (n - 1) / n + 2 * (n - 1) / (rows * columns)) for n in (rows, columns)
    }
    for link, carried in zip(network.links, result.link_bytes, strict=True):
        along_row = link.source // columns == link.target // columns
        assert carried == pytest.approx(sent[columns if along_row else rows], rel=1e-9)
    flow = predict(op_graph, cluster, network, plan.strategy)
    assert sum(flow.link_bytes) == pytest.approx(result.link_bytes.sum(), rel=1e-3)


@pytest.mark.parametrize("level", ["flow", "packet"])
@pytest.mark.parametrize("steps", RING_STEPS)
def test_steps_take_as_long_as_all_at_once(level: str, steps: str) -> None:
    cluster, network = torus_of(3, 3)
    op_graph = one_all_reduce(3_600_000)
    plan = plan_of(op_graph, cluster, network)
    expected = predict(op_graph, cluster, network, plan.strategy).iteration_s
    program = plan_program(op_graph, plan, ring_steps=steps)  # type: ignore[arg-type]
    took = run_program(program, level=level).completion_s
    assert took == pytest.approx(expected, rel=1e-9 if level == "flow" else 3e-2)


def test_a_part_of_the_servers_has_no_grid() -> None:
    core = lower_network(*torus_of(4, 4))
    assert core.grid(range(16)) == [[4 * i + j for j in range(4)] for i in range(4)]
    assert core.grid(range(8)) == []
    assert not core.takes_grid(range(8), 4)


@pytest.mark.parametrize("grid", [((0, 1), (2, 2)), ((0, 1, 2), (3,)), ((0, 1, 2, 3),)])
def test_a_grid_that_is_none_is_refused(grid: tuple[tuple[int, ...], ...]) -> None:
    cluster, network = torus_of(2, 2)
    group = Group((0, 1, 2, 3), (Ring((0, 1, 3, 2), 1.0),), grid)
    with refused(ValueError, "groups[0].grid"):
        lower_network(cluster, replace(network, groups=(group,)))


@pytest.mark.parametrize("size", [4000, 4 * 10**7])
def test_architectures_have_the_grid_of_their_servers(size: int) -> None:
    """The torus, and a HammingMesh, whose switches take the place of the cables between boards."""
    cluster = Cluster(servers=16, degree=4, link_gbps=GBPS, link_latency_s=A)
    op_graph = one_all_reduce(size)
    strategy = data_parallel(op_graph, 16)
    job = lower_job(op_graph, cluster, degrees_of([strategy]))
    for topology in (
        torus.build(cluster),
        hammingmesh.build(cluster, board=(2, 2), boards=(2, 2)),
    ):
        routes = Routes(topology)
        pairs = set(itertools.permutations(range(16), 2))
        with_grid = lower_topology(routes, pairs).network
        plain = lower_topology(routes, pairs, {}).network
        times = [_core.simulate_iteration(job, n, strategy).iteration_s for n in (with_grid, plain)]
        assert with_grid.takes_grid(range(16), size) == (times[0] < times[1] * (1 - 1e-9))
        assert times[0] <= times[1]
        program = architecture_program(topology, op_graph, cluster, strategy)
        assert run_program(program).completion_s == pytest.approx(times[0], rel=2e-2)


def test_the_search_prices_what_is_simulated() -> None:
    """Random sizes on a square: the coarse simulator's time of one AllReduce is the flow level's,
    where phases do not disturb each other."""
    rng = random.Random(3)
    cluster, network = torus_of(4, 4)
    core = lower_network(cluster, network)
    for size in (rng.randrange(4, 10 ** rng.randrange(2, 9)) for _ in range(12)):
        op_graph = one_all_reduce(size)
        strategy = data_parallel(op_graph, 16)
        job = lower_job(op_graph, cluster, degrees_of([strategy]))
        coarse = _core.CoarseSimulator(job, core).run(strategy)
        exact = _core.simulate_iteration(job, core, strategy).iteration_s
        assert coarse == pytest.approx(exact, rel=1e-9)


def test_names_say_along_which_line_flows_go() -> None:
    cluster, network = torus_of(3, 4)
    op_graph = one_all_reduce(4000)
    _, names = named_plan_program(op_graph, plan_of(op_graph, cluster, network))
    lines = {(name.ring, name.steps) for name in names.values()}
    assert ("0-1-2-3", 3) in lines  # scatters, or gathers
    assert ("0-1-2-3", 6) in lines  # does both, in the parts that take columns first
    assert ("8-4-0", 4) in lines
    assert len(lines) == 2 * 2 * (3 + 4)
