"""Many jobs on one cluster: who waits, for how long, and what sharing costs."""

from __future__ import annotations

import json
import math
import random
from dataclasses import astuple, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.refusals import refused
from support.small_op_graphs import graph, one_all_reduce, operator

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.result_json import plain
from torch_topoopt.shared_networks.job_mix import jobs_of, shared_out
from torch_topoopt.shared_networks.jobs_file import (
    ClusterJob,
    JobMix,
    ModelShare,
    PatchPanels,
    SharedCluster,
)
from torch_topoopt.shared_networks.outcome import JobOutcome, NetworkOutcome
from torch_topoopt.shared_networks.placement import choose_servers, spread
from torch_topoopt.shared_networks.shards import shard_schedule
from torch_topoopt.shared_networks.simulate import simulate_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.op_graph import OpGraph

ALL = ("topoopt", "ideal-switch", "fat-tree", "oversubscribed-fat-tree", "leaf-spine")
SMALL: dict[str, Any] = {
    "version": 1,
    "cluster": {"servers": 16, "degree": 4, "link_gbps": 25.0},
    "architectures": [{"name": name} for name in ALL],
    "jobs": [
        {"model": "big", "servers": 8, "iterations": 10},
        {"model": "small", "servers": 5, "iterations": 40},
        {"model": "big", "servers": 8, "arrival_s": 0.5, "iterations": 5},
        {"model": "small", "servers": 5, "arrival_s": 1.0, "iterations": 3},
    ],
    "planning": {"evaluations": 50, "rounds": 1},
}
BYTES = {"big": 4 * 10**8, "small": 10**8}


@lru_cache
def graph_of(model: str, accelerators: int) -> OpGraph:
    """Enough to compute that every server takes its part, and one AllReduce."""
    return graph(
        operator("layer", flops=5 * 10**10, parameters=BYTES[model]), model=model, batch_size=40
    )


def document(**changes: Any) -> SharedCluster:
    return SharedCluster.from_json(json.dumps({**SMALL, **changes}))


@lru_cache
def outcomes(rule: str = "first-fit") -> dict[str, NetworkOutcome]:
    found = simulate_jobs(document(placement=rule), graph_of)
    return {outcome.network: outcome for outcome in found}


def test_every_job_runs_and_the_same_document_gives_the_same_outcomes() -> None:
    found = outcomes()
    assert tuple(found) == ALL
    for outcome in found.values():
        for job in outcome.jobs:
            assert job.arrival_s <= job.start_s < job.end_s < math.inf
        assert 0 < outcome.utilisation <= 1
        assert outcome.fragmentation >= 1
    again = simulate_jobs(document(), graph_of)
    assert [plain(o) for o in again] == [plain(o) for o in found.values()]
    json.dumps([plain(o) for o in again], allow_nan=False)


def test_jobs_run_for_as_long_as_their_iterations_take() -> None:
    for outcome in outcomes().values():
        for job, asked in zip(outcome.jobs, document().jobs, strict=True):
            assert asked.iterations is not None
            assert job.end_s - job.start_s == pytest.approx(asked.iterations * job.iteration_s)
            assert job.weights.sum() == pytest.approx(asked.iterations)


@pytest.mark.parametrize("rule", ["first-fit", "packed", "random"])
def test_jobs_wait_on_switches_if_and_only_if_servers_are_short(rule: str) -> None:
    for name, outcome in outcomes(rule).items():
        if name == "topoopt":
            continue
        before_s = 0.0
        for number, job in enumerate(outcome.jobs):
            held = sum(
                other.servers
                for other in outcome.jobs[:number]
                if other.start_s <= job.arrival_s < other.end_s
            )
            queued = any(other.start_s > job.arrival_s for other in outcome.jobs[:number])
            assert (job.waiting_s > 0) == (queued or held + job.servers > 16)
            assert job.start_s >= before_s  # none overtakes another
            before_s = job.start_s


def test_jobs_alone_and_on_an_ideal_switch_take_the_same_at_any_load() -> None:
    ideal = outcomes()["ideal-switch"]
    assert {job.model: job.iteration_s for job in ideal.jobs[:2]} == {
        job.model: pytest.approx(job.iteration_s, rel=1e-9) for job in ideal.jobs[2:]
    }
    # an AllReduce over the ring that all ports make has the bandwidth of the ideal switch
    for shard, job in zip(outcomes()["topoopt"].jobs, ideal.jobs, strict=True):
        assert shard.iteration_s == pytest.approx(job.iteration_s, rel=1e-3)


