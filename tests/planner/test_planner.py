"""The alternating loop: what a Plan promises, determinism, interruption, bad input."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from support.limits import limit_s
from support.refusals import refused
from support.small_op_graphs import chain, embeddings, random_graph

from figures.cells.iterations import plan_each_mode
from torch_topoopt.plan import Cluster, Link, Placement, Plan
from torch_topoopt.planner import alternation, descents
from torch_topoopt.planner.alternation import Planning, PlanProgress, plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.planner.pricing import PairPricing
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import predict, predict_ideal_switch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.loads import link_load_bytes

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

TESTS = Path(__file__).parents[1]


def small(servers: int = 4, degree: int = 2, link_gbps: float = 10.0) -> Cluster:
    return Cluster(servers, degree, link_gbps)


@pytest.mark.parametrize(
    ("servers", "degree"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (8, 4)]
)
@pytest.mark.parametrize("space", ["full", "data-parallel"])
def test_plans_are_valid_and_their_figures_are_those_of_the_simulator(
    servers: int, degree: int, space: str
) -> None:
    op_graph = embeddings(4, table_bytes=10**7)
    made = plan(
        op_graph, small(servers, degree), PlanningOptions(strategy_space=space, evaluations=200)
    )
    assert Plan.from_json(made.to_json()) == made
    assert made.strategy_space == space
    assert made.demand == demand(op_graph, made.strategy, servers)
    estimate = predict(op_graph, made.cluster, made.network, made.strategy)
    assert made.prediction.iteration_s == pytest.approx(estimate.iteration_s, rel=1e-11)
    assert made.prediction.link_bytes == estimate.link_bytes
    loads = link_load_bytes(made.network, made.demand)
    tolerance = len(made.demand.pairs) + 1
    for simulated, asked in zip(made.prediction.link_bytes, loads, strict=True):
        assert abs(simulated - asked) <= tolerance
    switch = predict_ideal_switch(op_graph, made.cluster, made.strategy)
    assert made.prediction.ideal_switch_s == pytest.approx(switch.iteration_s, rel=1e-11)


def test_data_parallel_plans_have_one_round_and_nothing_searched() -> None:
    op_graph = chain(6)
    made = plan(op_graph, small(), PlanningOptions(strategy_space="data-parallel"))
    assert made.strategy == data_parallel(op_graph, 4)
    assert made.search == ()
    assert made.demand.pairs == ()
    (only,) = made.rounds
    assert only.accepted
    assert only.strategy_s == only.network_s == made.prediction.iteration_s


@pytest.mark.parametrize("seed", range(6))
def test_the_best_pair_of_all_rounds_is_kept_and_beats_data_parallelism(seed: int) -> None:
    op_graph = random_graph(random.Random(seed), 6)
    cluster = small(6, 4)
    made = plan(op_graph, cluster, PlanningOptions(seed=seed, evaluations=300))
    priced = [s for r in made.rounds for s in (r.strategy_s, r.network_s)]
    assert made.prediction.iteration_s == min(priced)
    reference = plan(op_graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    assert made.prediction.iteration_s <= reference.prediction.iteration_s
    best = min(made.rounds[0].strategy_s, made.rounds[0].network_s)
    assert made.rounds[0].accepted
    for later in made.rounds[1:]:
        cost = min(later.strategy_s, later.network_s)
        assert later.accepted == (cost < best)
        best = min(best, cost)


def test_rounds_end_when_they_gain_nothing_or_are_used_up() -> None:
    settled = plan(chain(3), small(), PlanningOptions(rounds=10, evaluations=100))
    assert 2 <= len(settled.rounds) < 10
    assert not settled.rounds[-1].accepted
    assert len(plan(chain(3), small(), PlanningOptions(rounds=1, evaluations=100)).rounds) == 1


def test_rewiring_for_the_strategy_helps_where_traffic_is_model_parallel() -> None:
    op_graph = embeddings(8, table_bytes=10**8, rows_bytes=10**7)
    made = plan(op_graph, small(8, 4), PlanningOptions(evaluations=500))
    reference = plan(op_graph, small(8, 4), PlanningOptions(strategy_space="data-parallel"))
    assert made.prediction.iteration_s < reference.prediction.iteration_s / 3
    assert {len(p.servers) for p in made.strategy if p.operator.startswith("table")} == {1}


def test_a_network_that_is_worse_for_the_strategy_at_hand_is_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[Network] = []
    search = Planning._search

    def wire_a_ring(self: PairPricing, strategy: Strategy, *_: object) -> Network:
        if not searched:
            return find_network(self._cluster, demand(self._op_graph, strategy, 8), mode="paper")
        return single_ring(self._cluster, demand(self._op_graph, strategy, 8))

    def search_there(self: Planning, network: Network, *more: Any) -> Strategy:
        searched.append(network)
        return search(self, network, *more)

    monkeypatch.setattr(PairPricing, "wire", wire_a_ring)
    monkeypatch.setattr(Planning, "_search", search_there)
    made = plan(embeddings(8, table_bytes=10**8), small(8, 4), PlanningOptions(evaluations=200))
    assert made.rounds[0].network_s > made.rounds[0].strategy_s
    # The ring is searched, too, and the better one again, which gains as little.
    assert [len(network.links) for network in searched] == [32, 16, 32]
    assert len(made.network.links) == 32
    searched.clear()
    plan(
        embeddings(8, table_bytes=10**8),
        small(8, 4),
        PlanningOptions(evaluations=200, ablation="search-only"),
    )
    assert {len(network.links) for network in searched} == {32}


def test_tables_end_as_in_a_start_where_that_is_faster_and_layers_as_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op_graph = embeddings(8, table_bytes=10**8, rows_bytes=10**7)
    kinds = ("table" if o.name.startswith("table") else "layer" for o in op_graph.operators)
    operators = (replace(o, kind=kind) for o, kind in zip(op_graph.operators, kinds, strict=True))
    op_graph = replace(op_graph, operators=tuple(operators))
    found = tuple(
        Placement(o.name, (0,) if o.kind == "table" else (0, 2, 4, 6)) for o in op_graph.operators
    )
    monkeypatch.setattr(Planning, "_search", lambda *_: found)
    monkeypatch.setattr(descents, "descend", lambda problem, *_, **__: problem.starts[0])
    options = PlanningOptions(rounds=1, evaluations=100)
    made = plan(op_graph, small(8, 4), options)
    tables = [p.servers for p in made.strategy if p.operator.startswith("table")]
    assert sorted(tables) == [(server,) for server in range(8)]
    assert [p for p in made.strategy if not p.operator.startswith("table")] == [
        p for p in found if not p.operator.startswith("table")
    ]
    monkeypatch.setattr(descents, "as_in_starts", lambda *_: ())
    as_found = plan(op_graph, small(8, 4), options)
    assert as_found.strategy == found
    assert made.prediction.iteration_s < as_found.prediction.iteration_s
    assert made.network != as_found.network  # one that is wired for it


def test_networks_are_wired_for_several_candidates_of_a_round_and_the_fastest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wired: list[float] = []
    of_one = PairPricing.wired

    def record(self: PairPricing, *arguments: Any) -> Any:
        pair = of_one(self, *arguments)
        wired.append(pair.iteration_s)
        return pair

    monkeypatch.setattr(PairPricing, "wired", record)
    options = PlanningOptions(rounds=1, evaluations=2000)
    made = plan(embeddings(12, table_bytes=10**8), Cluster(8, 4, 10.0), options)
    last = wired[-3:]  # those before are wired for the first network
    assert len(set(last)) > 1
    assert made.rounds[0].network_s == pytest.approx(min(last))


@pytest.mark.parametrize("space", ["full", "data-parallel"])
def test_plans_of_each_mode_are_those_of_two_plannings(space: Any) -> None:
    op_graph, cluster = embeddings(6, table_bytes=10**8), Cluster(6, 3, 10.0)
    options = PlanningOptions(rounds=2, evaluations=200, strategy_space=space)
    of_paper, of_best = plan_each_mode(op_graph, cluster, options)
    assert of_paper == plan(op_graph, cluster, options)
    assert of_best == plan(op_graph, cluster, replace(options, mode="best"))


def test_fewer_servers_get_more_proposals_where_no_number_is_given() -> None:
    few, many = chain(3), random_graph(random.Random(1), 200)
    counts = [PlanningOptions().evaluations_of(many, n) for n in (2, 8, 16, 32, 64, 1024)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 8 * counts[-1]
    assert PlanningOptions().evaluations_of(few, 2) == counts[-1]
    assert PlanningOptions(evaluations=7).evaluations_of(many, 2) == 7
    made = plan(few, Cluster(2, 1, 10.0), PlanningOptions(rounds=1))
    assert made.search[-1].evaluations == counts[-1]


def test_the_search_curve_counts_on_and_its_best_only_falls() -> None:
    made = plan(embeddings(6), small(), PlanningOptions(evaluations=300))
    counts = [sample.evaluations for sample in made.search]
    assert counts == sorted(counts)
    assert counts[-1] == 300 * len(made.rounds)
    bests = [sample.best_s for sample in made.search]
    assert bests == sorted(bests, reverse=True)
    assert all(sample.best_s <= sample.current_s for sample in made.search)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_its_own() -> None:
    first = plan(embeddings(6), small(), PlanningOptions(seed=5, evaluations=300)).to_json()
    assert plan(embeddings(6), small(), PlanningOptions(seed=5, evaluations=300)).to_json() == first
    assert plan(embeddings(6), small(), PlanningOptions(seed=6, evaluations=300)).to_json() != first


PLAN_IN_A_PROCESS = """
    from support.small_op_graphs import embeddings
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.alternation import plan
    from torch_topoopt.planner.options import PlanningOptions

    def report(progress):
        print("searching", flush=True)

    evaluations = {evaluations}
    options = PlanningOptions(seed=5, evaluations=evaluations)
    on_progress = report if evaluations > 300 else None
    made = plan(embeddings(6), Cluster(4, 2, 10.0), options, on_progress=on_progress)
    print(made.to_json(), end="")
