"""TOPOOPT_BLOCKING_WAIT=0: wait() lets streams of a device wait, and the host goes on.

The device is "lag" (see test_device.py).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.device import build, load, on_device
from support.backend.ranks import make_plan, run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORLD = 3
_SIZE = 1000


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


def _run(library: Path, folder: Path, body: Callable[[int, int], Any], **options: Any) -> list[Any]:
    function = on_device(library, body, **{"blocking_wait": False, **options})
    return values(run_ranks(make_plan(_WORLD, 2), folder, function))


def _ramp(rank: int) -> torch.Tensor:
    return (torch.arange(_SIZE) % 13).float() * (rank + 1)


def _check(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.cpu(), expected)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _host_goes_on(rank: int, world: int) -> None:
    total = sum(_ramp(r) for r in range(world))
    tensor = _ramp(rank).to("lag")
    if rank > 0:  # the first rank's wait() is over before the others have called
        _store().wait(["waited"])
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    tensor.add_(1)
    dist.all_reduce(tensor)
    if rank == 0:
        _store().set("waited", "")
    _check(tensor, (total + 1) * world)


def test_the_host_goes_on_before_others_have_called(tmp_path: Path, library: Path) -> None:
    _run(library, tmp_path, _host_goes_on)


def _behind(rank: int, world: int) -> None:
    """A message comes while the stream waits for a collective called before it."""
    total = sum(_ramp(r) for r in range(world))
    tensor, got = _ramp(rank).to("lag"), torch.zeros(_SIZE, device="lag")
    if rank == 1:
        sent = dist.isend(_ramp(1).to("lag"), 0)
        _store().wait(["waits"])
        sent.wait()
    dist.all_reduce(tensor)
    if rank == 0:
        dist.irecv(got, 1).wait()
        _store().set("waits", "")
        _check(got, _ramp(1))
    _check(tensor, total)


@pytest.mark.parametrize("memory", ["device", "host"])
def test_a_message_behind_a_collective_that_is_not_over(
    tmp_path: Path, library: Path, memory: str
) -> None:
    _run(library, tmp_path, _behind, memory=memory)


def _abort(rank: int, world: int) -> str:
    tensor = _ramp(rank).to("lag")
    if rank == 0:
        dist.all_reduce(tensor)
        _store().set("waits", "")
        tensor.cpu()  # whatever is in it
    else:
        _store().wait(["waits"])
        dist.group.WORLD.abort()
    try:
        dist.all_reduce(torch.zeros(1, device="lag"))
        dist.barrier()
    except RuntimeError as error:
        return str(error)
    return ""


def test_streams_go_on_after_a_failure_and_the_next_call_raises(
    tmp_path: Path, library: Path
) -> None:
    first, *_ = _run(library, tmp_path, _abort)
    assert "the process group was aborted by rank" in first


def _end(rank: int, world: int) -> list[float]:
    """The group ends while streams wait."""
    import lag

    lag.set_delays_s(0.02, 0.02)
    tensor = _ramp(rank).to("lag")
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.destroy_process_group()
    got = tensor.tolist()
    dist.init_process_group("cpu:topoopt,lag:topoopt")
    return got


def test_the_end_of_a_group_comes_after_what_streams_wait_for(
    tmp_path: Path, library: Path
) -> None:
    total = sum(_ramp(r) for r in range(_WORLD)) * _WORLD**2  # of three in a row
    for got in _run(library, tmp_path, _end):
        assert got == total.tolist()


def _host_waits(rank: int, world: int) -> None:
    if rank == 1:
        _store().set("called", "")
    dist.barrier(device_ids=[0])
    assert _store().check(["called"])
    got = torch.zeros(_SIZE, device="lag")
    if rank == 0:
        assert dist.recv(got) == 1
    elif rank == 1:
        dist.send(_ramp(1).to("lag"), 0)
    tensor = _ramp(rank).to("lag")
    assert dist.all_reduce(tensor, async_op=True).wait(torch.distributed.default_pg_timeout)


def test_barriers_receives_from_anywhere_and_limits_block_the_host(
    tmp_path: Path, library: Path
) -> None:
    _run(library, tmp_path, _host_waits)


def _without_waits(library: Path, rank: int, world: int) -> str:
    load(library)
    os.environ["TOPOOPT_BLOCKING_WAIT"] = "0"
    dist.init_process_group("cpu:topoopt,lag:topoopt")
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.zeros(1, device="lag"))
    dist.destroy_process_group()
    return str(caught.value)


def test_a_device_whose_streams_cannot_wait_is_named(tmp_path: Path, library: Path) -> None:
    ranks = run_ranks(make_plan(_WORLD, 2), tmp_path, partial(_without_waits, library))
    for message in values(ranks):
        assert "TOPOOPT_BLOCKING_WAIT: 0, but streams of lag:0 cannot wait for memory" in message


def _recording(rank: int, world: int) -> str:
    import lag

    if not lag.knows_graphs:
        return ""
    tensor = torch.zeros(1, device="lag")
    lag.record_graphs(True)
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(tensor)
    lag.record_graphs(False)
    dist.all_reduce(tensor)
    return str(caught.value)


@pytest.mark.parametrize("blocking_wait", [True, False])
def test_graphs_are_refused(tmp_path: Path, library: Path, *, blocking_wait: bool) -> None:
    for message in _run(library, tmp_path, _recording, blocking_wait=blocking_wait):
        if not message:
            pytest.skip("this torch does not ask devices whether they record graphs")
        assert "all_reduce: the stream of lag:0 is recording a graph" in message


@pytest.mark.parametrize("value", ["2", "no"])
def test_other_values_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_topoopt.runtime.backend import prepared_extension

    monkeypatch.setenv("TOPOOPT_BLOCKING_WAIT", value)
    with pytest.raises(RuntimeError, match=f"TOPOOPT_BLOCKING_WAIT: '{value}' is not one of 0, 1"):
        prepared_extension()
