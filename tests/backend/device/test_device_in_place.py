"""Tensors on a device whose memory the host reaches: operations use them where they are.

The device is "lag" (see test_device.py), which also has memory that the host reaches.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.device import abort_once_all_have_called, build, on_device
from support.backend.ranks import make_plan, run_ranks, values
from support.refusals import named, refused

import torch_topoopt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORLD = 3
# float32 elements: longer than a slice of what is staged, and than a piece of an all_reduce
_LARGE, _LONG = (1 << 19) + 5, 5 * (1 << 20) + 5
_BLOCK = 6 * (1 << 18) + 1  # of three together, two pieces
_PINNED = "page-locked host memory"


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


def _run(library: Path, folder: Path, body: Callable[[int, int], Any], **options: Any) -> list[Any]:
    function = on_device(library, body, **{"memory": "host", **options})
    return values(run_ranks(make_plan(_WORLD, 2), folder, function))


def _ramp(rank: int, elements: int) -> torch.Tensor:
    return _pattern(elements) * (rank + 1)


@cache
def _pattern(elements: int) -> torch.Tensor:
    return (torch.arange(elements) % 13).float()


def _late(rank: int, elements: int) -> torch.Tensor:
    """The same on the device, where it is there only when the current stream has come that far."""
    return _pattern(elements).to("lag").mul_(rank + 1)


def _check(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.cpu(), expected), name


def _uses() -> dict[str, tuple[bool, int]]:
    """Of all groups: (in place, bytes) by kind of memory."""
    found = torch_topoopt.stats()["device_memory"]
    return {use["memory"]: (use["in_place"], use["bytes"]) for use in found}


def _backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("lag"))


# ---- no copies ----------------------------------------------------------------------------------


def _without_copies(rank: int, world: int) -> dict[str, tuple[bool, int]]:
    import lag

    total = sum(_ramp(r, _LARGE) for r in range(world))
    tensor, output = _late(rank, _LARGE), torch.zeros(_LARGE, device="lag")
    gathered = torch.zeros(world * 1000, device="lag")
    gathered.chunk(world)[rank].copy_(_late(rank, 1000))
    torch.accelerator.synchronize()
    before = lag.counters()
    dist.all_reduce(tensor)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(output, 0)
    dist.all_gather_into_tensor(gathered, gathered.chunk(world)[rank])
    after = lag.counters()
    assert after == before, (_uses(), before, after)  # neither a copy nor a synchronisation
    assert lag.pinned_bytes() == 0, "no memory for staging"
    _check("all_reduce", tensor, total)
    _check("all_gather", gathered, torch.cat([_ramp(r, 1000) for r in range(world)]))
    if rank == 1:
        _check("message", output, total)
    return _uses()


def test_nothing_is_copied_and_no_host_memory_is_taken(tmp_path: Path, library: Path) -> None:
    size = 4 * _LARGE
    uses = _run(library, tmp_path, _without_copies)
    expected = [size * (2 if rank < 2 else 1) + 4 * _WORLD * 1000 for rank in range(_WORLD)]
    assert uses == [{_PINNED: (True, number)} for number in expected]


def _mixed(rank: int, world: int) -> dict[str, tuple[bool, int]]:
    """Ranks whose memory differs, blocks that lie apart, results inside of what is reduced."""
    import lag

    if rank == 0:
        lag.set_memory("device")
    tensor = _late(rank, _LONG)
    dist.all_reduce(tensor)
    _check("all_reduce", tensor, sum(_ramp(r, _LONG) for r in range(world)))
    total = sum(_ramp(r, _BLOCK * world) for r in range(world))
    whole = _late(rank, _BLOCK * world)
    dist.reduce_scatter_tensor(whole.chunk(world)[rank], whole)
    _check("reduce_scatter in place", whole.chunk(world)[rank], total.chunk(world)[rank])
    output = torch.zeros(_BLOCK, device="lag")
    dist.reduce_scatter_tensor(output, _late(rank, _BLOCK * world))
    _check("reduce_scatter", output, total.chunk(world)[rank])
    return _uses()


def test_what_is_in_place_and_what_is_copied_work_together(tmp_path: Path, library: Path) -> None:
    staged, *others = _run(library, tmp_path, _mixed)
    assert {in_place for in_place, _ in staged.values()} == {False}
    for uses in others:
        assert uses[_PINNED][0]
        assert not uses["parts that lie apart"][0]
        assert not uses["memory of another tensor, which is copied"][0]


@pytest.mark.parametrize(
    ("memory", "asked", "why"),
    [
        ("device", "auto", "memory of the device alone"),
        ("not there", "auto", "no memory of this process"),
        ("host", "copy", "TOPOOPT_DEVICE_MEMORY=copy"),
    ],
)
def test_the_rest_is_copied_and_says_why(
    tmp_path: Path, library: Path, memory: str, asked: str, why: str
) -> None:
    body = partial(_said, asked)
    outcomes = run_ranks(make_plan(2, 1), tmp_path, partial(_alone, library, memory, body))
    for uses, allocates, log in values(outcomes):
        assert uses == {why: (False, 2 * 4000)}
        assert allocates == (asked == "auto")
        line = f"torch_topoopt INFO: tensors on lag are copied to the host and back: {why}\n"
        assert log.count(line) == 1


def _alone(library: Path, memory: str, body: Any, rank: int, world: int) -> Any:
    """Without a process group, which `body` opens itself."""
    from support.backend.device import load

    load(library).set_memory(memory)
    return body(rank, world)


def _said(asked: str, rank: int, world: int) -> tuple[Any, bool, str]:
    os.environ.update(TOPOOPT_LOG="info", TOPOOPT_DEVICE_MEMORY=asked)
    with tempfile.TemporaryFile("r+") as log:
        os.dup2(log.fileno(), 2)
        dist.init_process_group("cpu:topoopt,lag:topoopt")
        for _ in range(2):
            tensor = _late(rank, 1000)
            dist.all_reduce(tensor)
            _check("all_reduce", tensor, _ramp(0, 1000) + _ramp(1, 1000))
        uses = _uses()
        allocates = _backend().supports_tensor_alloc(torch.device("lag", 0))
        dist.destroy_process_group()
        log.seek(0)
        return uses, allocates, log.read()


def _wrong(rank: int, world: int) -> str:
    os.environ["TOPOOPT_DEVICE_MEMORY"] = "never"
    with pytest.raises(RuntimeError) as caught:
        dist.init_process_group("topoopt")
    return str(caught.value)


def test_another_value_is_refused(tmp_path: Path) -> None:
    (message,) = values(run_ranks(make_plan(1, 1), tmp_path, _wrong))
    assert message == "TOPOOPT_DEVICE_MEMORY: 'never' is not one of auto, copy"


# ---- order and failures -------------------------------------------------------------------------


def _held(rank: int, world: int) -> None:
    import lag

    store = dist.distributed_c10d._get_default_store()
    # A stream that has not come to the operation holds it back, and not the host.
    tensor, other = (_ramp(0, 1000).to("lag") for _ in range(2))
    with torch.Stream("lag"):
        lag.hold_streams()
        tensor.mul_(rank + 1)
        started = _backend()._get_sequence_number_for_group()
        work = dist.all_reduce(tensor, async_op=True)
        store.set(f"called {rank}", "")
        store.wait([f"called {other}" for other in range(world)])
        assert _backend()._get_sequence_number_for_group() == started
        assert not work.is_completed()
        lag.release_streams()
        work.wait()
        tensor.add_(1)
        _check("all_reduce", tensor, sum(_ramp(r, 1000) for r in range(world)) + 1)
    # The tensor is let go, and its memory wanted by others, while the operation has not begun.
    with torch.Stream("lag"):
        lag.hold_streams()
        work = dist.all_reduce(other.mul_(rank + 1), async_op=True)
        del other
        others = [torch.zeros(1000, device="lag") for _ in range(3)]
        lag.release_streams()
        work.wait()
        _check("let go", work.result()[0], sum(_ramp(r, 1000) for r in range(world)))
        for zeros in others:
            _check("others", zeros, torch.zeros(1000))


def test_an_operation_begins_when_the_stream_has_come_to_it(tmp_path: Path, library: Path) -> None:
    _run(library, tmp_path, _held)


def _abort(rank: int, world: int) -> str:
    import lag

    tensor = _ramp(0, 1000).to("lag")
    with torch.Stream("lag"):
        lag.hold_streams()
        work = dist.all_reduce(tensor.mul_(rank + 1), async_op=True)
        abort_once_all_have_called(rank, world)
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        lag.release_streams()
        _check("not touched", tensor, _ramp(rank, 1000))
    return str(caught.value)


def test_an_abort_ends_what_waits_for_the_stream(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _abort):
        assert "aborted by rank 0" in message


def _failed_stream(rank: int, world: int) -> str:
    import lag

    tensor = _late(rank, 1000)
    if rank == 1:
        lag.fail_events(True)
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(tensor)
    lag.fail_events(False)
    store = dist.distributed_c10d._get_default_store()  # nobody leaves before all have heard of it
    store.set(f"failed {rank}", "")
    store.wait([f"failed {other}" for other in range(world)])
    return str(caught.value)


def test_a_stream_that_fails_ends_the_operation_on_all_ranks(tmp_path: Path, library: Path) -> None:
    for message in _run(library, tmp_path, _failed_stream):
        assert named(message, "lag", "failed")


# ---- tensors that the backend makes -------------------------------------------------------------


def _made(rank: int, world: int) -> None:
    import lag

    lag.set_memory("device")
    backend, device = _backend(), torch.device("lag", 0)
    assert backend.supports_tensor_alloc(device)
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=device)
    assert tensor.device == device
    tensor.copy_(_late(rank, 1000))
    dist.all_reduce(tensor)
    _check("all_reduce", tensor, sum(_ramp(r, 1000) for r in range(world)))
    assert _uses() == {_PINNED: (True, 4000)}
    # What is freed while the stream still reads it is not used again before.
    with torch.Stream("lag"):
        lag.hold_streams()
        copy = tensor.clone()
        del tensor
        other = backend.allocate_tensor(1000, dtype=torch.float32, device=device)
        held = lag.pinned_bytes()
        lag.release_streams()
        _check("freed", copy, sum(_ramp(r, 1000) for r in range(world)))
        torch.accelerator.synchronize()
        del other
        empty = backend.allocate_tensor(0, dtype=torch.float32, device=device)
        assert held == 8000
        assert lag.pinned_bytes() < held
        assert empty.shape == (0,)
    with refused(ValueError, "accelerator", "cpu"):
        backend.allocate_tensor(3, dtype=torch.float32, device=torch.device("cpu"))


def test_the_backend_makes_tensors_that_need_no_copy(tmp_path: Path, library: Path) -> None:
    _run(library, tmp_path, _made)


def _train(rank: int, world: int) -> tuple[list[Any], dict[str, tuple[bool, int]]]:
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"  # PyTorch's own switch
    import lag

    lag.set_memory("device")
    lag.set_delays_s(0.001, 0.001)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to("lag")
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    before = sum(size for in_place, size in _uses().values() if not in_place)
    for step in range(2):
        inputs = torch.randn(world, 5, 64, generator=torch.Generator().manual_seed(step))
        parallel(inputs[rank].to("lag")).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None
    after = _uses()
    copied = sum(size for in_place, size in after.values() if not in_place) - before
    assert copied < 1000, "more than the order of parameters in buckets"
    return [parameter.tolist() for parameter in model.parameters()], after


def test_gradients_of_data_parallel_ranks_are_not_copied(tmp_path: Path, library: Path) -> None:
    first, *others = _run(library, tmp_path, _train, backend="lag:topoopt")
    assert others == [first] * (_WORLD - 1)
    assert first[1][_PINNED] == (True, 2 * 4 * (64 * 64 + 64))


def _over_libfabric(rank: int, world: int) -> dict[str, tuple[bool, int]]:
    os.environ["TOPOOPT_TRANSPORT"] = "fabric:tcp"
    dist.init_process_group("cpu:topoopt,lag:topoopt")
    tensor = _late(rank, 100_000)  # whose parts are written into their places
    dist.all_reduce(tensor)
    _check("all_reduce", tensor, sum(_ramp(r, 100_000) for r in range(world)))
    uses = _uses()
    dist.destroy_process_group()
    return uses


def test_links_that_register_memory(tmp_path: Path, library: Path) -> None:
    from torch_topoopt import _backend

    if missing := _backend.fabric_missing():
        pytest.skip(missing)
    function = partial(_alone, library, "host", _over_libfabric)
    for uses in values(run_ranks(make_plan(2, 1), tmp_path, function)):
        assert uses == {_PINNED: (True, 400_000)}
