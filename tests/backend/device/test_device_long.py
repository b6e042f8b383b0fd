"""Long tensors on a device: few collectives, which begin while their data is copied to the host and
whose results are copied back while they run.

The device is "lag" (see test_device.py).
"""

from __future__ import annotations

import time
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.device import build, on_device
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORLD = 3
_MIB = 1 << 18  # float32 elements
# Bytes of a collective at most in a group as small as this (Group::landingBytes), or more where the
# host measures messages that cost much: then two pieces are one.
_PIECE_MIB = 16
_ONE = 5 * _MIB + 3
_TWO = (_PIECE_MIB + 3) * _MIB + 5
# Seconds per kernel or copy on the default streams and on all others.
_DELAYS = [(0.0, 0.004), pytest.param((0.01, 0.0), marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


def _run(library: Path, folder: Path, body: Callable[[int, int], Any]) -> list[Any]:
    return values(run_ranks(make_plan(_WORLD, 2), folder, on_device(library, body)))


def _numbers(rank: int, elements: int) -> torch.Tensor:
    return _pattern(elements) * (rank + 1)


@cache
def _pattern(elements: int) -> torch.Tensor:
    return (torch.arange(elements) % 1021).float()


def _late(rank: int, elements: int) -> torch.Tensor:
    """The same on the device, where it is there only when the current stream has come that far."""
    return _pattern(elements).to("lag").mul_(rank + 1)


def _check(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.cpu(), expected), name


def _started() -> int:
    """Collectives that the group has been given by now."""
    backend = dist.group.WORLD._get_backend(torch.device("lag"))
    return int(backend._get_sequence_number_for_group())


def _operations(delays: tuple[float, float], rank: int, world: int) -> dict[str, int]:
    import lag

    lag.set_delays_s(*delays)
    counts = {}

    def counted(name: str, got: torch.Tensor, expected: torch.Tensor, before: int) -> None:
        _check(name, got, expected)
        counts[name] = _started() - before

    for size in (_ONE, _TWO):
        total = sum(_numbers(r, size) for r in range(world))
        tensor, before = _late(rank, size), _started()
        dist.all_reduce(tensor)
        counted(f"all_reduce {size}", tensor, total, before)
        tensor, before = _late(rank, size), _started()
        dist.broadcast(tensor, 1)
        counted(f"broadcast {size}", tensor, _numbers(1, size), before)
    tensor, before = _late(rank, _TWO), _started()
    dist.reduce(tensor, 1)
    counted("reduce", tensor, total if rank == 1 else _numbers(rank, _TWO), before)
    tensor, before = _late(rank, _TWO), _started()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    counted("AVG", tensor, total / world, before)
    tensor, before = _late(rank, _ONE), _started()
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0))
    counted("PREMUL_SUM", tensor, total[:_ONE] * 2, before)

    block = 6 * _MIB + 1  # of blocks together, two pieces
    total = sum(_numbers(r, block * world) for r in range(world))
    parts = [_numbers(r, block) for r in range(world)]
    output, before = torch.full((block,), -1.0, device="lag"), _started()
    dist.reduce_scatter_tensor(output, _late(rank, block * world))
    counted("reduce_scatter", output, total.chunk(world)[rank], before)
    whole, before = _late(rank, block * world), _started()
    dist.reduce_scatter_tensor(whole.chunk(world)[rank], whole)
    counted("reduce_scatter in place", whole.chunk(world)[rank], total.chunk(world)[rank], before)
    output, before = torch.full((block * world,), -1.0, device="lag"), _started()
    dist.all_gather_into_tensor(output, _late(rank, block))
    counted("all_gather", output, torch.cat(parts), before)
    output = torch.full((block * world,), -1.0, device="lag")
    mine, before = output.chunk(world)[rank], _started()
    mine.copy_(_late(rank, block))
    dist.all_gather_into_tensor(output, mine)
    counted("all_gather in place", output, torch.cat(parts), before)
    outputs, before = [torch.full((block,), -1.0, device="lag") for _ in range(world)], _started()
    dist.all_gather(outputs, _late(rank, block))
    counted("all_gather of a list", torch.cat([o.cpu() for o in outputs]), torch.cat(parts), before)
    return counts


