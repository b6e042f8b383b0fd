"""Process groups as torchft uses them: aborted, and made anew with other ranks, again and again.

A replica of a model has a default group of its own; among the replicas there is a group that is
configured anew whenever one of them has failed or come back.
"""

from __future__ import annotations

import gc
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks
from support.backend.usage import check_usage, most_of, usage
from support.refusals import refused

import torch_topoopt

ROUNDS = 20
SETTLED = 4  # rounds after which nothing grows any more
MORE_KB = 8192  # that the allocators may still take


class Reconfigured:
    """As torchft's ProcessGroupWrapper: it aborts its group and makes another."""

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None

    def configure(self, store_address: str, rank: int, world_size: int) -> None:
        self.abort()
        where, _, prefix = store_address.partition("/")
        host, _, port = where.rpartition(":")
        limit = timedelta(seconds=30)
        store = dist.TCPStore(host, int(port), None, False, limit, wait_for_workers=False)
        self.group = torch_topoopt.new_process_group(
            dist.PrefixStore(prefix, store), rank, world_size, timeout=limit
        )

    def abort(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.abort()

    def sum(self, value: float) -> float:
        assert self.group is not None
        total = torch.full((1000,), value)
        self.group.allreduce([total]).wait()
        assert torch.equal(total, total[:1].expand(1000))
        return total[0].item()

    def sum_until_it_fails(self) -> None:
        while True:  # one may be over before a death is noticed
            self.sum(1.0)


def members_of(number: int) -> list[int]:
    """All, or all but one, with another one as rank 0 every time."""
    out = number % 4 if number % 2 else None
    members = [identity for identity in range(4) if identity != out]
    first = number % len(members)
    return members[first:] + members[:first]


def resident_kb() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def replicate(identity: int, world: int) -> tuple[list[int], str]:
    """Processes 0 and 1 are a replica and have a default group; 2 and 3 are replicas alone."""
    port = os.environ["MASTER_PORT"]
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    if identity < 2:
        own = dist.PrefixStore("replica", store)
        dist.init_process_group("topoopt", store=own, rank=identity, world_size=2)
    replicas = Reconfigured()
    resident, held = [], []
    for number in range(ROUNDS):
        members = members_of(number)
        if identity in members:
            address = f"127.0.0.1:{port}/round/{number}"
            replicas.configure(address, members.index(identity), len(members))
            assert replicas.sum(identity + 1.0) == sum(member + 1 for member in members)
            store.set(f"done/{number}/{identity}", "")
            # an abort would fail who has not got the sum yet
            store.wait([f"done/{number}/{member}" for member in members])
            replicas.abort()
        if identity < 2:
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.tolist() == [2.0] * 3
        resident.append(resident_kb())
        held.append(usage())
        if number >= SETTLED:
            check_usage(most_of(held[:SETTLED]))
    return resident, lose_one(identity, store, replicas, port)


def lose_one(identity: int, store: dist.Store, replicas: Reconfigured, port: str) -> str:
    """Process 3 is killed: the error that the others get, who then go on without it."""
    replicas.configure(f"127.0.0.1:{port}/before", identity, 4)
    replicas.sum(1.0)
    store.set(f"before/{identity}", "")
    store.wait([f"before/{other}" for other in range(4)])
    if identity == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError) as caught:
        replicas.sum_until_it_fails()
    if identity < 2:  # the replica itself has lost nothing
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2.0] * 3
    replicas.configure(f"127.0.0.1:{port}/after", 2 - identity, 3)
    assert replicas.sum(identity + 1.0) == 6.0
    assert replicas.group is not None
    replicas.group.shutdown()
    if identity < 2:
        dist.destroy_process_group()
    return str(caught.value)


def test_a_group_is_aborted_and_made_anew_with_other_ranks_twenty_times():
    outcomes = run_bare_ranks(4, replicate)
    assert outcomes[3].exit_code == -signal.SIGKILL
    for outcome in outcomes[:3]:
        assert outcome.error is None, outcome.error
        resident, error = outcome.value
        assert error.startswith("topoopt: all_reduce: ")
        assert resident[-1] - resident[SETTLED - 1] < MORE_KB


def meet_in_pairs(identity: int, world: int) -> float:
    """Under a plan, before there is a default group: servers are those of the ranks."""
    port = os.environ["MASTER_PORT"]
    pair = identity // 2
    replicas = Reconfigured()
    for number in range(2):
        replicas.configure(f"127.0.0.1:{port}/{number}/{pair}", identity % 2, 2)
        total = replicas.sum(identity + 1.0)
    assert replicas.group is not None
    replicas.group.shutdown()
    return total


def test_under_a_plan_they_use_the_links_between_their_servers(tmp_path):
    outcomes = run_ranks(make_plan(4, 2), tmp_path, meet_in_pairs)
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert [outcome.value for outcome in outcomes] == [3.0, 3.0, 7.0, 7.0]


def test_a_rank_outside_the_world_is_refused():
    with refused(ValueError, "rank", 2, "0..1"):
        torch_topoopt.new_process_group(dist.HashStore(), 2, 2)
