"""After a failure, the processes that are left make a smaller group, again and again."""

from __future__ import annotations

import functools
import json
import os
import signal

import pytest
import torch
import torch.distributed as dist
from support.backend.networks import plan_of, ring
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.runtime import backend
from torch_topoopt.runtime.job_network import lay_out

ABORT = dist.distributed_c10d._abort_process_group


def check_sums(identity: int, left: list[int]) -> None:
    """The inputs of the processes `left`, and nothing else, arrive at all of them."""
    expected = float(sum(i + 1 for i in left))
    for count in (5, 200_003):
        total = torch.full((count,), identity + 1.0)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((count,), expected))
    received = torch.empty(len(left), dtype=torch.int64)
    dist.all_to_all_single(received, 100 * identity + torch.arange(len(left)))
    assert received.tolist() == [100 * i + left.index(identity) for i in left]


def reduce_until_it_fails() -> None:
    while True:  # an operation may be over before a death is noticed
        dist.all_reduce(torch.ones(100))


def survive(identity: int, world: int, dying: list[int], leave: list[str]) -> list[int]:
    """One life after the other; at the end of each, one process kills itself.

    An error notifies the others, which leave the group and meet again under another prefix. Returns
    the server that this process was on, life by life.
    """
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    left = list(range(world))
    servers = []
    for life in range(len(dying) + 1):
        dist.init_process_group(
            "topoopt",
            store=dist.PrefixStore(f"life{life}", store),
            rank=left.index(identity),
            world_size=len(left),
        )
        check_sums(identity, left)
        job = backend.jobs[-1]
        servers.append(job.layout.server_of[job.place.index])
        if life == len(dying):
            break
        store.set(f"checked{life}.{identity}", "")
        if identity == dying[life]:
            # it may relay for the others what they have not received yet
            store.wait([f"checked{life}.{other}" for other in left])
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError):
            reduce_until_it_fails()
        left.remove(dying[life])
        {"abort": ABORT, "destroy": dist.destroy_process_group}[leave[life]]()
    dist.destroy_process_group()
    return servers


# Module level, for ranks are other processes.
twice = functools.partial(survive, dying=[3, 0], leave=["abort", "destroy"])
thrice = functools.partial(survive, dying=[2, 4, 1], leave=["destroy", "abort", "abort"])


def results(outcomes: list, dead: set[int]) -> list:
    for rank in dead:
        assert outcomes[rank].exit_code == -signal.SIGKILL
    failed = {r: o.error for r, o in enumerate(outcomes) if r not in dead and o.error}
    assert not failed, failed
    return [outcome.value for rank, outcome in enumerate(outcomes) if rank not in dead]


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_survivors_without_a_plan_discover_their_network_anew(shared_memory):
    outcomes = run_bare_ranks(4, twice, TOPOOPT_SHARED_MEMORY=shared_memory)
    assert len(results(outcomes, {0, 3})) == 2


def test_survivors_under_a_plan_use_the_links_between_them(tmp_path):
    # 5 servers with 4 ports each: all are neighbours, whichever are gone
    outcomes = run_ranks(make_plan(5, 4), tmp_path, thrice)
    assert results(outcomes, {1, 2, 4}) == [[0] * 4, [3] * 4]
    for server in (0, 3):  # the processes are called what they were called at first
        document = json.loads((tmp_path / f"links-rank{server}.json").read_text())
        assert (document["rank"], document["server"]) == (server, server)
        sent = {link["target"]: link["sent_bytes"] for link in document["links"]}
        assert set(sent) == {0, 1, 2, 3, 4} - {server}, "also to those gone before the last life"
        assert all(sent.values())


relay = functools.partial(survive, dying=[2], leave=["abort"])


def test_survivors_of_a_ring_relay_around_the_gap(tmp_path):
    outcomes = run_ranks(plan_of(4, ring(4)), tmp_path, relay)
    assert len(results(outcomes, {2})) == 3


leader = functools.partial(survive, dying=[2, 3], leave=["abort", "abort"])


def test_a_server_that_lost_its_leader_goes_on_with_its_other_rank(tmp_path):
    outcomes = run_ranks(plan_of(3, ring(3)), tmp_path, leader, world=6)
    assert results(outcomes, {2, 3}) == [[0] * 3, [0] * 3, [2] * 3, [2] * 3]


apart = functools.partial(survive, dying=[0, 2], leave=["abort", "abort"])


def test_survivors_without_a_route_between_them_get_the_reason(tmp_path):
    outcomes = run_ranks(plan_of(4, ring(4)), tmp_path, apart)
    for rank in (1, 3):
        assert "DisconnectedError" in outcomes[rank].error
        assert (
            "servers 1 and 3 cannot reach each other over the plan's links without servers 0, 2"
        ) in outcomes[rank].error


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        ([None] * 4, [0, 0, 1, 1]),
        ([1, 0], [1, 0]),
        ([1, 1, 1], [1, 1, 1]),
        ([0, None], [0, 1]),  # a new process in the place of one that is gone
    ],
)
def test_processes_stay_on_their_servers_and_new_ones_follow_the_order(known, answer):
    assert lay_out(known, 2) == answer


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        (
            [1, None],
            "rank 1 is new to this job, so ranks must be on servers in their order, "
            "but rank 0 is on server 1, not 0",
        ),
        (
            [None] * 3,
            "the plan is for 2 servers, but this job has 3 ranks; every server needs "
            "equally many, so start 2 ranks or a multiple of it",
        ),
    ],
)
def test_processes_that_fit_no_servers_are_an_error(known, problem):
    with pytest.raises(DocumentError) as raised:
        lay_out(known, 2)
    assert str(raised.value) == problem


def abort_one_of_two(rank: int, world: int) -> float:
    dist.init_process_group("topoopt")
    other = dist.new_group()
    ABORT(other)
    total = torch.ones(3)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.sum().item()


def test_aborting_one_group_leaves_the_others_alone(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, abort_one_of_two)
    assert [outcome.value for outcome in outcomes] == [6.0, 6.0]