"""


def started(evaluations: int, hash_seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PLAN_IN_A_PROCESS.format(evaluations=evaluations))],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_another_process_makes_the_same_plan_byte_for_byte() -> None:
    here = plan(embeddings(6), small(), PlanningOptions(seed=5, evaluations=300)).to_json()
    for hash_seed in ("1", "2"):
        out, err = started(300, hash_seed).communicate(timeout=limit_s(60))
        assert out == here, err


def test_ctrl_c_ends_a_search_at_once() -> None:
    process = started(10**9, "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=limit_s(30))
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err


def test_what_a_progress_callback_raises_ends_the_planning_and_leaves_nothing_running() -> None:
    seen: list[PlanProgress] = []

    def stop(progress: PlanProgress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        plan(embeddings(6), small(), PlanningOptions(evaluations=10**9), on_progress=stop)
    assert set(threading.enumerate()) <= before  # of which another test's may end meanwhile
    assert [progress.stage for progress in seen] == ["search"] * 3
    assert seen[-1].evaluations < 10_000


def test_an_interrupted_planning_has_the_best_so_far() -> None:
    op_graph, cluster = embeddings(8, table_bytes=10**8), small(8, 4)

    def stop(progress: PlanProgress) -> None:
        if progress.accepted > 50:
            raise KeyboardInterrupt

    planning = Planning(op_graph, cluster, PlanningOptions(evaluations=10**9), stop)
    assert planning.best_so_far() is None
    with pytest.raises(KeyboardInterrupt):
        planning.run()
    made = planning.best_so_far()
    assert made is not None
    assert len(made.rounds) == 1
    reference = plan(op_graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    assert made.prediction.iteration_s < reference.prediction.iteration_s
    estimate = predict(op_graph, cluster, made.network, made.strategy)
    assert made.prediction.iteration_s == pytest.approx(estimate.iteration_s, rel=1e-11)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("micro_batches", [1, (1, 4)])
def test_mode_best_is_never_worse_than_mode_paper(
    seed: int, micro_batches: int | tuple[int, ...]
) -> None:
    """Its rounds begin at the best pair of mode paper, pipelines included."""
    op_graph = random_graph(random.Random(seed), 9, splits=True)
    options = PlanningOptions(seed=seed, rounds=1, evaluations=60, micro_batches=micro_batches)
    paper, best = (
        plan(op_graph, small(8, 3), replace(options, mode=mode)) for mode in ("paper", "best")
    )
    assert best.prediction.iteration_s <= paper.prediction.iteration_s
    of_paper = best.rounds[: len(paper.rounds)]
    assert [entry.micro_batches for entry in of_paper] == [
        entry.micro_batches for entry in paper.rounds
    ]


def test_rounds_of_mode_paper_are_priced_as_the_result_of_mode_best() -> None:
    """Large groups cost less on schedules than on rings, so the first rounds change their price."""
    op_graph, cluster = embeddings(6, rows_bytes=10**7), small(8, 3)
    options = PlanningOptions(rounds=2, evaluations=60, mode="best")
    planning = Planning(op_graph, cluster, options)
    best, paper = planning.run(), planning.of_mode_paper
    assert paper is not None
    assert best.rounds[: len(paper.rounds)] != paper.rounds
    kept = [min(entry.strategy_s, entry.network_s) for entry in best.rounds if entry.accepted]
    assert kept == sorted(kept, reverse=True)
    printed = [s for entry in best.rounds for s in (entry.strategy_s, entry.network_s)]
    assert best.prediction.iteration_s == kept[-1] == min(printed)
    bests = [sample.best_s for sample in best.search]
    assert bests == sorted(bests, reverse=True)
    assert planning.priced(paper).prediction.iteration_s >= best.prediction.iteration_s


@pytest.mark.parametrize("large", [False, True])
def test_a_large_search_has_no_descents_on_rings_in_mode_best(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_graph, cluster = embeddings(6, rows_bytes=10**7), small(8, 3)
    options = PlanningOptions(rounds=2, evaluations=60)
    of_paper = plan(op_graph, cluster, options)
    on_schedules: list[bool] = []
    descend = descents.descend

    def record(problem: SearchProblem, *args: Any, **options: Any) -> Strategy:
        on_schedules.append(problem._problem.schedules)
        return descend(problem, *args, **options)

    monkeypatch.setattr(descents, "descend", record)
    monkeypatch.setattr(alternation, "LARGE_STEPS", 0 if large else math.inf)
    assert plan(op_graph, cluster, options) == of_paper
    assert not any(on_schedules)
    on_schedules.clear()
    best = Planning(op_graph, cluster, replace(options, mode="best"))
    made = best.run()
    assert set(on_schedules) == ({True} if large else {False, True})
    assert made.prediction.iteration_s <= best.priced(of_paper).prediction.iteration_s


def test_mode_best_descends_from_pairs_of_all_numbers_of_micro_batches() -> None:
    """The rounds of mode best have one number; those before had starts of others."""
    op_graph = chain(8)
    options = PlanningOptions(rounds=1, evaluations=20, mode="best", micro_batches=(1, 2, 4))
    made = plan(op_graph, small(8, 3), options)
    assert {entry.micro_batches for entry in made.rounds} == {1, 2, 4}


def test_ablations_leave_out_one_half() -> None:
    op_graph, cluster = embeddings(8, table_bytes=10**8, rows_bytes=10**7), small(8, 4)

    def planned(ablation: str, **more: str) -> Plan:
        return plan(op_graph, cluster, PlanningOptions(ablation=ablation, evaluations=500, **more))  # type: ignore[arg-type]

    both, search, topology = map(planned, ("both", "search-only", "topology-only"))
    default = plan(op_graph, cluster, PlanningOptions(strategy_space="data-parallel"))
    assert set(search.network.links) == set(default.network.links)
    assert set(topology.network.links) != set(default.network.links)
    assert len(topology.rounds) == 1
    assert all(entry.network_s == entry.strategy_s for entry in search.rounds)
    for half in (search, topology):
        assert both.prediction.iteration_s <= half.prediction.iteration_s * 1.02
        assert half.prediction.iteration_s < default.prediction.iteration_s
    searched = planned("search-only", mode="best")
    assert searched.prediction.iteration_s <= search.prediction.iteration_s


def test_progress_reports_every_round_and_both_stages() -> None:
    seen: list[PlanProgress] = []
    made = plan(embeddings(4), small(), PlanningOptions(evaluations=100), on_progress=seen.append)
    assert [p.round for p in seen] == sorted(p.round for p in seen)
    assert {(p.round, p.stage) for p in seen} == {
        (i + 1, stage) for i in range(len(made.rounds)) for stage in ("search", "network")
    }
    assert all(p.best_s <= p.current_s for p in seen)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ({"seed": -1}, ("seed", -1)),
        ({"rounds": 0}, ("rounds", 1)),
        ({"evaluations": -5}, ("evaluations", -5)),
        ({"strategy_space": "pipeline"}, ("strategy_space", "pipeline", "data-parallel")),
        (
            {"ablation": "none"},
            ("ablation", "none", "both", "search-only", "topology-only"),
        ),
        ({"mode": "magic"}, ("mode", "magic", "paper", "best")),
    ],
)
def test_arguments_out_of_range_are_named(
    arguments: dict[str, object], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        plan(chain(2), small(), PlanningOptions(**arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("space", ["full", "data-parallel"])
def test_a_cluster_that_cannot_run_the_model_is_refused(space: str) -> None:
    def refuse(op_graph: OpGraph, cluster: Cluster, *tokens: object) -> None:
        with refused(ValueError, *tokens):
            plan(op_graph, cluster, PlanningOptions(strategy_space=space))  # type: ignore[arg-type]

    if space == "data-parallel":
        refuse(chain(2), Cluster(65, 4, 10.0), "batch_size", 64, 65)
    refuse(chain(2), Cluster(4, 2, 10.0, accelerator="abacus"), "abacus")
    refuse(chain(2), Cluster(4, 1, 10.0), "degree", 1)
    refuse(embeddings(9, table_bytes=2 * 10**9), small(), "bytes", "memory", "layouts")


@pytest.mark.parametrize("space", ["full", "data-parallel"])
def test_on_a_network_that_is_there_only_the_strategy_is_planned(space: str) -> None:
    # Three ports on server 1: no cluster that TopologyFinder would wire.
    cables = [(0, 1), (1, 2), (1, 3)]
    ports = [0, 0, 0, 0]
    links = []
    for a, b in cables:
        link = Link(a, ports[a], b, ports[b])
        ports[a], ports[b] = ports[a] + 1, ports[b] + 1
        links += [link, link.reverse]
    network = network_of_cables(4, tuple(links), [Cable(pair, ("", ""), 10.0) for pair in cables])
    star = small(degree=3)
    made = plan(
        chain(6), star, PlanningOptions(strategy_space=space, network=network, evaluations=50)
    )
    assert made.mode == "fixed"
    assert made.network.links == network.links
    assert made.prediction.iteration_s > 0
    assert made.prediction.iteration_s == pytest.approx(
        predict(chain(6), star, made.network, made.strategy).iteration_s
    )
    assert Plan.from_json(made.to_json()) == made


@pytest.mark.parametrize("space", ["full", "data-parallel"])
def test_a_searched_network_is_never_worse_and_the_same_every_time(space: str) -> None:
    def planned(mode: str) -> Plan:
        return plan(
            embeddings(8, table_bytes=10**7, rows_bytes=10**6),
            small(8, 4),
            PlanningOptions(strategy_space=space, mode=mode, evaluations=100, rounds=2),
        )

    searched = planned("best")
    assert searched.mode == "best"
    assert searched.prediction.iteration_s <= planned("paper").prediction.iteration_s
    assert Plan.from_json(searched.to_json()) == searched
    assert planned("best").to_json() == searched.to_json()


def test_a_plan_places_only_as_is_executable() -> None:
    op_graph = embeddings(4, table_bytes=10**7)
    free = plan(op_graph, small(), PlanningOptions(evaluations=300))
    moved = [p.operator for p in free.strategy if len(p.servers) < 4]
    assert moved, "with tables this large some operator is placed on fewer servers"
    held = plan(
        op_graph,
        small(),
        PlanningOptions(
            evaluations=300, executable=lambda p: p.operator != moved[0] or len(p.servers) == 4
        ),
    )
    by_name = {placement.operator: placement.servers for placement in held.strategy}
    assert by_name[moved[0]] == (0, 1, 2, 3)
    assert any(len(servers) < 4 for servers in by_name.values())


def two_stages(op_graph: OpGraph) -> tuple[Placement, ...]:
    half = len(op_graph.operators) // 2
    return tuple(
        Placement(op.name, (0, 1) if i < half else (2, 3))
        for i, op in enumerate(op_graph.operators)
    )


@pytest.mark.parametrize("counts", [(1, 2, 8), (8, 1), "auto"])
def test_the_number_of_micro_batches_that_is_kept_is_the_fastest(
    counts: tuple[int, ...] | Literal["auto"],
) -> None:
    op_graph = chain(8, flops=10**10, output=10**6)
    stages = two_stages(op_graph)
    made = plan(
        op_graph, small(), PlanningOptions(strategy=stages, evaluations=0, micro_batches=counts)
    )
    each = {
        count: plan(
            op_graph, small(), PlanningOptions(strategy=stages, evaluations=0, micro_batches=count)
        )
        for count in ((1, 2, 4, 8, 16, 32) if counts == "auto" else counts)
    }
    best_s = min(one.prediction.iteration_s for one in each.values())
    assert made.prediction.iteration_s == best_s
    assert each[made.micro_batches].prediction.iteration_s == best_s
    assert made.micro_batches > 1


def test_several_numbers_of_micro_batches_share_the_first_round() -> None:
    op_graph = chain(8, flops=10**10, parameters=3 * 10**8, output=10**6)
    seen: list[PlanProgress] = []
    made = plan(
        op_graph,
        small(),
        PlanningOptions(evaluations=100, rounds=2, micro_batches=(1, 4, 16)),
        on_progress=seen.append,
    )
    assert [entry.micro_batches for entry in made.rounds] == [1, 4, 16, made.micro_batches]
    assert made.search[-1].evaluations == 200
    numbers = [sample.evaluations for sample in made.search]
    assert numbers == sorted(numbers)
    assert {now.round for now in seen} == {1, 2}
    assert all(now.evaluations <= now.budget == 100 for now in seen)
    alone = plan(op_graph, small(), PlanningOptions(evaluations=100, rounds=2, micro_batches=1))
    assert made.prediction.iteration_s < alone.prediction.iteration_s


def test_numbers_of_micro_batches_that_fit_nowhere_are_left_out() -> None:
    # 2.5 GB of activations on each of 4 servers of 4 GiB, for 4 layers: half a batch fits
    op_graph = chain(4, parameters=0, output=10 * 10**9)
    made = plan(op_graph, small(), PlanningOptions(evaluations=20, micro_batches=(1, 4)))
    assert made.micro_batches == 4
    with refused(ValueError, "bytes", "memory"):
        plan(op_graph, small(), PlanningOptions(evaluations=20, micro_batches=(1, 2)))
    with refused(ValueError, "micro_batches", 3, 64):
        plan(op_graph, small(), PlanningOptions(micro_batches=(1, 3)))
    with refused(ValueError, "micro_batches", "choose"):
        plan(op_graph, small(), PlanningOptions(micro_batches=()))
