"""A rank that dies, stops or gives up during any operation fails all others, within a limit."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.contract_operations import OPERATIONS, Case, Members
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s

if TYPE_CHECKING:
    from pathlib import Path

OPERATIONS_THAT_TALK = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all_single",
    "send_and_receive_around",
    "barrier",
)
ELEMENTS = 1 << 20
MORE_THAN_KEPT = 9 * ELEMENTS


def repeat(operation: str, members: Members) -> str:
    """Runs the operation until it fails; the error."""
    number = 0
    while True:
        number += 1
        case = Case(operation, torch.float32, "SUM", ELEMENTS, "flat", True, number)
        try:
            OPERATIONS[operation](members, case).finish()
        except RuntimeError as error:
            return str(error)


def meet(name: str, rank: int, world: int) -> None:
    """Through the store, for the process group may be gone."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name}/{rank}", "1")
    store.wait([f"{name}/{r}" for r in range(world)], timedelta(seconds=limit_s(30)))


def begin(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    dist.barrier()
    meet("started", rank, world)  # a rank that dies would fail who is still in the barrier


def die_soon() -> None:
    threading.Timer(random.random() * 0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()


def die_during(operation: str, victim: int, rank: int, world: int) -> str:
    begin(rank, world)
    if rank == victim:
        die_soon()
    return repeat(operation, Members(dist.group.WORLD, tuple(range(world)), rank))


def check_that_all_name(victim: int, outcomes: list, *names: str) -> None:
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            continue
        assert outcome.error is None, outcome.error
        assert any(name in outcome.value for name in names), (rank, outcome.value)
        assert re.match(r"topoopt: [a-z_]+: ", outcome.value), "the operation comes first"
        assert "Timed out" not in outcome.value


@pytest.mark.parametrize("operation", OPERATIONS_THAT_TALK)
def test_a_rank_killed_during_an_operation_is_named_everywhere(operation, tmp_path):
    victim = 1
    outcomes = run_ranks(
        networks.plan_of(3, networks.line(3)),
        tmp_path,
        functools.partial(die_during, operation, victim),
    )
    check_that_all_name(victim, outcomes, f"server {victim} ", f"rank {victim}")


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "all_to_all_single", "barrier"])
def test_a_rank_killed_in_a_local_team_is_named_everywhere(operation, tmp_path):
    victim = 1
    outcomes = run_ranks(
        make_plan(1, 1),
        tmp_path,
        functools.partial(die_during, operation, victim),
        world=3,
    )
    check_that_all_name(victim, outcomes, f"rank {victim}")


def relay_dies(victim: int, rank: int, world: int) -> str:
    """Only the two ends of the line are in the group; all others just wait."""
    begin(rank, world)
    ends = (0, world - 1)
    group = dist.new_group(ends)
    meet("grouped", rank, world)
    if rank == victim:
        die_soon()
    if rank in ends:
        return repeat("all_reduce", Members(group, ends, ends.index(rank)))
    return repeat("barrier", Members(dist.group.WORLD, tuple(range(world)), rank))


def test_a_killed_relay_that_is_not_in_the_group_is_named(tmp_path):
    victim = 2
    outcomes = run_ranks(
        networks.plan_of(5, networks.line(5)),
        tmp_path,
        functools.partial(relay_dies, victim),
    )
    check_that_all_name(victim, outcomes, f"server {victim} ", f"rank {victim}")


@pytest.mark.parametrize("victim", [2, 3], ids=["the leader of a server", "another rank of it"])
def test_a_rank_killed_on_a_server_with_several_is_named(victim, tmp_path):
    outcomes = run_ranks(
        make_plan(2, 1),
        tmp_path,
        functools.partial(die_during, "all_reduce", victim),
        world=4,
    )
    check_that_all_name(victim, outcomes, "server 1 ", f"rank {victim}")


def die_and_leave_a_child(victim: int, over: Path, rank: int, world: int) -> str:
    """As a rank does that has data loading workers."""
    begin(rank, world)
    if rank == victim:
        if os.fork() == 0:
            deadline = time.monotonic() + limit_s(90)
            while not over.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            os._exit(0)
        die_soon()
    return repeat("all_reduce", Members(dist.group.WORLD, tuple(range(world)), rank))


@pytest.mark.parametrize("ranks_per_server", [1, 2])
def test_a_killed_rank_is_noticed_although_processes_it_forked_live_on(ranks_per_server, tmp_path):
    victim = ranks_per_server
    over = tmp_path / "over"
    try:
        outcomes = run_ranks(
            make_plan(2, 1),
            tmp_path,
            functools.partial(die_and_leave_a_child, victim, over),
            world=2 * ranks_per_server,
        )
    finally:
        over.touch()
    check_that_all_name(victim, outcomes, "server 1 ", f"rank {victim}")


def stop_before_an_operation(victim: int, rank: int, world: int) -> str:
    begin(rank, world)
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(timeout=timedelta(seconds=2))
    meet("grouped", rank, world)
    others = [f"failed/{r}" for r in range(world) if r != victim]
    if rank == victim:
        # The store's connection is this process's own, so its key is set when it stops.
        store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    error = repeat("all_reduce", Members(group, tuple(range(world)), rank))
    store.set(f"failed/{rank}", "1")
    if rank == 0:
        store.wait(others, timedelta(seconds=limit_s(30)))
        os.kill(int(store.get("pid")), signal.SIGCONT)
    return error


