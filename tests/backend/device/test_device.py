"""Tensors on a device: staged through host memory, or used in place, in the order of the caller's
streams.

The device is "lag" (device_extension/): its streams are slow, so that code that does not wait for
them sees old values, and the host cannot read its memory unless a test asks for "host" memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.device import abort_once_all_have_called, build, on_device
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.plan import CostModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORLD = 3
# float32 elements: six slices, the last one smaller; two pieces where the operation has no landing
_LARGE = 5 * (1 << 18) + 5
# Seconds per kernel or copy, on the default streams and on all others: one is slow, then the other.
_DELAYS = {"caller": (0.01, 0.0), "copies": (0.0, 0.01)}
_MEMORIES = ("device", "host")


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


def _run(library: Path, folder: Path, body: Callable[[int, int], Any], **options: Any) -> list[Any]:
    function = on_device(library, body, **options)
    return values(run_ranks(make_plan(_WORLD, 2), folder, function))


def _ramp(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The input of `rank`, on the CPU: small whole numbers, which add up exactly."""
    return _pattern(elements).to(dtype) * (rank + 1)


@cache
def _pattern(elements: int) -> torch.Tensor:
    return torch.arange(elements) % 13


def _late(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same on the device, where it is there only when the current stream has come that far."""
    return _pattern(elements).to(dtype).to("lag").mul_(rank + 1)


def _check(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    result = got.cpu()
    if result.dtype == expected.dtype and torch.equal(result, expected):
        return
    torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


def _delayed(delays: tuple[float, float]) -> Any:
    import lag

    lag.set_delays_s(*delays)
    return lag


# ---- every operation ----------------------------------------------------------------------------


def _reductions(delays: tuple[float, float], rank: int, world: int) -> None:
    _delayed(delays)
    for size in (1, 0, 1000, _LARGE):
        total = sum(_ramp(r, size) for r in range(world))
        tensor = _late(rank, size)
        dist.all_reduce(tensor)
        _check(f"all_reduce of {size}", tensor, total)

    total = sum(_ramp(r, 30) for r in range(world))
    tensor = _late(rank, 30)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    _check("AVG", tensor, total / world)
    for factor in (3.0, torch.tensor([3.0]), torch.tensor(1.5).to("lag").mul_(2)):
        tensor = _late(rank, 30)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        _check(f"PREMUL_SUM by {type(factor)}", tensor, total * 3)
    tensor = _late(rank, 30, torch.complex64)
    dist.all_reduce(tensor)
    _check("complex", tensor, total.to(torch.complex64))
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.int64):
        tensor = _late(rank, 7, dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        _check(f"MAX of {dtype}", tensor, _ramp(world - 1, 7, dtype))

    every_second = _late(rank, 60)[::2]
    dist.all_reduce(every_second)
    expected = sum(_ramp(r, 60) for r in range(world))[::2]
    _check("all_reduce of every second element", every_second, expected)

    tensor = _late(rank, 30)
    dist.reduce(tensor, 1)
    _check("reduce", tensor, total if rank == 1 else _ramp(rank, 30))

    block = 1 << 20
    total = sum(_ramp(r, block * world) for r in range(world))
    output = torch.full((block,), -1.0, device="lag")
    dist.reduce_scatter_tensor(output, _late(rank, block * world))
    _check("reduce_scatter_tensor", output, total.chunk(world)[rank])
    whole = _late(rank, block * world)
    dist.reduce_scatter_tensor(whole.chunk(world)[rank], whole)
    _check("reduce_scatter_tensor in place", whole.chunk(world)[rank], total.chunk(world)[rank])
    sizes = [4, 0, 7]
    total = sum(_ramp(r, 11) for r in range(world))
    output = torch.full((sizes[rank],), -1.0, device="lag")
    dist.reduce_scatter(output, list(_late(rank, 11).split(sizes)), op=dist.ReduceOp.AVG)
    _check("reduce_scatter, uneven", output, total.split(sizes)[rank] / world)


def _moves(delays: tuple[float, float], rank: int, world: int) -> None:
    _delayed(delays)
    for size in (0, 1000, _LARGE):
        tensor = _late(rank, size)
        dist.broadcast(tensor, 1)
        _check(f"broadcast of {size}", tensor, _ramp(1, size))
    transposed = _late(rank, 12).view(3, 4).t()
    dist.broadcast(transposed, 2)
    _check("broadcast, transposed", transposed, _ramp(2, 12).view(3, 4).t())

    everything = [_ramp(r, _LARGE) for r in range(world)]
    outputs = [torch.full((_LARGE,), -1.0, device="lag") for _ in range(world)]
    dist.all_gather(outputs, _late(rank, _LARGE))
    for source, output in enumerate(outputs):
        _check(f"all_gather from {source}", output, everything[source])
    output = torch.full((_LARGE * world,), -1.0, device="lag")
    dist.all_gather_into_tensor(output, _late(rank, _LARGE))
    _check("all_gather_into_tensor", output, torch.cat(everything))
    output = torch.full((6, world), -1.0, device="lag").t()
    dist.all_gather_into_tensor(output, _late(rank, 6))
    _check("all_gather_into_tensor, transposed", output, torch.stack([e[:6] for e in everything]))
    sizes = [3, 0, 5]
    outputs = [torch.full((size,), -1.0, device="lag") for size in sizes]
    dist.all_gather(outputs, _late(rank, sizes[rank]))
    for source, output in enumerate(outputs):
        _check(f"all_gather, uneven, from {source}", output, _ramp(source, sizes[source]))

    outputs = [torch.full((8,), -1.0, device="lag") for _ in range(world)] if rank == 2 else None
    dist.gather(_late(rank, 8), outputs, dst=2)
    for source, output in enumerate(outputs or []):
        _check(f"gather from {source}", output, _ramp(source, 8))
    output = torch.full((8,), -1.0, device="lag")
    dist.scatter(output, list(_late(1, 8 * world).chunk(world)) if rank == 1 else None, src=1)
    _check("scatter", output, _ramp(1, 8 * world).chunk(world)[rank])

    output = torch.full((world * 2, 3), -1.0, device="lag")
    dist.all_to_all_single(output, _late(rank, 6 * world).view(-1, 3))
    parts = [_ramp(r, 6 * world).view(-1, 3).chunk(world)[rank] for r in range(world)]
    _check("all_to_all_single", output, torch.cat(parts))
    sent = [[(source + target) % 3 for target in range(world)] for source in range(world)]
    received = [sent[source][rank] for source in range(world)]
    output = torch.full((sum(received),), -1.0, device="lag")
    dist.all_to_all_single(output, _late(rank, sum(sent[rank])), received, sent[rank])
    parts = [_ramp(r, sum(sent[r])).split(sent[r])[rank] for r in range(world)]
    _check("all_to_all_single, uneven", output, torch.cat(parts))
    outputs = [torch.full((size,), -1.0, device="lag") for size in received]
    dist.all_to_all(outputs, list(_late(rank, sum(sent[rank])).split(sent[rank])))
    for source, output in enumerate(outputs):
        _check(f"all_to_all from {source}", output, parts[source])


@pytest.mark.parametrize(
    ("slow", "memory"), [("caller", "device"), ("copies", "device"), ("caller", "host")]
)
@pytest.mark.parametrize("body", [_reductions, _moves])
def test_every_operation_gives_the_right_values(
    tmp_path: Path, library: Path, body: Any, slow: str, memory: str
) -> None:
    _run(library, tmp_path, partial(body, _DELAYS[slow]), memory=memory)


def _coalesced(rank: int, world: int) -> None:
    _delayed(_DELAYS["caller"])
    sizes = (3, 0, 1000, _LARGE)
    tensors = [_late(rank, size) for size in sizes]
    dist.all_reduce_coalesced(tensors)
    for size, tensor in zip(sizes, tensors, strict=True):
        _check(f"all_reduce of {size}", tensor, sum(_ramp(r, size) for r in range(world)))

    group = dist.group.WORLD
    outputs = [torch.full((world * size,), -1.0, device="lag") for size in (2, 5)]
    with dist._coalescing_manager(group, async_ops=True) as works:
        for size, output in zip((2, 5), outputs, strict=True):
            dist.all_gather_into_tensor(output, _late(rank, size))
    works.wait()
    for size, output in zip((2, 5), outputs, strict=True):
        _check(f"all_gather of {size}", output, torch.cat([_ramp(r, size) for r in range(world)]))

    import torch.distributed._functional_collectives as funcol

    output = funcol.reduce_scatter_tensor(_late(rank, 4 * world), "sum", 0, group)
    total = sum(_ramp(r, 4 * world) for r in range(world))
    _check("functional reduce_scatter", output, total.chunk(world)[rank])


@pytest.mark.parametrize("memory", _MEMORIES)
def test_several_tensors_in_one_call(tmp_path: Path, library: Path, memory: str) -> None:
    _run(library, tmp_path, _coalesced, memory=memory)


def _messages(rank: int, world: int) -> None:
    _delayed(_DELAYS["copies"])
    right, left = (rank + 1) % world, (rank - 1) % world
    got = torch.full((_LARGE,), -1.0, device="lag")
    operations = [
        dist.P2POp(dist.isend, _late(rank, _LARGE), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    _check("ring", got, _ramp(left, _LARGE))
    # One end on the device, the other on the CPU.
    if rank == 0:
        dist.send(_late(0, 100), 1, tag=7)
    elif rank == 1:
        got = torch.zeros(100)
        assert dist.recv(got, tag=7) == 0
        _check("to the CPU", got, _ramp(0, 100))
        dist.send(got, 2, tag=8)
    else:
        got = torch.zeros(100, device="lag")
        assert dist.recv(got, tag=8) == 1
        _check("from the CPU, from any rank", got, _ramp(0, 100))


@pytest.mark.parametrize("memory", _MEMORIES)
def test_messages(tmp_path: Path, library: Path, memory: str) -> None:
    _run(library, tmp_path, _messages, memory=memory)


# ---- order --------------------------------------------------------------------------------------


def _order(rank: int, world: int) -> None:
    lag = _delayed((0.0, 0.03))
    total = sum(_ramp(r, 1000) for r in range(world))
    # The caller's stream is not the default one, and slow.
    with torch.Stream("lag"):
        tensor = _late(rank, 1000)
        dist.all_reduce(tensor)
        tensor.add_(1)
        _check("on a stream of the caller", tensor, total + 1)

    # Earlier work in the caller's stream still reads the tensor that the call overwrites.
    lag.set_delays_s(0.1, 0.0)
    tensor = torch.full((1000,), float(rank), device="lag")
    before = tensor.clone()
    work = dist.broadcast(tensor, 0, async_op=True)
    work.wait()
    after = tensor.clone()
    _check("before", before, torch.full((1000,), float(rank)))
    _check("after", after, torch.zeros(1000))

    # Memory that the caller has freed goes to the next tensor, while it is still being copied.
    lag.set_delays_s(0.0, 0.1)
    if rank == 0:
        works = [dist.isend(_late(0, 2000)[::2], 1), dist.isend(_late(0, 1000), 1)]
        junk = [torch.full((1000,), -9.0, device="lag") for _ in range(4)]
        for work in works:
            work.wait()
        del junk
    elif rank == 1:
        for expected in (_ramp(0, 2000)[::2], _ramp(0, 1000)):
            got = torch.zeros(1000, device="lag")
            dist.recv(got, 0)
            _check("freed by the sender", got, expected)

    # A collective on the CPU comes after those on the device that were called before it, even if it
    # could start at once, as on all ranks but the first.
    lag.set_delays_s(0.1 if rank else 0.0, 0.0)
    on_lag, on_cpu = _late(rank, 1000), 5 * _ramp(rank, 1000)
    backend = dist.group.WORLD._get_backend(torch.device("lag"))
    started = backend._get_sequence_number_for_group()
    works = [dist.all_reduce(on_lag, async_op=True)]
    deadline = time.monotonic() + limit_s(30)
    while rank == 0 and backend._get_sequence_number_for_group() == started:
        assert time.monotonic() < deadline
    works.append(dist.all_reduce(on_cpu, async_op=True))
    for work in works:
        work.wait()
    _check("on the device", on_lag, total)
    _check("on the CPU", on_cpu, total * 5)


@pytest.mark.parametrize("memory", _MEMORIES)
def test_an_operation_keeps_the_order_of_the_callers_stream(
    tmp_path: Path, library: Path, memory: str
) -> None:
    _run(library, tmp_path, _order, memory=memory)


def _blocking(rank: int, world: int) -> dict[str, int]:
    lag = _delayed((0.0, 0.0))
    tensor = torch.full((1000,), float(rank), device="lag")
    dist.all_reduce(tensor.clone())  # makes the side streams
    torch.accelerator.synchronize()
    before = lag.counters()
    if rank != 0:
        lag.hold_streams()
    work = dist.broadcast(tensor, 0, async_op=True)
    work.wait()  # although the copy to the device is held up
    tensor.add_(1)
    if rank != 0:
        assert not work.is_completed()
        lag.release_streams()
    done = lag.counters()
    _check("broadcast", tensor, torch.ones(1000))
    assert work.is_completed()
    assert work.is_success()
    if torch.__version__ >= (2, 13):  # before, torch has no conversion of what this returns
        assert work.exception() is None
    return {name: done[name] - before[name] for name in done}


def test_wait_blocks_the_stream_and_not_the_host(tmp_path: Path, library: Path) -> None:
    for counts in _run(library, tmp_path, _blocking):
        assert counts.pop("copies") == 1
        assert set(counts.values()) == {0}, counts  # no synchronisation, no blocking copy


def _futures(rank: int, world: int) -> None:
    _delayed(_DELAYS["copies"])
    # The copies back of several slices take longer than one kernel on the callback's stream.
    tensor = _late(rank, _LARGE)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    scaled = future.then(lambda done: done.value()[0].mul_(10)).wait()
    _check("then", scaled, sum(_ramp(r, _LARGE) for r in range(world)) * 10)
    total = sum(_ramp(r, 1000) for r in range(world))
    # Asked for when the work is over.
    tensor = _late(rank, 1000)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    _check("value", work.get_future().value()[0].add(0), total)
    # A callback that communicates and waits, as communication hooks do.
    tensor, other = _late(rank, 1000), _late(rank, 1000)

    def again(done: Any) -> torch.Tensor:
        dist.all_reduce(other)
        return done.value()[0].add_(other)

    future = dist.all_reduce(tensor, async_op=True).get_future()
    _check("communicating callback", future.then(again).wait(), total * 2)


@pytest.mark.parametrize("memory", _MEMORIES)
def test_the_callbacks_of_a_future_come_after_the_copy_back(
    tmp_path: Path, library: Path, memory: str
) -> None:
    _run(library, tmp_path, _futures, memory=memory)


def _barrier(rank: int, world: int) -> None:
    _delayed(_DELAYS["caller"])
    dist.barrier()
    tensor = _late(rank, 10)
    event = torch.Event("lag")
    event.record(torch.accelerator.current_stream())
    dist.barrier(device_ids=[0])
    assert event.query()  # the barrier began after what the stream had been given
    _check("tensor", tensor, _ramp(rank, 10))
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]


@pytest.mark.parametrize("backend", ["cpu:topoopt,lag:topoopt", "lag:topoopt"])
def test_barriers_and_objects(tmp_path: Path, library: Path, backend: str) -> None:
    _run(library, tmp_path, _barrier, backend=backend)


# ---- memory -------------------------------------------------------------------------------------


def _host_memory(rank: int, world: int) -> int:
    lag = _delayed((0.0, 0.0))
    tensors = [torch.ones(1 << 22, device="lag") for _ in range(6)]  # of 16 MiB
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    for size in range(1, 200_000, 997):
        dist.broadcast(torch.ones(size, device="lag"), 0)
    for tensor in tensors:
        _check("all_reduce", tensor, torch.full((1 << 22,), float(world)))
    return lag.pinned_bytes()


def test_host_memory_is_bounded(tmp_path: Path, library: Path) -> None:
    # With costs that were measured, a slow machine would have larger pieces.
    plan = replace(make_plan(_WORLD, 2), cost_model=CostModel(1e-5, 1e-5, 1e-10)).validate()
    for pinned_bytes in values(run_ranks(plan, tmp_path, on_device(library, _host_memory))):
        assert 0 < pinned_bytes <= (32 + 2 * 16) << 20  # kStagingBytes and two pieces


def _plain_memory(rank: int, world: int) -> tuple[int, str]:
    lag = _delayed((0.0, 0.0))
    lag.set_pinned_memory(False)
    before = lag.counters()["blocking_copies"]
    tensor = torch.full((1000,), float(rank), device="lag")
    with tempfile.TemporaryFile("r+") as log:
        os.dup2(log.fileno(), 2)
        for _ in range(2):
            dist.all_reduce(tensor)
        log.seek(0)
        messages = log.read()
    copies = lag.counters()["blocking_copies"] - before
    _check("all_reduce", tensor, torch.full((1000,), 9.0))
    return copies, messages


def test_without_pinned_memory_plain_memory_serves(tmp_path: Path, library: Path) -> None:
    for copies, messages in _run(library, tmp_path, _plain_memory):
        assert copies == 4
        assert messages.count("no pinned memory for tensors on lag") == 1


# ---- failures -----------------------------------------------------------------------------------


def _bad_arguments(rank: int, world: int) -> None:
    on_lag, on_cpu = torch.ones(3, device="lag"), torch.ones(3)
    with refused(ValueError, "one device", "lag:0", "cpu"):
        dist.all_gather([on_lag, on_lag, on_cpu], on_lag)
    with refused(ValueError, "one device", "lag:0", "lag:1"):
        dist.all_reduce_coalesced([on_lag, torch.ones(3, device="lag:1")])
    with refused(TypeError, "AVG", "booleans"):
        dist.all_reduce(on_lag > 0, op=dist.ReduceOp.AVG)
    whole = torch.ones(3, dtype=torch.int32, device="lag")
    premul_sum = dist._make_nccl_premul_sum(torch.ones(1, device="lag"))
    with refused(TypeError, "PREMUL_SUM", "floats"):
        dist.all_reduce(whole, op=premul_sum)
    with refused(ValueError, "splits", 2, 3):
        dist.all_to_all_single(torch.empty_like(on_lag), on_lag, [1, 1, 1], [1, 1, 0])
    # None of these has reached the others.
    dist.all_reduce(on_lag)
    _check("all_reduce", on_lag, torch.full((3,), 3.0))
    second = torch.ones(3, device="lag:1")
    dist.all_reduce(second)
    _check("on the second device", second, torch.full((3,), 3.0))


def test_bad_arguments_raise_at_the_call(tmp_path: Path, library: Path) -> None:
    _run(library, tmp_path, _bad_arguments)


def _recording(rank: int, world: int) -> str:
    import lag

    tensor = torch.zeros(1, device="lag")
    lag.record_graphs(lag.knows_graphs)
    try:
        dist.all_reduce(tensor)
        return "" if lag.knows_graphs else "torch does not ask devices whether they record graphs"
    except RuntimeError as error:
        message = str(error)
    lag.record_graphs(False)
    dist.all_reduce(tensor)  # what was refused does not count
    return message


def test_graphs_are_refused(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _recording):
        if message.startswith("torch"):
            pytest.skip(message)
        assert named(message, "all_reduce", "lag:0", "graph")


def _mismatch(rank: int, world: int) -> str:
    tensor = torch.ones(10 + rank, device="lag")
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(RuntimeError):
        dist.all_reduce(tensor)
    return str(caught.value)


def test_ranks_that_disagree_get_an_error(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _mismatch):
        assert "topoopt: " in message


def _abort(rank: int, world: int) -> str:
    lag = _delayed((0.0, 0.0))
    tensor = torch.ones(10, device="lag")
    dist.all_reduce(tensor)
    lag.hold_streams()  # the copy to the host will not come
    work = dist.all_reduce(tensor, async_op=True)
    abort_once_all_have_called(rank, world)
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    lag.release_streams()
    return str(caught.value)


def test_an_abort_fails_what_has_not_been_started(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _abort):
        assert "aborted by rank 0" in message


# ---- training -----------------------------------------------------------------------------------


def _train(rank: int, world: int) -> list[Any]:
    _delayed((0.001, 0.003))
    torch.manual_seed(rank)  # DDP makes the parameters those of rank 0
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    reference = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    parallel = torch.nn.parallel.DistributedDataParallel(model.to("lag"), bucket_cap_mb=0.0005)
    reference.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    for step in range(2):
        inputs = torch.randn(world, 5, 8, generator=torch.Generator().manual_seed(step))
        parallel(inputs[rank].to("lag")).square().mean().backward()
        sum(reference(part).square().mean() / world for part in inputs).backward()
        for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), other.grad)
            for parameter in (mine, other):
                parameter.data.add_(parameter.grad, alpha=-0.1)
                parameter.grad = None
    return [parameter.tolist() for parameter in model.parameters()]


def test_data_parallel_training_on_the_device(tmp_path: Path, library: Path) -> None:
    first, *others = _run(library, tmp_path, _train)
    assert others == [first] * (_WORLD - 1)