@pytest.mark.parametrize("delays", _DELAYS)
def test_a_long_tensor_is_few_collectives(
    tmp_path: Path, library: Path, delays: tuple[float, float]
) -> None:
    for counts in _run(library, tmp_path, partial(_operations, delays)):
        ones = {name: counts.pop(name) for name in list(counts) if name.endswith(str(_ONE))}
        assert set(ones.values()) == {1}, ones
        assert counts.pop("PREMUL_SUM") == 1
        assert set(counts.values()) in ({1}, {2}), counts


@pytest.mark.parametrize("servers", [1, 2])
def test_long_tensors_of_several_ranks_per_server(
    tmp_path: Path, library: Path, servers: int
) -> None:
    function = on_device(library, partial(_operations, (0.0, 0.0)))
    world = 2 * servers
    found = values(run_ranks(make_plan(servers, servers - 1 or 1), tmp_path, function, world=world))
    if servers == 1:  # in shared memory, where pieces are small: 19 MiB and 20 bytes are five
        assert {counts["reduce"] for counts in found} == {5}
    else:
        assert {counts["reduce"] for counts in found} in ({1}, {2})


def _several_streams(rank: int, world: int) -> None:
    import lag

    lag.set_delays_s(0.002, 0.001)
    waiting = []
    for i, size in enumerate((_ONE, _TWO, 1000, _ONE + 1)):
        with torch.Stream("lag"):
            tensor = _late(rank + i, size)
            work = dist.all_reduce(tensor, async_op=True)
            waiting.append((torch.accelerator.current_stream(), work, tensor))
    for i, (stream, work, tensor) in enumerate(waiting):
        with stream:
            work.wait()
            tensor.add_(1)
            expected = sum(_numbers(r + i, tensor.numel()) for r in range(world)) + 1
            _check(f"stream {i}", tensor, expected)


def test_collectives_of_several_streams(tmp_path: Path, library: Path) -> None:
    _run(library, tmp_path, _several_streams)


def _copies(rank: int, world: int) -> tuple[int, int]:
    """Of an all_reduce of 5 MiB: pieces of memory that were copied, and blocked the host."""
    import lag

    lag.set_delays_s(0.0, 0.0)
    tensor = _late(rank, 5 * _MIB)
    dist.all_reduce(tensor.clone())
    torch.accelerator.synchronize()
    before = lag.counters()
    dist.all_reduce(tensor)
    after = lag.counters()
    _check("all_reduce", tensor, sum(_numbers(r, 5 * _MIB) for r in range(world)))
    return tuple(after[name] - before[name] for name in ("copies", "blocking_copies"))


def test_a_tensor_is_copied_once_each_way_in_slices(tmp_path: Path, library: Path) -> None:
    for counts in _run(library, tmp_path, _copies):
        assert counts == (10, 0)  # five slices of 1 MiB


def _abort_midway(rank: int, world: int) -> str:
    import lag

    lag.set_delays_s(0.0, 0.02)
    tensor, before = _late(rank, _TWO), _started()
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + limit_s(30)
    while rank == 0 and _started() == before:  # from when the first slice is there
        assert time.monotonic() < deadline
    if rank == 0:
        dist.group.WORLD.abort()
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    assert work.is_completed()
    return str(caught.value)


def test_an_abort_ends_a_collective_whose_data_lands(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _abort_midway):
        assert "aborted by rank 0" in message


def _missing_rank(rank: int, world: int) -> str:
    late = dist.new_group(timeout=timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        store.wait(["failed/0", "failed/1"], timedelta(seconds=limit_s(30)))
        return ""
    work = dist.all_reduce(_late(rank, _TWO), group=late, async_op=True)
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    store.set(f"failed/{rank}", "1")
    return str(caught.value)


def test_a_rank_that_does_not_call_is_named(tmp_path: Path, library: Path) -> None:
    first, second, _ = _run(library, tmp_path, _missing_rank)
    assert "Timed out after 1000 ms" in first + second
    assert "rank 2" in first + second
