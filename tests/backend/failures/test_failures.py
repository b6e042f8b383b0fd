"""When something fails, every rank is notified soon, and with the reason."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks
from support.limits import limit_s

from torch_topoopt.plan.codec import DocumentError


def die_without_a_word(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(10))


def test_a_killed_rank_fails_the_others_and_is_named(tmp_path):
    outcomes = run_ranks(make_plan(5, 2), tmp_path, die_without_a_word)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for rank in (0, 1, 3, 4):
        assert "DistBackendError" in outcomes[rank].error
        assert "server 2" in outcomes[rank].error or "rank 2" in outcomes[rank].error


def raise_an_exception(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    dist.barrier()
    if rank == 1:
        raise ArithmeticError("the loss is not a number")
    dist.all_reduce(torch.ones(10))


def test_an_exception_on_one_rank_reaches_the_others(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, raise_an_exception)
    for rank in (0, 2, 3):
        assert "the loss is not a number" in outcomes[rank].error


def test_who_failed_is_named_also_through_shared_memory():
    for _ in range(2):  # memory or a message may notify a rank first
        outcomes = run_bare_ranks(4, raise_an_exception)
        for rank in (0, 2, 3):
            assert "rank 1 failed: ArithmeticError: the loss" in outcomes[rank].error


def leave_early(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    dist.barrier()
    if rank != 3:
        dist.all_reduce(torch.ones(10))
    dist.destroy_process_group()


def test_waiting_for_a_rank_that_has_left_fails(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, leave_early)
    assert outcomes[3].error is None
    for rank in (0, 1, 2):
        assert "rank 3 has left the job" in outcomes[rank].error


def never_come(rank: int, world: int) -> str:
    dist.init_process_group("topoopt")
    late = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 1:
        store = dist.distributed_c10d._get_default_store()
        store.wait([f"failed/{r}" for r in range(world) if r != 1], timedelta(seconds=limit_s(30)))
        return ""
    try:
        dist.all_reduce(torch.ones(10), group=late)
    except dist.DistBackendError as error:
        dist.distributed_c10d._get_default_store().set(f"failed/{rank}", "1")
        return str(error)
    return "no error"


def test_a_timeout_names_the_operation_and_who_is_missing(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, never_come)
    assert "all_reduce (operation 0 of group" in outcomes[0].value
    assert " Timed out after 1000 ms: rank 1 has not called it: it is in no" in outcomes[0].value


def disagree(rank: int, world: int) -> str:
    dist.init_process_group("topoopt")
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(10 + rank))
    return str(caught.value)


def test_different_shapes_are_an_error_not_a_wrong_sum(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, disagree)
    assert ["disagree" in outcome.value for outcome in outcomes] == [True] * 4, outcomes


def abort_while_others_wait(rank: int, world: int) -> str:
    dist.init_process_group("topoopt")
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"past/{rank}", "1")  # rank 0 leaves the barrier before the others may have done so
    if rank == 0:
        store.wait([f"past/{r}" for r in range(world)], timedelta(seconds=limit_s(30)))
        dist.distributed_c10d._get_default_group().abort()
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(10))
    return str(caught.value)


def test_abort_wakes_the_ranks_that_wait(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, abort_while_others_wait)
    assert all("aborted by rank 0" in outcome.value for outcome in outcomes[1:])


def wait_with_a_limit(rank: int, world: int) -> float:
    dist.init_process_group("topoopt")
    tensor = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(dist.DistBackendError, match=" Timed out after 50 ms"):
            work.wait(timedelta(milliseconds=50))
        dist.distributed_c10d._get_default_store().set("go", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().wait(["go"], timedelta(seconds=limit_s(30)))
        dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor[0].item()


def test_the_limit_of_a_wait_does_not_harm_the_operation(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, wait_with_a_limit)
    assert [outcome.value for outcome in outcomes] == [2.0, 2.0]


def just_start(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")


def test_a_plan_for_another_world_size_is_refused(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, just_start, world=2)
    for outcome in outcomes:
        assert "the plan is for 4 servers, but this job has 2 ranks" in outcome.error
        assert outcome.error.startswith(DocumentError.__name__)


def start_with_half_a_plan(rank: int, world: int) -> None:
    del os.environ["TOPOOPT_PLAN"]
    dist.init_process_group("topoopt")


def test_a_wiring_without_a_plan_is_an_error_that_says_what_to_set(tmp_path):
    outcomes = run_ranks(make_plan(1, 1), tmp_path, start_with_half_a_plan)
    assert "TOPOOPT_WIRING is set, but a plan and its wiring go together" in outcomes[0].error


def use_bad_arguments(rank: int, world: int) -> list[str]:
    dist.init_process_group("topoopt")
    group = dist.distributed_c10d._get_default_group()
    messages = []
    for call in (
        lambda: dist.all_reduce(torch.ones(2).to_sparse(), op=dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
        lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)),
        # The first of several operations would be right, and waits for the others.
        lambda: group.allgather_into_tensor_coalesced(
            [torch.ones(2 * world), torch.ones(3)], [torch.ones(2), torch.ones(2)]
        ).wait(),
        lambda: group.reduce_scatter_tensor_coalesced(
            [torch.ones(2), torch.ones(2)], [torch.ones(2 * world), torch.ones(3)]
        ).wait(),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
            call()
        messages.append(str(caught.value))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)  # the group is unharmed
    assert (tensor == world).all()
    dist.destroy_process_group()
    return messages


def test_bad_arguments_are_refused_before_anything_is_sent(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, use_bad_arguments)
    for outcome in outcomes:
        assert "sum and average only" in outcome.value[0]
        assert "needs integers" in outcome.value[1]
        assert "cannot share evenly" in outcome.value[2]
        assert "not the input's 2 times 2 ranks" in outcome.value[3]
        assert "not the input's 2 times 2 ranks" in outcome.value[4]
        assert "not the output's 2 times 2 ranks" in outcome.value[5]
