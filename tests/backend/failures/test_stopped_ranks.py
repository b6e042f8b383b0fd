"""A rank whose process is stopped: the others wait for it up to a limit, and then name it."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks, values
from support.limits import limit_s

if TYPE_CHECKING:
    from pathlib import Path

STOPPED = 2
STORE_LIMIT_S = 60.0


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def wait_for(*keys: str) -> None:
    store().wait(list(keys), timedelta(seconds=limit_s(STORE_LIMIT_S)))


def begin(limit: str, rank: int, world: int) -> None:
    os.environ["TOPOOPT_SILENCE_LIMIT_S"] = limit
    dist.init_process_group("topoopt")
    dist.barrier()
    store().set(f"pid/{rank}", str(os.getpid()))
    wait_for(*[f"pid/{other}" for other in range(world)])


def reduce_until_it_fails() -> str:
    try:
        while True:
            dist.all_reduce(torch.ones(50_000))
    except dist.DistBackendError as error:
        return str(error)


def stop_for_good(rank: int, world: int) -> str:
    begin("3", rank, world)
    if rank == STOPPED:
        dist.all_reduce(torch.ones(50_000))
        os.kill(os.getpid(), signal.SIGSTOP)
    why = reduce_until_it_fails()
    store().set(f"failed/{rank}", "")
    if rank == 0:  # the process would be waited for
        wait_for(*[f"failed/{other}" for other in range(world) if other != STOPPED])
        os.kill(int(store().get(f"pid/{STOPPED}")), signal.SIGKILL)
    return why


def check_that_all_name_it(outcomes: list) -> None:
    assert outcomes[STOPPED].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank != STOPPED:
            assert f"rank {STOPPED} is stopped: its host acknowledges" in str(outcome.value), (
                outcome
            )
            assert "all_reduce" in outcome.value


def test_a_stopped_rank_is_named_by_all_others(tmp_path: Path) -> None:
    plan = networks.plan_of(5, networks.ring(5))  # ranks 0 and 4 have no link to it
    check_that_all_name_it(run_ranks(plan, tmp_path, stop_for_good))


@pytest.mark.exhaustive
def test_a_stopped_rank_beside_others_of_its_server_is_named(tmp_path: Path) -> None:
    check_that_all_name_it(run_ranks(make_plan(2, 1), tmp_path, stop_for_good, world=4))


def test_a_stopped_rank_that_shares_memory_is_named() -> None:
    check_that_all_name_it(run_bare_ranks(4, stop_for_good))


def stop_for_a_while(rank: int, world: int) -> float:
    begin("20", rank, world)
    total = torch.ones(50_000)
    if rank == 0:
        stopped = int(store().get(f"pid/{STOPPED}"))
        os.kill(stopped, signal.SIGSTOP)
        work = dist.all_reduce(total, async_op=True)
        time.sleep(1.5)  # how long it is stopped
        os.kill(stopped, signal.SIGCONT)
        work.wait()
    else:
        dist.all_reduce(total)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total[0].item()


@pytest.mark.parametrize("servers", [5, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_rank_that_is_stopped_for_less_than_the_limit_goes_on(
    servers: int, tmp_path: Path
) -> None:
    if servers > 0:
        outcomes = run_ranks(make_plan(5, 2), tmp_path, stop_for_a_while)
    else:  # they share memory
        outcomes = run_bare_ranks(5, stop_for_a_while)
    assert values(outcomes) == [25.0] * 5
