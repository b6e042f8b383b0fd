"""Chains side by side, the two levels of the search, and Ray."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
from support.refusals import refused
from support.search_cases import coarse_simulator, memory_by_server, wired
from support.small_op_graphs import chain, embeddings, graph, operator, random_graph

from torch_topoopt.op_graph import GradientBuckets
from torch_topoopt.plan import Cluster
from torch_topoopt.search import ray_chains
from torch_topoopt.search.chains import Chain, ChainProgress, ThreadedChains, budgets
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import data_parallel, starting_strategies, whole_operators
from torch_topoopt.search.strategy_space import every_strategy
from torch_topoopt.search.traffic import transfers
from torch_topoopt.search.two_levels import SearchOptions, TwoLevelSearch
from torch_topoopt.sim import predict
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network


def problem_of(seed: int = 7, operators: int = 6, servers: int = 4, **more: Any) -> SearchProblem:
    op_graph = random_graph(random.Random(seed), operators)
    cluster = Cluster(servers, 1 if servers == 2 else 2, 10.0)
    starts = (data_parallel(op_graph, servers),)
    return SearchProblem(op_graph, cluster, wired(op_graph, cluster), starts, **more)


def tables() -> SearchProblem:
    """Moving each of the tables to one server gains much."""
    op_graph = embeddings(12, table_bytes=10**8)
    cluster = Cluster(4, 2, 10.0)
    return SearchProblem(op_graph, cluster, wired(op_graph, cluster), (data_parallel(op_graph, 4),))


@pytest.mark.parametrize(("seed", "servers", "operators"), [(0, 4, 2), (2, 2, 5), (4, 3, 4)])
def test_chains_find_the_optimum_of_their_simulator(
    seed: int, servers: int, operators: int
) -> None:
    problem = problem_of(seed, operators, servers)
    strategies = every_strategy(problem.op_graph, servers)
    coarse = coarse_simulator(problem.op_graph, problem.cluster, problem.network, strategies)  # type: ignore[arg-type]
    optimum = min(coarse.run(strategy) for strategy in strategies)
    found = ThreadedChains(problem, chains=2).run(4000)
    assert found.candidates[0].seconds == optimum
    assert coarse.run(found.candidates[0].strategy) == optimum


def test_tables_are_spread_whatever_the_seed() -> None:
    """All of them on all servers, or all on one, is better than any with one table elsewhere."""
    op_graph = embeddings(32, table_bytes=10**7, rows_bytes=10**6)
    cluster = Cluster(8, 2, 10.0)
    starts = (data_parallel(op_graph, cluster.servers),)
    problem = SearchProblem(op_graph, cluster, wired(op_graph, cluster), starts)
    found = [ThreadedChains(problem, seed=seed, chains=1).run(3000) for seed in range(6)]
    times = [result.candidates[0].seconds for result in found]
    assert max(times) < 1.2 * min(times)  # where they are not spread: 1.59


def test_hot_chains_find_what_takes_several_changes_at_once() -> None:
    """Both ends of the heavy edge on the same half of the servers, and the middle one elsewhere."""
    op_graph = graph(
        operator("a", flops=7 * 10**9),
        operator("b", (0, 560_000, 560_000), flops=5 * 10**9, parameters=840_000),
        operator("c", (0, 120_000, 120_000), flops=9 * 10**9, parameters=3_300_000),
        operator("d", (0, 150_000, 150_000), (1, 8_500_000, 8_500_000), flops=5 * 10**9),
    )
    cluster = Cluster(4, 2, 10.0, accelerator="a100")
    start = data_parallel(op_graph, 4)
    problem = SearchProblem(op_graph, cluster, wired(op_graph, cluster), (start,))
    strategies = every_strategy(op_graph, 4)
    coarse = coarse_simulator(op_graph, cluster, problem.network, strategies)  # type: ignore[arg-type]
    optimum = min(coarse.run(strategy) for strategy in strategies)
    # Chains that all begin as cold as the first one stay at 1.3 times the optimum.
    found = [ThreadedChains(problem, seed=seed).run(20_000) for seed in range(3)]
    assert min(result.candidates[0].seconds for result in found) < 1.2 * optimum


def test_every_candidate_costs_what_it_says_and_the_best_comes_first() -> None:
    problem = tables()
    result = ThreadedChains(problem, chains=3).run(3000)
    found = [candidate.strategy for candidate in result.candidates]
    coarse = coarse_simulator(problem.op_graph, problem.cluster, problem.network, found)  # type: ignore[arg-type]
    seconds = [candidate.seconds for candidate in result.candidates]
    assert seconds == sorted(seconds)
    assert seconds == [coarse.run(strategy) for strategy in found]
    assert len(found) > 3
    assert result.evaluations == 3000
    assert 0 < result.accepted < result.simulations < 3000
    assert result.steps_simulated < result.full_steps


def test_the_result_is_the_same_for_any_number_of_workers() -> None:
    problem = problem_of(operators=12)
    results = [
        ThreadedChains(problem, seed=5, chains=3, workers=workers).run(2500)
        for workers in (1, 2, 3, None)
    ]
    assert results[1:] == results[:-1]
    assert ThreadedChains(problem, seed=6, chains=3).run(2500) != results[0]
    assert budgets(2500, 3) == [834, 833, 833]


def test_a_chain_alone_is_what_it_is_among_others() -> None:
    problem = problem_of(operators=12, beta=1.0)
    one = ThreadedChains(problem, seed=5, chains=1).run(800)
    for number in range(3):
        alone = ray_chains.run_chain(problem, 5, number, 800)
        assert (alone == one) == (number == 0)


def _same_way(problem: SearchProblem, rounds: int) -> tuple[Chain, Chain]:
    """A chain, and one that simulates everything, which goes the same way."""
    quick, whole = Chain(problem, 0, 0), Chain(problem, 0, 0)
    whole.simulate_fully()
    for _ in range(rounds):
        quick.step(100)
        whole.step(100)
        assert quick.progress() == whole.progress()
    assert quick.result().candidates == whole.result().candidates
    return quick, whole


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_chain_that_simulates_everything_goes_the_same_way(micro_batches: int) -> None:
    # Thousands of proposals as a search makes them, many of them ended early.
    problem = replace(problem_of(operators=30), micro_batches=micro_batches, beta=20.0)
    quick, whole = _same_way(problem, rounds=30)
    assert quick.result().steps_simulated < whole.result().steps_simulated


@pytest.mark.parametrize("buckets", [None, GradientBuckets(10**5, 10**6)])
def test_a_chain_on_rows_and_columns_goes_the_same_way(buckets: GradientBuckets | None) -> None:
    """Where the size of an AllReduce decides whether it goes on rings; that of a bucket is known
    when it is full only, so bounds leave it out."""
    op_graph = replace(random_graph(random.Random(7), 12), gradient_buckets=buckets)
    cluster = replace(torus_cluster(3, 4, 10.0), link_latency_s=1e-4)
    network = torus_network(cluster, 3, 4)
    problem = SearchProblem(op_graph, cluster, network, (data_parallel(op_graph, 12),), beta=20.0)
    sizes = [o.parameter_gradient_bytes for o in op_graph.operators if o.parameter_gradient_bytes]
    taken = {problem.core_network.takes_grid(range(12), size) for size in (*sizes, 10**9)}
    assert taken == {True, False}
    _same_way(problem, rounds=10)


def test_every_second_chain_begins_at_the_other_starts() -> None:
    problem = tables()
    (slow,) = problem.starts
    fast = whole_operators(problem.op_graph, problem.cluster, set(range(1, 13)))
    both = problem.changed(problem.network, (slow, fast)).with_other_starts((slow,))
    begin = [Chain(both, 0, number).progress().current_s for number in range(4)]
    assert begin[0] == begin[2] < begin[1] == begin[3]
    assert begin[1] == Chain(problem, 0, 0).progress().current_s


def test_a_chain_that_cools_down_ends_where_only_what_is_better_is_accepted() -> None:
    problem = replace(problem_of(operators=12), beta=3.0)
    hot, cooled = Chain(problem, 0, 0), Chain(problem, 0, 0)
    cooled.cool(3000)
    ends = []
    for chain_ in (hot, cooled):
        chain_.step(2700)
        before = chain_.progress()
        chain_.step(300)
        now = chain_.progress()
        ends.append(now.accepted - before.accepted)
        if chain_ is cooled:
            assert now.current_s <= before.current_s * 1.01
            assert now.current_s <= hot.progress().current_s
    assert ends[0] > 2 * ends[1]


def test_proposals_too_large_for_memory_are_never_taken() -> None:
    op_graph = embeddings(4, table_bytes=1_500_000_000)  # two tables do not fit on one server
    cluster = Cluster(4, 2, 10.0)
    starts = starting_strategies(op_graph, cluster)
    problem = SearchProblem(op_graph, cluster, wired(op_graph, cluster), starts, beta=1e-9)
    result = ThreadedChains(problem).run(4000)
    assert result.accepted > 100
    for candidate in result.candidates:
        held = memory_by_server(op_graph, cluster, candidate.strategy)
        assert max(held) <= memory_limit(cluster)
    with refused(ValueError, "memory"):
        ThreadedChains(replace(problem, starts=(data_parallel(op_graph, 4),)))


def test_no_strategy_makes_more_transfers_than_the_limit() -> None:
    problem = replace(tables(), max_transfers=8, beta=1e-9)
    for result in (ThreadedChains(problem).run(2000), ThreadedChains(replace(problem)).run(3000)):
        for candidate in result.candidates:
            count = sum(
                len(transfers(op, candidate.strategy[o.producer], candidate.strategy[i]))
                for i, op in enumerate(problem.op_graph.operators)
                for o in op.operands
            )
            assert count <= 8
    free = ThreadedChains(replace(problem, max_transfers=10**6)).run(3000)
    assert free.candidates[0].seconds < result.candidates[0].seconds


def test_micro_batches_are_searched_too() -> None:
    op_graph = chain(8, flops=10**11, parameters=10**8)
    cluster = Cluster(4, 2, 100.0)
    starts = (data_parallel(op_graph, 4),)
    problem = SearchProblem(op_graph, cluster, wired(op_graph, cluster), starts, micro_batches=4)
    found = TwoLevelSearch(problem).run(2000)
    network = problem.network
    before, after = (
        predict(op_graph, cluster, network, s, micro_batches=4).iteration_s  # type: ignore[arg-type]
        for s in (starts[0], found)
    )
    assert after <= before


@pytest.mark.parametrize("seed", range(3))
def test_the_flow_level_has_the_last_word(seed: int) -> None:
    problem = problem_of(seed, 8)
    seen: list[ChainProgress] = []
    search = TwoLevelSearch(problem, seed=seed)
    strategy = search.run(2000, seen.append)
    assert search.best() == strategy

    def flow_s(of: Any) -> float:
        return predict(problem.op_graph, problem.cluster, problem.network, of).iteration_s  # type: ignore[arg-type]

    candidates = [candidate.strategy for candidate in search.result().candidates]
    assert flow_s(strategy) <= min(map(flow_s, (*candidates, *problem.starts))) * (1 + 1e-12)
    assert [now.evaluations for now in seen] == sorted(now.evaluations for now in seen)
    assert seen[-1].evaluations == 2000
    assert all(now.best_s <= now.current_s for now in seen)


def test_what_a_callback_raises_ends_the_search_and_leaves_the_best_so_far() -> None:
    problem = tables()
    search = TwoLevelSearch(problem)
    calls = 0

    def stop(now: ChainProgress) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        search.run(10**9, stop)
    assert set(threading.enumerate()) <= before  # of which another test's may end meanwhile
    assert search.best() == search.result().candidates[0].strategy
    assert search.result().candidates[0].seconds < search.result().candidates[-1].seconds


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (SearchOptions(chains=0), ("chains", 1)),
        (SearchOptions(workers=0), ("workers", 1)),
    ],
)
def test_options_out_of_range_are_named(options: SearchOptions, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        TwoLevelSearch(problem_of(), options=options)


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused(ValueError, "ray", "pip"):
        TwoLevelSearch(problem_of(), options=SearchOptions(ray="auto"))


@pytest.mark.exhaustive
def test_on_a_ray_cluster_the_result_is_that_of_threads() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray>=2.50'")
    problem = problem_of(operators=12)
    here = TwoLevelSearch(problem, seed=5).run(2000)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        seen: list[ChainProgress] = []
        search = TwoLevelSearch(problem, seed=5, options=SearchOptions(ray="auto"))
        assert search.run(2000, seen.append) == here
        assert seen[-1].evaluations == 2000
        endless = TwoLevelSearch(problem, seed=5, options=SearchOptions(ray="auto"))

        def stop(now: ChainProgress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            endless.run(10**9, stop)
        assert endless.best() == problem.starts[0]
    finally:
        ray.shutdown()