def test_an_oversubscribed_tree_is_never_faster_than_an_ideal_switch() -> None:
    for rule in ("first-fit", "random"):
        found = outcomes(rule)
        for tree, ideal in zip(
            found["oversubscribed-fat-tree"].jobs, found["ideal-switch"].jobs, strict=True
        ):
            assert tree.iteration_s >= ideal.iteration_s * (1 - 1e-9)
    assert outcomes("random")["leaf-spine"].fragmentation > 1


def test_a_tree_that_costs_more_than_topoopt_at_any_rate_needs_a_rate_of_its_own() -> None:
    cluster = {"servers": 16, "degree": 2, "link_gbps": 25.0}
    trees = [{"name": "fat-tree"}]
    with refused(ValueError, "architectures", "fat-tree", "server_gbps"):
        simulate_jobs(document(cluster=cluster, architectures=trees), graph_of)
    trees = [{"name": "fat-tree", "server_gbps": 50}]
    (outcome,) = simulate_jobs(document(cluster=cluster, architectures=trees), graph_of)
    assert (outcome.network, outcome.server_gbps) == ("fat-tree 50 Gb/s", 50.0)


def test_jobs_without_an_end_are_measured_as_they_go_on() -> None:
    jobs = [{"model": "big", "servers": 8}] * 2 + [
        {"model": "small", "servers": 5, "arrival_s": 2.0}
    ] * 2
    for outcome in simulate_jobs(document(jobs=jobs), graph_of):
        assert [job.start_s < math.inf for job in outcome.jobs] == [True, True, False, False]
        assert {job.end_s for job in outcome.jobs} == {math.inf}
        assert outcome.utilisation == 1.0
        assert astuple(outcome.iterations("small")) == (pytest.approx(math.nan, nan_ok=True),) * 2
        assert plain(outcome)["jobs"][-1]["end_s"] is None


def test_a_model_that_takes_no_time_is_refused() -> None:
    with refused(ValueError, "big", "iteration"):
        simulate_jobs(document(), lambda model, accelerators: one_all_reduce(10**6))


JOBS = tuple(ClusterJob("big", 4, 100.0 * i, 100) for i in range(4))


def test_look_ahead_hides_the_time_of_the_robots() -> None:
    """Two jobs at a time have the servers: the third is wired while the first runs."""
    times = [10.0] * 4
    ahead = shard_schedule(JOBS, times, 8, PatchPanels(patch_panel_s=300.0, flip_s=0.5))
    assert [job.reconfiguration_s for job in ahead] == [0.5] * 4
    assert [job.start_s for job in ahead] == [0.5, 100.5, 1001.0, 1101.0]
    without = shard_schedule(JOBS, times, 8, PatchPanels(look_ahead=False))
    assert [job.reconfiguration_s for job in without] == [300.0] * 4
    assert [job.start_s for job in without] == [300.0, 400.0, 1600.0, 1700.0]


def test_look_ahead_begins_when_a_job_is_known_and_its_ports_are_free() -> None:
    panels = PatchPanels(patch_panel_s=300.0, flip_s=0.0, announced_s=0.0)
    first, *_ = shard_schedule(JOBS, [10.0] * 4, 8, panels)
    assert first.start_s == 300.0  # nobody knew of it
    # of jobs shorter than a wiring the second sides are not free in time
    brief = tuple(ClusterJob("big", 8, 0.0, 1) for _ in range(4))
    panels = PatchPanels(patch_panel_s=300.0, flip_s=0.0)
    found = shard_schedule(brief, [10.0] * 4, 8, panels)
    assert [job.start_s for job in found] == [0.0, 10.0, 310.0, 610.0]


def test_a_mix_is_shared_out_by_largest_remainders() -> None:
    entries = (("a", 40), ("b", 30), ("c", 20), ("d", 10))
    mix = JobMix(tuple(ModelShare(name, share) for name, share in entries), 5, 4)
    assert shared_out(mix) == ["a", "a", "b", "b", "c"]  # 2, 1.5, 1, 0.5: of equal rests the first
    assert shared_out(replace(mix, jobs=10)) == list("aaaabbbccd")


def test_poisson_arrivals_have_the_load_that_is_asked_for() -> None:
    mix = JobMix((ModelShare("a", 1.0),), 4000, 4, "poisson", 0.5, 10)
    asked = replace(document(), jobs=(), mix=mix)
    jobs = jobs_of(asked, lambda model, servers: 2.0)
    # 4 of 16 servers for 20 s: at half load one job each 10 s
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(10.0, rel=0.05)
    assert jobs == jobs_of(asked, lambda model, servers: 2.0)
    assert jobs != jobs_of(replace(asked, seed=1), lambda model, servers: 2.0)


