"""Jobs on a fabric: times, bytes, and when the scheme is asked."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import refused

from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.schemes import SCHEMES, local_search_paths
from torch_topoopt.shared_networks.routed.host_fabric import HostFabric
from torch_topoopt.shared_networks.routed.ring_jobs import (
    MODELS,
    RingJob,
    SplitModel,
    draw_jobs,
)
from torch_topoopt.shared_networks.routed.run_jobs import SpineFailure, run_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL = HostFabric(8, 4, 4, 100.0)
TINY = SplitModel("tiny", 12.5e9, 2, 2, 4)  # 12.5 GB a part: a second of a link


def tiny_jobs(count: int, copies: int, seed: int, **other: Any) -> list[RingJob]:
    return draw_jobs(
        *(SMALL, [TINY] * count, copies, {"tiny": 1.5}),
        **{"placed_by": "hosts", "arrivals_within_s": 2.0, "seed": seed, **other},
    )


def crossing(fabric: HostFabric, jobs: Sequence[RingJob]) -> list[SwitchedFlow]:
    """The flows of all rings that leave their ToR."""
    ends = [
        (fabric.tor_of(source), fabric.tor_of(target))
        for job in jobs
        for ring in job.rings
        for source, target in itertools.pairwise((*ring, ring[0]))
    ]
    return [SwitchedFlow(*pair) for pair in ends if pair[0] != pair[1]]


@pytest.mark.parametrize(("copies", "seconds"), [(2, 1.1733), (4, 1.7600)])
@pytest.mark.parametrize("scheme", ["colouring", "local-search", "exact"])
def test_one_job_takes_what_the_authors_code_gives(
    scheme: str, copies: int, seconds: float
) -> None:
    jobs = draw_jobs(HostFabric(), [MODELS["bloom"]], copies, {"bloom": 1.0}, seed=2)
    for in_rounds in (True, False):
        found = run_jobs(HostFabric(), jobs, scheme, iterations=2, in_rounds=in_rounds)
        for iteration in found.jobs[0].iterations:
            assert iteration.all_reduce_s == pytest.approx(seconds, abs=5e-5)
            assert iteration.flow_gbps == pytest.approx(100)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("seed", range(4))
def test_alone_a_job_is_slowed_by_the_busiest_link_at_most(scheme: str, seed: int) -> None:
    jobs = tiny_jobs(1, 4, seed)
    found = run_jobs(SMALL, jobs, scheme, iterations=1, seed=seed).jobs[0].iterations[0]
    problem = RoutingProblem(SMALL.whole, crossing(SMALL, jobs))
    busiest = 1.0
    if problem.flows:
        seed_of = 1000 * seed if scheme == "ecmp" else seed
        busiest = max(1.0, problem.max_link_load(SCHEMES[scheme](problem, seed_of)))
    alone_s = jobs[0].rounds * jobs[0].round_bytes / SMALL.bytes_per_s
    assert alone_s * (1 - 1e-6) <= found.all_reduce_s <= busiest * alone_s * (1 + 1e-6)


@pytest.mark.parametrize("scheme", ["ecmp", "greedy", "local-search"])
@pytest.mark.parametrize("in_rounds", [True, False])
def test_every_iteration_sends_the_same_bytes_and_no_link_is_overfull(
    scheme: str, in_rounds: bool
) -> None:
    jobs = tiny_jobs(3, 2, 5)
    found = run_jobs(SMALL, jobs, scheme, iterations=4, in_rounds=in_rounds)
    for job, outcome in zip(jobs, found.jobs, strict=True):
        hosts = sum(map(len, job.rings))
        for iteration in outcome.iterations:
            sent_bytes = hosts * job.rounds * job.round_bytes
            assert iteration.sent_bytes == pytest.approx(sent_bytes)
            assert iteration.flows == hosts * (job.rounds if in_rounds else 1)
            assert iteration.flow_gbps <= SMALL.link_gbps * (1 + 1e-6)
            assert iteration.completion_s <= iteration.all_reduce_s * (1 + 1e-6)
        for before, after in itertools.pairwise(outcome.iterations):
            ended = before.began_s + before.all_reduce_s
            assert after.began_s == pytest.approx(ended + job.compute_s)
        assert outcome.iterations[0].began_s == pytest.approx(job.arrival_s + job.compute_s)


@pytest.mark.parametrize("scheme", ["ecmp", "annealing", "local-search"])
def test_the_same_arguments_give_the_same_times(scheme: str) -> None:
    jobs = tiny_jobs(4, 2, 1)
    once, again = (run_jobs(SMALL, jobs, scheme, iterations=3, seed=9) for _ in range(2))
    assert once.jobs == again.jobs
    assert once.scheme_flows == again.scheme_flows
    assert len(once.scheme_s) == len(once.scheme_flows)


def test_the_scheme_sees_all_flows_at_hand_and_the_spines_that_live() -> None:
    jobs = [
        RingJob(TINY, ((0, 1, 2, 3), (4, 5, 6, 7)), 0.0, 1.0),
        RingJob(TINY, ((8, 9, 10, 11), (12, 13, 14, 15)), 0.5, 1.0),
    ]
    asked: list[tuple[int, int | None]] = []

    def recording(problem: RoutingProblem, seed: int) -> list[int]:
        asked.append((len(problem.flows), problem.network.common_spines))
        return local_search_paths(problem, seed)

    failure = SpineFailure(1.75, 2)
    found = run_jobs(SMALL, jobs, recording, iterations=1, failures=[failure])
    # At 1 s the first job's 8 flows, at 1.5 s all 16; then a spine of four dies: ToRs have 4 flows
    # for 3 spines, so that some are half as fast for what is left of the second round, 0.25 s.
    assert asked == [(8, 4), (16, 4), (16, 3), (8, 3)]
    first, second = (outcome.iterations[0] for outcome in found.jobs)
    assert first.all_reduce_s == pytest.approx(0.75 + 2 * 0.25)
    assert 1.0 < second.all_reduce_s < 2.0


def test_ecmp_keeps_its_paths_until_a_spine_dies() -> None:
    jobs = tiny_jobs(2, 2, 3)
    assert len(run_jobs(SMALL, jobs, "ecmp", iterations=5).scheme_s) == 2, "once for each job"
    failure = SpineFailure(3.0, 1)
    found = run_jobs(SMALL, jobs, "ecmp", iterations=5, failures=[failure])
    assert len(found.scheme_s) == 4


@pytest.mark.parametrize("scheme", ["ecmp", "local-search"])
def test_tensor_and_pipeline_messages_are_sent_before_the_all_reduce(scheme: str) -> None:
    copies = ((0, 1, 2, 3), (4, 5, 6, 7))  # a ToR each
    for tensor_bytes, pipeline_bytes in ((5e9, 0.0), (0.0, 2e9), (5e9, 2e9)):
        job = RingJob(TINY, copies, 0.25, 1.0, tensor_bytes, pipeline_bytes)
        assert len(job.exchanges) == 4 * (tensor_bytes > 0) + 4 * (pipeline_bytes > 0)
        found = run_jobs(SMALL, [job], scheme, iterations=2).jobs[0].iterations
        # A host sends to one host of its stage and to one of the other stage.
        seconds = (tensor_bytes + pipeline_bytes) / SMALL.bytes_per_s
        assert [of.exchange_s for of in found] == pytest.approx([seconds] * 2)
        assert found[0].began_s == pytest.approx(0.25 + 1.0 + seconds)
        ended_s = found[0].began_s + found[0].all_reduce_s
        assert found[1].began_s == pytest.approx(ended_s + 1.0 + seconds)
        assert found[0].sent_bytes == pytest.approx(8 * job.rounds * job.round_bytes)
    assert not RingJob(TINY, copies, 0.0, 1.0).exchanges


def test_messages_of_several_stages_go_to_both_neighbours() -> None:
    model = SplitModel("deep", 1e9, 2, 3)
    job = RingJob(model, (tuple(range(6)), tuple(range(6, 12))), 0.0, 1.0, 0.0, 10.0)
    pairs = {frozenset(ends) for hops, _ in job.exchanges for ends in hops}
    expected = [(0, 2), (1, 3), (2, 4), (3, 5), (6, 8), (7, 9), (8, 10), (9, 11)]
    assert pairs == set(map(frozenset, expected))
    assert all(hops == ((a, b), (b, a)) for hops, _ in job.exchanges for a, b in hops[:1])


@pytest.mark.parametrize("seed", range(3))
def test_paths_that_arrive_late_are_those_of_ecmp_until_then(seed: int) -> None:
    jobs = tiny_jobs(3, 2, seed)
    how: dict[str, Any] = {"iterations": 2, "seed": seed, "in_rounds": False}
    ecmp, best = (run_jobs(SMALL, jobs, name, **how).jobs for name in ("ecmp", "local-search"))
    never = run_jobs(SMALL, jobs, "local-search", control_s=1e6, **how)
    assert never.jobs == ecmp
    assert not never.scheme_s
    assert run_jobs(SMALL, jobs, "local-search", control_s=0.0, **how).jobs == best
    late = run_jobs(SMALL, jobs[:1], "local-search", control_s=0.05, **how).jobs[0]
    alone = run_jobs(SMALL, jobs[:1], "local-search", **how).jobs[0]
    for slow, fast in zip(late.iterations, alone.iterations, strict=True):
        assert fast.all_reduce_s * (1 - 1e-9) <= slow.all_reduce_s
        assert slow.all_reduce_s <= (fast.all_reduce_s + 0.05) * (1 + 1e-9)


def test_a_dead_spine_is_left_at_once_also_if_the_controller_is_slow() -> None:
    fabric = HostFabric(2, 2, 1)
    job = RingJob(SplitModel("one", 12.5e9, 1, 1), ((0,), (1,)), 0.0, 0.0)
    for spine in (0, 1):
        failures = [SpineFailure(0.5, spine)]
        found = run_jobs(
            fabric, [job], "greedy", iterations=1, failures=failures, control_s=9.0
        ).jobs[0]
        alone_s = job.rounds * job.round_bytes / fabric.bytes_per_s
        assert found.iterations[0].all_reduce_s == pytest.approx(alone_s)


def test_cross_traffic_shares_links_with_jobs() -> None:
    fabric = HostFabric(2, 1, 2)
    job = RingJob(SplitModel("one", 12.5e9, 1, 1), ((0,), (2,)), 0.0, 1.0)
    alone_s = job.rounds * job.round_bytes / fabric.bytes_per_s
    for traffic, sharing in (([], 1), ([(1, 3)], 2), ([(1, 3), (1, 3)], 3), ([(0, 1)], 2)):
        for scheme in ("ecmp", "local-search"):
            found = run_jobs(fabric, [job], scheme, iterations=2, cross_traffic=traffic)
            for iteration in found.jobs[0].iterations:
                assert iteration.all_reduce_s == pytest.approx(sharing * alone_s)


@pytest.mark.parametrize(
    ("scheme", "other", "tokens"),
    [
        ("fastest", {}, ("scheme", "fastest")),
        ("local-search", {"iterations": 0}, ("iterations", 0, 1)),
        ("local-search", {"control_s": -1.0}, ("control_s", -1.0, 0)),
        ("local-search", {"cross_traffic": [(0, 0)]}, ("cross_traffic[0]", 0, 32)),
        ("local-search", {"cross_traffic": [(0, 1), (0, 32)]}, ("cross_traffic[1]", 32)),
        ("local-search", {"failures": [SpineFailure(0.0, 9)]}, ("spine", 9, 4)),
    ],
)
def test_what_cannot_run_is_named(
    scheme: str, other: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        run_jobs(SMALL, tiny_jobs(1, 2, 0), scheme, **other)


def test_hosts_have_one_job() -> None:
    job = RingJob(TINY, ((0, 1, 2, 3), (4, 5, 6, 7)), 0.0, 1.0)
    with refused(ValueError, "jobs[1]", "host 0"):
        run_jobs(SMALL, [job, job], "local-search")
    with refused(ValueError, "jobs[0]", "host 7", 4):
        run_jobs(HostFabric(2, 2, 2), [RingJob(TINY, ((0, 1), (7, 2)), 0.0, 1.0)], "local-search")
