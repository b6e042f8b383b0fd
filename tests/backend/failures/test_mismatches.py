"""Ranks that call different things: an error on all of them that names both calls, at once.

Many cases in one start of the ranks; each has a group of its own, which fails.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s

# Of every case, far below the timeout of the groups, which is that of a default process group.
LIMIT_S = 20.0


def _all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
    return lambda group, rank, world: dist.all_reduce(tensor.clone(), op, group)


def _broadcast(source: int) -> Any:
    return lambda group, rank, world: dist.broadcast(torch.ones(12), source, group)


def _gather(target: int, size: int = 12) -> Any:
    def call(group: Any, rank: int, world: int) -> None:
        blocks = [torch.empty(12) for _ in range(world)] if rank == target else None
        dist.gather(torch.ones(12 if rank == target else size), blocks, target, group)

    return call


def _scatter(source: int) -> Any:
    def call(group: Any, rank: int, world: int) -> None:
        blocks = [torch.ones(12) for _ in range(world)] if rank == source else None
        dist.scatter(torch.empty(12), blocks, source, group)

    return call


def _all_to_all(dtype: torch.dtype) -> Any:
    def call(group: Any, rank: int, world: int) -> None:
        tensor = torch.ones(12 * world, dtype=dtype)
        dist.all_to_all_single(torch.empty_like(tensor), tensor, group=group)

    return call


def _all_gather(dtype: torch.dtype) -> Any:
    def call(group: Any, rank: int, world: int) -> None:
        output = torch.empty(12 * world, dtype=dtype)
        dist.all_gather_into_tensor(output, torch.ones(12, dtype=dtype), group)

    return call


def _barrier(group: Any, rank: int, world: int) -> None:
    dist.barrier(group)


def _two(first: Any, second: Any) -> Any:
    def call(group: Any, rank: int, world: int) -> None:
        first(group, rank, world)
        second(group, rank, world)

    return call


def _pair(size: int, dtype: torch.dtype) -> Any:
    """Rank 0 and the last one exchange a message each."""

    def call(group: Any, rank: int, world: int) -> None:
        other = {0: world - 1, world - 1: 0}.get(rank)
        if other is None:
            return
        work = dist.isend(torch.ones(size, dtype=dtype), other, group)
        dist.recv(torch.empty(size, dtype=dtype), other, group)
        if work is not None:
            work.wait()

    return call


_ONES = torch.ones(12)
_SUM = _all_reduce(_ONES)
_MAX = _all_reduce(_ONES, dist.ReduceOp.MAX)

# What the others call, what the last rank calls, and how the error names the two.
CASES: dict[str, tuple[Any, Any, str, str]] = {
    "collective": (_SUM, _broadcast(0), "all_reduce (sum) of 12 float32", "broadcast of 12"),
    "barrier": (_SUM, _barrier, "all_reduce (sum) of 12 float32", "called barrier"),
    "root of broadcast": (_broadcast(0), _broadcast(1), "from rank 0", "from rank 1"),
    "root of gather": (_gather(0), _gather(1), "12 float32 to rank 0", "12 float32 to rank 1"),
    "root of scatter": (_scatter(0), _scatter(1), "float32 from rank 0", "float32 from rank 1"),
    "op": (_SUM, _MAX, "all_reduce (sum)", "all_reduce (maximum)"),
    "average": (_SUM, _all_reduce(_ONES, dist.ReduceOp.AVG), "(sum)", "(average)"),
    "dtype": (_SUM, _all_reduce(_ONES.int()), "12 float32", "12 int32"),
    "dtype of all_to_all": (
        *(_all_to_all(torch.float32), _all_to_all(torch.int32)),
        *("float32", "int32"),
    ),
    "dtype of all_gather": (
        *(_all_gather(torch.float32), _all_gather(torch.int32)),
        *("float32", "int32"),
    ),
    "size": (_SUM, _all_reduce(torch.ones(13)), "12 float32", "13 float32"),
    "size class": (_SUM, _all_reduce(torch.ones(1 << 20)), "12 float32", "1048576 float32"),
    "nothing in a gather": (
        *(_gather(0), _gather(0, 0)),
        *("gather of 12 float32 to rank 0", "gather of 0 float32 to rank 0"),
    ),
    "order": (
        *(_two(_barrier, _broadcast(0)), _two(_broadcast(0), _barrier)),
        *("called barrier", "called broadcast of 12 float32 from rank 0"),
    ),
    "type of a message": (
        *(_pair(12, torch.float32), _pair(12, torch.int32)),
        *("12 float32", "12 int32"),
    ),
    "size of a message": (
        *(_pair(12, torch.float32), _pair(13, torch.float32)),
        *("12 float32", "13 float32"),
    ),
}


def _disagree(case: str, rank: int, world: int) -> tuple[str, float]:
    first, second, _, _ = CASES[case]
    group = dist.new_group()
    started = time.monotonic()
    try:
        (second if rank == world - 1 else first)(group, rank, world)
        # A rank may be done before it is notified.
        work = dist.barrier(group, async_op=True)
        work.wait()
    except (dist.DistBackendError, dist.DistNetworkError) as error:
        return str(error), time.monotonic() - started
    return "no error", time.monotonic() - started


def _all_cases(rank: int, world: int) -> dict[str, tuple[str, float]]:
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    seen = {}
    for number, case in enumerate(CASES):
        seen[case] = _disagree(case, rank, world)
        store.set(f"seen/{number}/{rank}", "1")
        store.wait([f"seen/{number}/{other}" for other in range(world)])
    total = torch.ones(4)
    dist.all_reduce(total)  # the default group is unharmed
    assert (total == world).all()
    dist.destroy_process_group()
    return seen


PLACES = {
    "two servers": (make_plan(2, 1), 2),
    "relayed": (networks.plan_of(3, networks.line(3)), 3),
    "four servers": (make_plan(4, 2), 4),
    "one server": (make_plan(1, 1), 3),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_mismatch_names_both_calls_on_all_ranks_at_once(place: str, tmp_path: Any) -> None:
    plan, world = PLACES[place]
    outcomes = values(run_ranks(plan, tmp_path, _all_cases, world=world))
    for case, (_, _, *named) in CASES.items():
        for rank, seen in enumerate(outcomes):
            why, seconds = seen[case]
            assert seconds < limit_s(LIMIT_S), (case, rank, seconds, why)
            assert [text for text in named if text not in why] == [], (case, rank, why)
            assert "disagree" in why, (case, rank, why)


def _average(rank: int, world: int) -> list[bool]:
    dist.init_process_group("topoopt")
    right = []
    for dtype, value in ((torch.float16, 60000.0), (torch.bfloat16, 2.0**127)):
        tensors = [torch.full((1000,), value, dtype=dtype) for _ in range(3)]
        dist.all_reduce(tensors[0], dist.ReduceOp.AVG)
        dist.reduce(tensors[1], 0, dist.ReduceOp.AVG)
        output = torch.empty(1000, dtype=dtype)
        dist.reduce_scatter_tensor(output, tensors[2].repeat(world), dist.ReduceOp.AVG)
        expected = torch.full((1000,), value, dtype=dtype)
        right += [torch.allclose(tensor, expected) for tensor in (*tensors[:2], output)]
    random = torch.rand(1000, generator=torch.Generator().manual_seed(rank)).half()
    dist.all_reduce(random, dist.ReduceOp.AVG)
    gathered = [torch.empty_like(random) for _ in range(world)]
    dist.all_gather(gathered, random)
    right += [torch.equal(other, random) for other in gathered]
    dist.destroy_process_group()
    return right


@pytest.mark.parametrize("place", ["relayed", "one server"])
def test_an_average_of_16_bits_does_not_overflow_and_has_the_same_bits(
    place: str, tmp_path: Any
) -> None:
    plan, world = PLACES[place]
    for right in values(run_ranks(plan, tmp_path, _average, world=world)):
        assert all(right), right


def _come_late(late: int, rank: int, world: int) -> str:
    """One rank calls a second after the others, which have compared their calls by then."""
    dist.init_process_group("topoopt")
    tensor = torch.ones(12)
    if rank == late:
        time.sleep(1.0)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, late)
    dist.destroy_process_group()
    return str(tensor[0].item())


def test_a_rank_that_is_late_is_no_mismatch(tmp_path: Any) -> None:
    plan, world = PLACES["four servers"]
    late = functools.partial(_come_late, 2)
    assert values(run_ranks(plan, tmp_path, late, world=world)) == ["4.0"] * 4
