"""The Markov chain: optimum of small spaces, Metropolis' rule, memory, determinism."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import refused
from support.search_cases import memory_by_server, wired
from support.small_op_graphs import chain, embeddings, graph, operator, random_graph

from torch_topoopt import _core
from torch_topoopt.plan import Cluster, Network, Placement
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.mcmc import StrategySearch
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import (
    Strategy,
    data_parallel,
    starting_strategies,
)
from torch_topoopt.search.strategy_space import DIMENSIONS, every_strategy
from torch_topoopt.sim import predict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.op_graph import OpGraph


def chain_of(
    op_graph: OpGraph,
    cluster: Cluster,
    network: Network,
    starts: Iterable[Strategy],
    seed: int = 0,
    **options: Any,
) -> StrategySearch:
    return StrategySearch(
        SearchProblem(op_graph, cluster, network, tuple(starts), **options), seed=seed
    )


@pytest.mark.parametrize(
    ("seed", "servers", "operators"),
    [(0, 4, 2), (1, 4, 2), (2, 2, 5), (3, 2, 6), (4, 3, 4), (5, 4, 2)],
)
def test_the_search_finds_the_optimum_that_enumeration_finds(
    seed: int, servers: int, operators: int
) -> None:
    op_graph = random_graph(random.Random(seed), operators, shared=False)
    cluster = Cluster(servers, 1 if servers == 2 else 2, 10.0)
    network = wired(op_graph, cluster)
    optimum = min(
        predict(op_graph, cluster, network, strategy).iteration_s
        for strategy in every_strategy(op_graph, servers)
    )
    search = chain_of(op_graph, cluster, network, [data_parallel(op_graph, servers)])
    search.run(3000)
    assert search.sample().best_s == pytest.approx(optimum, rel=1e-12)
    found = predict(op_graph, cluster, network, search.best())
    assert found.iteration_s == pytest.approx(optimum, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_coarse_simulator_refuses_is_not_simulated(seed: int) -> None:
    op_graph = random_graph(random.Random(seed), 8, shared=False)
    cluster = Cluster(4, 2, 10.0)
    starts = (data_parallel(op_graph, 4),)
    network = wired(op_graph, cluster)
    every, wide, narrow = (
        StrategySearch(SearchProblem(op_graph, cluster, network, starts), seed=seed, slack=slack)
        for slack in (math.inf, 1e9, 0.0)
    )
    for search in (every, wide, narrow):
        search.run(600)
    assert wide.best() == every.best(), "with much slack, nothing is refused"
    assert wide.simulations == every.simulations
    assert 0 < narrow.simulations < every.simulations
    found = predict(op_graph, cluster, network, narrow.best())
    assert found.iteration_s == narrow.sample().best_s
    start = predict(op_graph, cluster, network, starts[0])
    assert narrow.sample().best_s <= start.iteration_s


def test_what_has_been_simulated_is_not_simulated_again_and_changes_nothing() -> None:
    op_graph = random_graph(random.Random(5), 8, shared=False)
    cluster = Cluster(4, 2, 10.0)
    network, starts = wired(op_graph, cluster), (data_parallel(op_graph, 4),)
    problem = SearchProblem(op_graph, cluster, network, starts)
    first, again = (StrategySearch(problem, seed=3) for _ in range(2))
    assert again.simulations == 0
    assert again.tasks == first.tasks > 0
    first.run(400)
    again.run(400)
    assert again.simulations == 0 < first.simulations
    assert (again.sample(), again.best(), again.tasks) == (
        first.sample(),
        first.best(),
        first.tasks,
    )
    alone = StrategySearch(SearchProblem(op_graph, cluster, network, starts), seed=3)
    alone.run(400)
    assert (alone.sample(), alone.simulations) == (first.sample(), first.simulations)


def test_a_slack_below_zero_is_refused() -> None:
    problem = SearchProblem(chain(2), Cluster(2, 1, 10.0), None, (data_parallel(chain(2), 2),))
    with refused(ValueError, "slack", "-0.100000"):
        StrategySearch(problem, slack=-0.1)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_optimum_among_all_splits(seed: int) -> None:
    op_graph = random_graph(random.Random(seed), 2, splits=True)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    start = data_parallel(op_graph, 4)
    optimum = min(
        predict(op_graph, cluster, network, strategy).iteration_s
        for strategy in every_strategy(op_graph, 4, DIMENSIONS)
    )
    search = chain_of(op_graph, cluster, network, [start], dimensions=DIMENSIONS)
    search.run(4000)
    assert search.sample().best_s == pytest.approx(optimum, rel=1e-12)


def test_acceptance_is_metropolis_with_relative_cost() -> None:
    accept = _core.acceptance_probability
    assert accept(1.0, 1.0, 50.0) == 1
    assert accept(1.0, 0.5, 50.0) == 1
    assert accept(1.0, 1.02, 50.0) == pytest.approx(math.exp(-1))
    assert accept(1e-3, 1.02e-3, 50.0) == pytest.approx(accept(1e3, 1.02e3, 50.0))
    assert accept(1.0, 1e9, 50.0) == 0


def test_a_cold_chain_only_descends_and_a_hot_one_wanders() -> None:
    op_graph = random_graph(random.Random(7), 6)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    starts = [data_parallel(op_graph, 4)]
    cold = chain_of(op_graph, cluster, network, starts, beta=1e12)
    hot = chain_of(op_graph, cluster, network, starts, beta=1e-9)
    last = math.inf
    for _ in range(300):
        sample = cold.step(1)
        assert sample.current_s <= last * (1 + 1e-9)
        assert sample.best_s <= sample.current_s
        last = sample.current_s
        hot.step(1)
    assert hot.sample().current_s > hot.sample().best_s
    assert hot.accepted > cold.accepted


def test_a_worse_strategy_is_judged_against_the_current_one() -> None:
    # At twice the best, a rule that compared with the best would take one rise in e^3 or fewer, and
    # so would hardly ever get there.
    op_graph = random_graph(random.Random(7), 6)
    cluster = Cluster(4, 2, 10.0)
    search = chain_of(
        op_graph, cluster, wired(op_graph, cluster), [data_parallel(op_graph, 4)], beta=3.0
    )
    samples = [search.step(1) for _ in range(4000)]
    rises = [
        (before, after)
        for before, after in itertools.pairwise(samples)
        if after.current_s > before.current_s > 2 * before.best_s
    ]
    assert len(rises) > 30


def test_the_same_seed_gives_the_same_chain_in_any_slices() -> None:
    op_graph = embeddings(4, table_bytes=10**8)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    starts = starting_strategies(op_graph, cluster)
    one, two, other = (
        chain_of(op_graph, cluster, network, starts, seed=seed) for seed in (3, 3, 4)
    )
    one.run(500)
    for slice_ in (1, 99, 250, 150):
        two.step(slice_)
    other.run(500)
    assert one.sample() == two.sample()
    assert one.best() == two.best()
    assert other.sample().current_s != one.sample().current_s or other.accepted != one.accepted


def test_strategies_that_do_not_fit_into_memory_are_never_visited() -> None:
    op_graph = embeddings(4, table_bytes=1_500_000_000)  # two tables do not fit on one server
    cluster = Cluster(4, 2, 10.0)
    search = chain_of(
        op_graph,
        cluster,
        wired(op_graph, cluster),
        starting_strategies(op_graph, cluster),
        beta=1e-9,
    )
    for _ in range(50):
        search.step(20)
        assert max(memory_by_server(op_graph, cluster, search.best())) <= memory_limit(cluster)
    homes = [p.servers for p in search.best() if p.operator.startswith("table")]
    assert sorted(homes) == [(0,), (1,), (2,), (3,)]


def test_a_cheaper_strategy_that_does_not_fit_is_not_chosen() -> None:
    # Together on one server the two would send nothing, but need 6 GB of its 4 GiB.
    op_graph = graph(
        operator("first", parameters=1_500_000_000),
        operator("second", (0, 10**10, 10**10), parameters=1_500_000_000),
    )
    cluster = Cluster(2, 1, 10.0)
    network = wired(op_graph, cluster)
    together = (Placement("first", (0,)), Placement("second", (0,)))
    search = chain_of(op_graph, cluster, network, starting_strategies(op_graph, cluster))
    search.run(500)
    assert sorted(p.servers for p in search.best()) == [(0,), (1,)]
    assert search.sample().best_s > 5 * predict(op_graph, cluster, network, together).iteration_s


def test_starts_that_do_not_fit_are_refused() -> None:
    op_graph = embeddings(4, table_bytes=1_500_000_000)
    cluster = Cluster(4, 2, 10.0)
    with refused(ValueError, "memory"):
        chain_of(op_graph, cluster, wired(op_graph, cluster), [data_parallel(op_graph, 4)])


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_a_beta_that_makes_no_sense_is_named(beta: float) -> None:
    op_graph = chain(2)
    cluster = Cluster(2, 1, 10.0)
    with refused(ValueError, "beta"):
        chain_of(
            op_graph, cluster, wired(op_graph, cluster), [data_parallel(op_graph, 2)], beta=beta
        )


def test_negative_seeds_and_budgets_are_named() -> None:
    op_graph = chain(2)
    cluster = Cluster(2, 1, 10.0)
    network, starts = wired(op_graph, cluster), [data_parallel(op_graph, 2)]
    with refused(ValueError, "seed", -1):
        chain_of(op_graph, cluster, network, starts, seed=-1)
    with refused(ValueError, "evaluations", -1):
        chain_of(op_graph, cluster, network, starts).step(-1)


def test_whole_tables_beat_replicated_ones() -> None:
    op_graph = embeddings(8, table_bytes=10**8)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    replicated = data_parallel(op_graph, 4)
    search = chain_of(op_graph, cluster, network, [replicated])
    search.run(2000)
    assert {len(p.servers) for p in search.best() if p.operator.startswith("table")} == {1}
    replicated_s = predict(op_graph, cluster, network, replicated).iteration_s
    assert search.sample().best_s < replicated_s / 5
