"""Groups whose ranks are all on one server run their collectives in memory that they share."""

from __future__ import annotations

import functools
import logging
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.backend.usage import open_files
from support.limits import limit_s

SEGMENT = "/memfd:torch_topoopt"


def segments() -> int:
    """Of how many segments this process has parts mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if SEGMENT in line})


def make_groups(rank: int, world: int) -> tuple[int, int, int]:
    dist.init_process_group("topoopt")
    of_all = segments()
    some = dist.new_group([0, 2])
    if rank != 1:
        dist.barrier(group=some)
    of_some = segments()
    dist.barrier()
    assert not any(SEGMENT in name for name in open_files()), "the mapping needs no descriptor"
    dist.destroy_process_group()
    return of_all, of_some, segments()


def test_each_group_has_a_segment_and_nothing_is_left_of_it(tmp_path):
    seen = values(run_ranks(make_plan(1, 1), tmp_path, make_groups, world=3))
    assert [(first, second) for first, second, _ in seen] == [(1, 2), (1, 1), (1, 2)]


def ask_for_an_algorithm(shared_memory: str, rank: int, world: int) -> int:
    os.environ["TOPOOPT_ALGORITHM"] = "ring"
    os.environ["TOPOOPT_SHARED_MEMORY"] = shared_memory
    dist.init_process_group("topoopt")
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world] * 5
    return segments()


@pytest.mark.parametrize(("shared_memory", "expected"), [("1", 1), ("0", 0)])
def test_an_algorithm_over_links_does_not_turn_shared_memory_off(shared_memory, expected, tmp_path):
    body = functools.partial(ask_for_an_algorithm, shared_memory)
    found = values(run_ranks(make_plan(1, 1), tmp_path, body, world=2))
    assert found == [expected] * 2


def exchange_much(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    for elements in (10, 1000, 70_000, 0, 300_000):
        sent = [elements * (1 + (rank + other) % 2) for other in range(world)]
        received = [elements * (1 + (other + rank) % 2) for other in range(world)]
        output = torch.empty(sum(received))
        parts = [torch.full((n,), 10.0 * rank + other) for other, n in enumerate(sent)]
        dist.all_to_all_single(output, torch.cat(parts), received, sent)
        expected = [torch.full((n,), 10.0 * other + rank) for other, n in enumerate(received)]
        assert torch.equal(output, torch.cat(expected)), elements


def test_exchanges_are_right_while_ranks_find_out_how_to_copy(tmp_path):
    values(run_ranks(make_plan(1, 1), tmp_path, exchange_much, world=3))


def ask_for_an_unknown_algorithm(rank: int, world: int) -> None:
    os.environ["TOPOOPT_ALGORITHM"] = "fast"
    dist.init_process_group("topoopt")


def test_an_unknown_algorithm_is_an_error_in_shared_memory_too(tmp_path):
    body = ask_for_an_unknown_algorithm
    for outcome in run_ranks(make_plan(1, 1), tmp_path, body, world=2):
        assert outcome.error.startswith("ValueError: TOPOOPT_ALGORITHM: 'fast' is not one of")


def name_the_engine(rank: int, world: int) -> str:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("torch_topoopt")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    dist.init_process_group("topoopt")
    os.environ.update(TOPOOPT_SHARED_MEMORY="0", TOPOOPT_ALGORITHM="ring")
    dist.new_group()
    dist.destroy_process_group()
    return "\n".join(lines)


def test_the_log_names_the_engine_of_every_group(tmp_path):
    first, other = values(run_ranks(make_plan(1, 1), tmp_path, name_the_engine, world=2))
    assert "on servers 0; collectives in shared memory" in first
    assert "on servers 0; collectives over links, algorithm ring" in first
    assert "collectives" not in other


def mix_synchronous_and_not(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    works = []
    for step in range(200):
        tensor = torch.full((step * 37 % 5000,), float(step + rank))
        work = dist.all_reduce(tensor, async_op=step % 3 > 0)
        expected = float(step * world + sum(range(world)))
        if work is None:
            assert (tensor == expected).all(), step
        else:
            works.append((step, work, tensor, expected))
    for step, work, tensor, expected in works:
        assert work.get_future().wait()[0] is not None
        assert (tensor == expected).all(), step
    strided = torch.arange(20.0).reshape(4, 5).t()
    dist.all_reduce(strided, op=dist.ReduceOp.AVG)
    assert torch.equal(strided, torch.arange(20.0).reshape(4, 5).t())
    dist.destroy_process_group()


def call_with_and_without_a_work(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    options = dist.distributed_c10d.AllreduceOptions()
    for waits in (True, False):  # a call after one that nobody waits for may have to be queued
        options.asyncOp = not waits
        tensor = torch.full((16,), float(rank))
        work = dist.group.WORLD.allreduce([tensor], options)
        assert (work is None) == waits
        if work is not None:
            work.wait()
        assert (tensor == sum(range(world))).all()
    dist.destroy_process_group()


def test_a_call_that_is_over_when_it_returns_has_no_work(tmp_path):
    values(run_ranks(make_plan(1, 1), tmp_path, call_with_and_without_a_work, world=2))


def test_synchronous_and_asynchronous_calls_keep_their_order(tmp_path):
    values(run_ranks(make_plan(1, 1), tmp_path, mix_synchronous_and_not, world=3))


def fail_in_the_middle(operation: str, rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    tensor, other = torch.ones(3_000_000), torch.ones(3_000_000)
    for step in range(1000):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if operation == "all_reduce":
            dist.all_reduce(tensor, async_op=step == 2)
        else:
            dist.all_to_all_single(other, tensor, async_op=step == 2)


@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_a_killed_rank_ends_the_wait_of_the_others_and_is_named(operation, tmp_path):
    body = functools.partial(fail_in_the_middle, operation)
    outcomes = run_ranks(make_plan(1, 1), tmp_path, body, world=3)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert "DistBackendError" in outcomes[rank].error
        assert "rank 1" in outcomes[rank].error


def use_after_failures(rank: int, world: int) -> list[str]:
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    messages = []
    late = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank == 0:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(10), group=late)
        messages.append(str(caught.value))
        store.set("late", "1")
    store.wait(["late"], timedelta(seconds=limit_s(30)))
    shapes = dist.new_group()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(10 + rank), group=shapes)
    messages.append(str(caught.value))
    aborted = dist.new_group()
    if rank == 1:
        aborted.abort()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.barrier(group=aborted)
    messages.append(str(caught.value))
    tensor = torch.ones(4)
    dist.all_reduce(tensor)  # other groups are unharmed
    assert tensor.tolist() == [world] * 4
    dist.destroy_process_group()
    return messages


def test_timeouts_disagreement_and_abort_end_one_group_and_say_why(tmp_path):
    first, second = values(run_ranks(make_plan(1, 1), tmp_path, use_after_failures, world=2))
    assert " Timed out after 300 ms waiting for data from rank 1" in first[0]
    assert "disagree about operation 0" in first[1]
    assert (
        "rank 0 called all_reduce (sum) of 10 float32, rank 1 called all_reduce (sum) of 11"
        in (first[1])
    )
    assert "disagree" in second[0]
    assert "aborted by rank 1" in first[2]
    assert "aborted by rank 1" in second[1]