def test_a_stopped_rank_is_a_timeout_for_all_and_for_itself_once_it_goes_on(tmp_path):
    stop = functools.partial(stop_before_an_operation, 1)
    outcomes = run_ranks(make_plan(3, 2), tmp_path, stop)
    for error in values(outcomes):
        assert "all_reduce (operation 0 of group" in error
        assert " Timed out after 2000 ms: rank " in error
        assert "does not answer" in error or "has ended the group" in error


def time_out_without_rank_1(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank == 1:
        store.wait([f"late/{r}" for r in range(world) if r != 1], timedelta(seconds=limit_s(30)))
    try:
        dist.all_reduce(torch.ones(10), group=group)
    finally:
        store.set(f"late/{rank}", "1")


def fail_by(cause: str, rank: int, world: int) -> None:
    everyone = dist.distributed_c10d._get_default_group()
    tensor = torch.ones(50_000 + (rank if cause == "mismatch" else 0))
    if cause == "timeout":
        time_out_without_rank_1(rank, world)
    elif rank == 1 and cause == "abort":
        everyone.abort()
    elif rank == 1 and cause == "abort from a thread":
        work = dist.irecv(tensor, 0)
        thread = threading.Thread(target=everyone.abort)
        thread.start()
        work.wait()
    else:
        dist.all_reduce(tensor)


def fail_and_start_again(rank: int, world: int) -> list[str]:
    """Several ways to lose a process group; after each, the same processes create it anew."""
    errors = []
    for cause in ("abort", "mismatch", "timeout", "abort from a thread"):
        dist.init_process_group("topoopt", timeout=timedelta(seconds=limit_s(30)))
        total = torch.ones(50_000)
        dist.all_reduce(total)
        assert (total == world).all()
        meet(f"before {cause}", rank, world)  # an abort would fail who has not got the sum yet
        error = "no error"
        try:
            fail_by(cause, rank, world)
        except RuntimeError as raised:
            error = str(raised)
        errors.append(error)
        meet(f"after {cause}", rank, world)  # else the last might be notified that others have left
        dist.destroy_process_group()
    return errors


THREE_SERVERS = networks.plan_of(3, networks.line(3))
PLACES = pytest.mark.parametrize(
    "plan", [THREE_SERVERS, make_plan(1, 1)], ids=["3 servers", "one server"]
)


@PLACES
def test_after_any_failure_the_same_processes_can_start_again(plan, tmp_path):
    outcomes = run_ranks(plan, tmp_path, fail_and_start_again, world=3)
    for rank, (abort, mismatch, timeout, thread) in enumerate(values(outcomes)):
        assert abort == "no error" if rank == 1 else "aborted by rank 1" in abort
        assert "disagree" in mismatch
        assert "Timed out after 300 ms" in timeout
        assert "aborted by rank 1" in thread


def error_of(work: dist.Work) -> str:
    try:
        work.wait()
    except RuntimeError as error:
        assert work.is_completed()
        return str(error)
    return "no error"


def begin_operations(rank: int, world: int) -> list[dist.Work]:
    """On rank 0, operations that need the others, who make none."""
    dist.init_process_group("topoopt")
    # Longer than what a receiver keeps of one sender before anybody asks for it (FlowLimits).
    tensors = [torch.ones(MORE_THAN_KEPT) for _ in range(4)]
    works = []
    if rank == 0:
        works = [dist.all_reduce(tensors[0], async_op=True), dist.irecv(tensors[1], 1)]
        works += [dist.isend(tensors[2], world - 1), dist.broadcast(tensors[3], 1, async_op=True)]
    meet("begun", rank, world)
    return works


def destroy_with_operations_pending(rank: int, world: int) -> list[str]:
    """The others stay until rank 0 has its errors: a rank that has destroyed the group drops what
    it is sent, and such a send ends without an error."""
    works = begin_operations(rank, world)
    store = dist.distributed_c10d._get_default_store()
    errors = []
    if rank == 0:
        destroying = threading.Thread(target=dist.destroy_process_group)  # waits for the others
        destroying.start()
        errors = [error_of(work) for work in works]
        store.set("failed", "1")
        destroying.join(limit_s(30))
        assert not destroying.is_alive()
    else:
        store.wait(["failed"], timedelta(seconds=limit_s(30)))
        dist.destroy_process_group()
    return errors


@PLACES
def test_destroying_a_group_fails_what_is_pending(plan, tmp_path):
    outcomes = values(run_ranks(plan, tmp_path, destroy_with_operations_pending, world=3))
    assert len(outcomes[0]) == 4
    for operation, error in enumerate(outcomes[0]):
        assert "shut down" in error, (operation, error)


def wait_for_ranks_that_leave(rank: int, world: int) -> list[str]:
    works = begin_operations(rank, world)
    errors = [error_of(work) for work in works]
    dist.destroy_process_group()
    return errors


@PLACES
def test_what_needs_a_rank_that_has_destroyed_the_group_fails(plan, tmp_path):
    outcomes = values(run_ranks(plan, tmp_path, wait_for_ranks_that_leave, world=3))
    all_reduce, receive, _, broadcast = outcomes[0]
    for error in (all_reduce, receive, broadcast):
        assert re.search(r"rank [12] has left", error), error
