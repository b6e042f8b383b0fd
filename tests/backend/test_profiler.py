"""torch.profiler sees operations as it sees those of gloo and NCCL."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch.profiler import ProfilerActivity, profile

CALLS = [
    # name, of the work, elements in and out, group size
    ("allreduce", "topoopt:all_reduce", 1000, 1000, 4),
    ("broadcast", "topoopt:broadcast", 6, 6, 4),
    ("_allgather_base", "topoopt:_all_gather_base", 5, 20, 4),
    ("reduce_scatter", "topoopt:reduce_scatter", 12, 3, 4),
    ("all_to_all", "topoopt:all_to_all", 8, 8, 4),
    ("barrier", "topoopt:barrier", 0, 0, 4),
    ("all_gather", "topoopt:all_gather", 3, 6, 2),
]


def calls(rank: int, pair: Any) -> None:
    dist.all_reduce(torch.ones(10, 100))
    dist.broadcast(torch.ones(6, dtype=torch.int64), 2)
    dist.all_gather_into_tensor(torch.zeros(20), torch.ones(5))
    dist.reduce_scatter(torch.zeros(3), list(torch.ones(4, 3)))
    dist.all_to_all_single(torch.zeros(8), torch.ones(8))
    dist.barrier()
    if rank % 2 == 0:
        dist.all_gather(list(torch.zeros(2, 3)), torch.ones(3), group=pair)
    if rank == 1:
        dist.send(torch.ones(7), 3)
    if rank == 3:
        dist.recv(torch.zeros(7), 1)


def check_profile(rank: int, world: int) -> None:
    pair = dist.new_group([0, 2])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        calls(rank, pair)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    seen = {
        event["args"]["Collective name"]: event["args"]
        for event in events
        if event["name"] == "record_param_comms"
    }
    names = {event["name"] for event in events}
    for name, title, elements_in, elements_out, size in CALLS:
        if size == 2 and rank % 2:
            continue
        assert title in names
        assert seen[name]["In msg nelems"] == elements_in, name
        assert seen[name]["Out msg nelems"] == elements_out, name
        assert seen[name]["Group size"] == size
        ranks = "[0, 1, 2, 3]" if size == 4 else "[0, 2]"
        assert seen[name]["Process Group Ranks"] == ranks
    assert seen["allreduce"]["dtype"] == "Float"
    assert seen["broadcast"]["dtype"] == "Long"
    assert seen["allreduce"]["Process Group Description"] == "default_pg"
    (reduce,) = [event for event in events if event["name"] == "topoopt:all_reduce"]
    assert reduce["args"]["Input Dims"] == [[10, 100]]
    if rank == 1:
        assert seen["send"]["In msg nelems"] == 7
    if rank == 3:
        assert seen["recv"]["Out msg nelems"] == 7


def check_unprofiled(rank: int, world: int) -> None:
    """A call that is refused, and calls after the profiler has gone."""
    with profile(activities=[ProfilerActivity.CPU]), contextlib.suppress(ValueError):
        dist.broadcast(torch.ones(1), 9)
    calls(rank, dist.new_group([0, 2]))


def check(rank: int, world: int) -> bool:
    dist.init_process_group("topoopt")
    check_profile(rank, world)
    check_unprofiled(rank, world)
    dist.destroy_process_group()
    return True


def test_names_sizes_and_groups_are_in_the_trace_of_torch_profiler(tmp_path: Path) -> None:
    assert values(run_ranks(make_plan(4, 2), tmp_path, check)) == [True] * 4