def test_placement_takes_free_servers_as_its_rule_says() -> None:
    switch_of = [100 + server // 4 for server in range(16)]
    free = {1, 2, 3, 4, 5, 8, 9, 10, 11, 15}
    rng = random.Random(0)
    assert choose_servers("first-fit", free, 4, switch_of, rng) == (1, 2, 3, 4)
    assert choose_servers("packed", free, 4, switch_of, rng) == (8, 9, 10, 11)
    assert choose_servers("packed", free, 2, switch_of, rng) == (4, 5)
    assert choose_servers("packed", free, 6, switch_of, rng) == (4, 5, 8, 9, 10, 11)
    drawn = choose_servers("random", free, 5, switch_of, rng)
    assert drawn is not None
    assert len(set(drawn) & free) == 5
    assert choose_servers("first-fit", free, 11, switch_of, rng) is None
    assert spread((1, 2, 3, 4), switch_of) == 2.0
    assert spread((8, 9, 10, 11), switch_of) == 1.0


def test_every_job_counts_alike_in_mean_and_tail() -> None:
    def job(times: list[float], weights: list[float]) -> JobOutcome:
        return JobOutcome("a", 1, 0.0, 0.0, 1.0, np.array(times), np.array(weights))

    quick, slow = job([1.0, 3.0], [300.0, 100.0]), job([10.0], [2.0])
    outcome = NetworkOutcome("x", 1.0, (quick, slow), 1.0, 1.0)
    assert astuple(outcome.iterations()) == (pytest.approx((1.5 + 10.0) / 2), 10.0)
    assert astuple(outcome.iterations("b")) == (pytest.approx(math.nan, nan_ok=True),) * 2


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"jobs": []}, ("jobs", "mix")),
        ({"jobs": [{"model": "big", "servers": 17}]}, ("jobs[0].servers", 17, "1..16")),
        ({"jobs": [{"model": "big", "server": 1}]}, ("jobs[0].server", "unknown")),
        (
            {"jobs": [{"model": "big", "servers": 2}]},
            ("jobs[0].servers", "TopoOpt", 2, 4),
        ),
        (
            {"jobs": [{"model": "big", "servers": 4, "iterations": 0}]},
            ("jobs[0].iterations", 0, 1),
        ),
        (
            {"jobs": [{"model": "big", "servers": 4, "arrival_s": -1.0}]},
            ("jobs[0].arrival_s", -1.0, 0),
        ),
        ({"architectures": []}, ("architectures", "none")),
        ({"architectures": [{"name": "tree"}]}, ("architectures[0].name", "tree")),
        (
            {"architectures": [{"name": "fat-tree"}] * 2},
            ("architectures[1]", "fat-tree"),
        ),
        (
            {"architectures": [{"name": "topoopt", "server_gbps": 1.0}]},
            ("architectures[0].server_gbps", "TopoOpt"),
        ),
        (
            {"cluster": {"servers": 0, "degree": 2, "link_gbps": 1}},
            ("cluster.servers", 1, 0),
        ),
        ({"placement": "best"}, ("placement", "best")),
        ({"patch_panels": {"flip_s": -1}}, ("patch_panels.flip_s", -1.0)),
        ({"samples": 0}, ("samples", 0, "1..1000")),
        ({"seed": -1}, ("seed", -1, 0)),
        ({"version": 2}, ("version", 2)),
    ],
)
def test_a_bad_field_is_one_line(changes: dict[str, Any], tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens) as error:
        document(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"arrivals": "poisson", "load": 0.5}, ("mix.iterations", "missing")),
        ({"arrivals": "poisson", "iterations": 5}, ("mix.load", "missing")),
        ({"load": 0.5}, ("mix.load", 0.5)),
        ({"models": []}, ("mix.models",)),
        ({"models": [{"model": "a", "share": 0}]}, ("mix.models[0].share", 0.0, 0)),
        ({"jobs": 0}, ("mix.jobs", 0, 1)),
        ({"servers": 17}, ("mix.servers", 17, "1..16")),
    ],
)
def test_a_bad_mix_is_one_line(changes: dict[str, Any], tokens: tuple[object, ...]) -> None:
    mix = {"models": [{"model": "big", "share": 1}], "jobs": 2, "servers": 4, **changes}
    with refused(DocumentError, *tokens):
        document(jobs=[], mix=mix)


def test_a_document_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.json")
    document().save(path)
    assert SharedCluster.load(path) == document()
