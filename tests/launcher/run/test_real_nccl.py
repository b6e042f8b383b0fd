"""`topoopt run --nccl` with NCCL itself: four servers in a ring, whose ranks share one GPU.

Opposite servers have no cable, so whatever joins them is relayed by the plugin.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.fabric.netns_fixtures import require_namespaces

if TYPE_CHECKING:
    from support.launcher import Launcher

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(200),
]

_WORLD = 4
_SCRIPT = """\
import json, os
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)

def ramp(rank, elements):
    return (torch.arange(elements, device=device) % 13).float() * (rank + 1)

def check(name, got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")

for size in (1, 1000, (1 << 20) + 3):
    every = [ramp(r, size * world) for r in range(world)]
    tensor = ramp(rank, size)
    dist.all_reduce(tensor)
    check("all_reduce", tensor, sum(e[:size] for e in every))
    tensor = ramp(rank, size)
    dist.broadcast(tensor, 2)
    check("broadcast", tensor, every[2][:size])
    output = torch.empty(size * world, device=device)
    dist.all_gather_into_tensor(output, ramp(rank, size))
    check("all_gather", output, torch.cat([e[:size] for e in every]))
    output = torch.empty(size, device=device)
    dist.reduce_scatter_tensor(output, ramp(rank, size * world))
    check("reduce_scatter", output, sum(every).chunk(world)[rank])
    output = torch.empty(size * world, device=device)
    dist.all_to_all_single(output, ramp(rank, size * world))
    check("all_to_all", output, torch.cat([e.chunk(world)[rank] for e in every]))
    for away in range(1, world):
        to, source = (rank + away) % world, (rank - away) % world
        got = torch.empty(size, device=device)
        calls = [dist.P2POp(dist.isend, ramp(rank, size), to), dist.P2POp(dist.irecv, got, source)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        check(f"from {source}", got, every[source][:size])

groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
tensor = ramp(rank, 1000)
dist.all_reduce(tensor, group=groups[rank % 2])
check("opposite", tensor, ramp(rank % 2, 1000) + ramp(rank % 2 + 2, 1000))

torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
parallel = torch.nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    parallel(torch.randn(16, 64, device=device)).square().mean().backward()
    optimizer.step()
with open(f"parameters{rank}.json", "w") as file:
    json.dump([parameter.tolist() for parameter in model.parameters()], file)
dist.destroy_process_group()
"""


def _parameters(launcher: Launcher, *options: str) -> list[Any]:
    (launcher.folder / "train.py").write_text(_SCRIPT)
    done = launcher.run(
        *("run", "--nccl", "--servers", str(_WORLD), "--degree", "2", "--model", "none"),
        *(*options, "train.py"),
        PYTHONUNBUFFERED="1",  # a process of its own: forks of one that counted GPUs have none
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_FILE=str(launcher.folder / "nccl.%p"),
    )
    logs = [path.read_text() for path in launcher.folder.glob("nccl.*")]
    assert done.returncode == 0, done.stderr + done.stdout + "\n".join(logs)[-20_000:]
    assert len(logs) == _WORLD
    for log in logs:
        assert "Using network topoopt" in log, log
        assert "NET/Socket" not in log, log
    return [
        json.loads((launcher.folder / f"parameters{rank}.json").read_text())
        for rank in range(_WORLD)
    ]


@pytest.mark.parametrize("fabric", ["loopback", "netns"])
def test_every_operation_and_training_on_a_ring(launcher: Launcher, fabric: str) -> None:
    if fabric == "netns":
        require_namespaces()
    first, *others = _parameters(launcher, "--fabric", fabric)
    assert others == [first] * (_WORLD - 1)
