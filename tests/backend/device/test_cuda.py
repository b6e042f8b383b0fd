"""The backend on a CUDA device: all ranks share device 0.

Run as a script it prints how long all_reduce takes for tensors on the device and on the CPU:
    python tests/backend/device/test_cuda.py
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import torch_topoopt

_WORLD = 3
_LARGE = 3 * (1 << 20) + 5  # float32 elements: several pieces
_CYCLES = (
    20_000_000  # of the device: some milliseconds, in which nothing may be read or overwritten
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _ramp(rank: int, elements: int) -> torch.Tensor:
    return (torch.arange(elements) % 13).float() * (rank + 1)


def _late(rank: int, elements: int) -> torch.Tensor:
    """There only when the current stream has slept and multiplied."""
    tensor = _ramp(0, elements).cuda()
    torch.cuda._sleep(_CYCLES)
    return tensor.mul_(rank + 1)


def _check(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


def _operations(rank: int, world: int) -> None:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    everything = [_ramp(r, _LARGE * world) for r in range(world)]
    total = sum(everything)
    with torch.cuda.stream(torch.cuda.Stream()):
        for size in (0, 1000, _LARGE):
            tensor = _late(rank, size)
            dist.all_reduce(tensor)
            tensor.add_(1)
            _check(f"all_reduce of {size}", tensor, total[:size] + 1)
        tensor = _late(rank, 1000)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        _check("AVG", tensor, total[:1000] / world)
        tensor = _late(rank, 1000)
        factor = torch.tensor(3.0, device="cuda")
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        _check("PREMUL_SUM", tensor, total[:1000] * 3)
        tensor = _late(rank, _LARGE)
        dist.broadcast(tensor, 1)
        _check("broadcast", tensor, everything[1][:_LARGE])
        output = torch.empty(_LARGE * world, device="cuda")
        dist.all_gather_into_tensor(output, _late(rank, _LARGE))
        _check("all_gather", output, torch.cat([part[:_LARGE] for part in everything]))
        output = torch.empty(_LARGE, device="cuda")
        dist.reduce_scatter_tensor(output, _late(rank, _LARGE * world))
        _check("reduce_scatter", output, total.chunk(world)[rank])
        output = torch.empty(_LARGE * world, device="cuda")
        dist.all_to_all_single(output, _late(rank, _LARGE * world))
        _check("all_to_all", output, torch.cat([e.chunk(world)[rank] for e in everything]))
        got = torch.empty(_LARGE, device="cuda")
        left = (rank - 1) % world
        operations = [
            dist.P2POp(dist.isend, _late(rank, _LARGE), (rank + 1) % world),
            dist.P2POp(dist.irecv, got, left),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        _check("messages", got, everything[left][:_LARGE])
        future = dist.all_reduce(_late(rank, 1000), async_op=True).get_future()
        scaled = future.then(lambda done: done.value()[0].mul_(10)).wait()
        _check("future", scaled, total[:1000] * 10)
    dist.barrier(device_ids=[0])
    dist.destroy_process_group()


def test_every_operation_gives_the_right_values(tmp_path: Path) -> None:
    values(run_ranks(make_plan(_WORLD, 2), tmp_path, _operations))


def _records_a_graph(rank: int, world: int) -> str:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    tensor = torch.ones(1000, device="cuda")
    message = "no error"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            message = str(error)
    graph.replay()
    dist.all_reduce(tensor)
    _check("after a capture", tensor, torch.full((1000,), 2.0 * world))
    dist.destroy_process_group()
    return message


def test_graphs_are_refused(tmp_path: Path) -> None:
    for message in values(run_ranks(make_plan(_WORLD, 2), tmp_path, _records_a_graph)):
        assert "all_reduce: the stream of cuda:0 is recording a graph" in message


class _Managed:
    """`elements` float32 of managed memory, which stays until the process ends."""

    def __init__(self, elements: int) -> None:
        address = ctypes.c_uint64()
        torch.cuda.init()
        driver = ctypes.CDLL("libcuda.so.1")
        attach_global = 1  # <cuda.h>: CU_MEM_ATTACH_GLOBAL
        error = driver.cuMemAllocManaged(ctypes.byref(address), 4 * elements, attach_global)
        assert error == 0, error
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (address.value, False),
            "version": 3,
        }


def _memories(rank: int, world: int) -> dict[str, bool]:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    device = torch.device("cuda", 0)
    backend = dist.group.WORLD._get_backend(device)
    total = sum(_ramp(r, _LARGE) for r in range(world))
    tensors = {
        "page-locked": backend.allocate_tensor(_LARGE, dtype=torch.float32, device=device),
        "managed": torch.as_tensor(_Managed(_LARGE), device=device),
        "of the device": torch.empty(_LARGE, device=device),
    }
    for name, tensor in tensors.items():
        tensor.copy_(_ramp(0, _LARGE))
        torch.cuda._sleep(_CYCLES)
        tensor.mul_(rank + 1)
        dist.all_reduce(tensor)
        tensor.add_(1)
        _check(name, tensor, total + 1)
    found = torch_topoopt.stats()["device_memory"]
    dist.destroy_process_group()
    return {use["memory"]: use["in_place"] for use in found}


def test_memory_that_the_host_reaches_is_used_in_place(tmp_path: Path) -> None:
    for uses in values(run_ranks(make_plan(_WORLD, 2), tmp_path, _memories)):
        assert uses.pop("page-locked host memory") is True
        assert uses.pop("memory of the device alone") is False
        ((managed, in_place),) = uses.items()  # which depends on the GPU
        assert managed.startswith("managed memory")
        assert in_place == (managed == "managed memory")


def _train(kind: str, rank: int, world: int) -> list[Any]:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    model.cuda()
    parallel: Any = model
    if kind == "ddp":
        parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    elif kind == "fsdp":
        parallel = fully_shard(model, mesh=init_device_mesh("cuda", (world,)))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        parallel(torch.randn(16, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    found = [parameter.tolist() for parameter in whole]
    dist.destroy_process_group()
    return found


def test_data_parallel_ranks_stay_alike(tmp_path: Path) -> None:
    trained = []
    for kind in ("ddp", "fsdp"):
        (tmp_path / kind).mkdir()
        body = partial(_train, kind)
        first, *others = values(run_ranks(make_plan(_WORLD, 2), tmp_path / kind, body))
        assert others == [first] * (_WORLD - 1)
        trained.append(first)
    for ddp, fsdp in zip(*trained, strict=True):
        torch.testing.assert_close(torch.tensor(fsdp), torch.tensor(ddp))


def _measure(rank: int, world: int) -> list[tuple[str, int, float]]:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    rows = []
    for device in ("cuda", "cpu"):
        for size_bytes in (4 << 10, 1 << 20, 16 << 20, 128 << 20):
            tensor = torch.ones(size_bytes // 4, device=device)
            seconds = []
            for _ in range(6):
                dist.barrier()
                torch.cuda.synchronize()
                start = time.perf_counter()
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
            rows.append((device, size_bytes, sorted(seconds[1:])[2]))
    dist.destroy_process_group()
    return rows


def _print_table() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = values(run_ranks(make_plan(_WORLD, 2), Path(folder), _measure, limit_s=600.0))[0]
    print(f"{'device':>8} {'bytes':>12} {'median_s':>12}")
    for device, size_bytes, seconds in rows:
        print(f"{device:>8} {size_bytes:>12} {seconds:>12.6f}")


if __name__ == "__main__":
    _print_table()
