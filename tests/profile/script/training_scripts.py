"""Small training scripts, each as a user would write it for torchrun on CPUs."""

from __future__ import annotations

_START = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert (rank, world) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
def train(model, inputs, count=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    for _ in range(count):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

DDP = f"""{_START}
from torch.nn.parallel import DistributedDataParallel
layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8))
train(DistributedDataParallel(layers, bucket_cap_mb=0.01), torch.ones(4, 64))
"""

FSDP2 = f"""{_START}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
for layer in layers:
    fully_shard(layer, mesh=mesh)
train(fully_shard(layers, mesh=mesh), torch.ones(4, 32))
"""

TENSOR_PARALLEL = f"""{_START}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
layers = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
parallelize_module(layers, mesh["tensor"], {{"1": ColwiseParallel(), "3": RowwiseParallel()}})
train(layers, torch.ones(8, 16), foreach=False)
"""

PIPELINE = f"""{_START}
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
layer = nn.Linear(16, 16)
example = torch.ones(2, 16, requires_grad=True)
stage = PipelineStage(layer, rank, world, torch.device("cpu"), output_args=(example,),
                      input_args=(example.detach() if rank == 0 else example,))
schedule = ScheduleGPipe(stage, 4, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for _ in range(3):
    if rank == 0:
        schedule.step(torch.ones(8, 16))
    elif rank == world - 1:
        schedule.step(target=torch.ones(8, 16))
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""

# As in PyTorch's tutorial: stages send each other the shapes of their inputs.
PIPELINE_SHAPES = f"""{_START}
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
layers = [nn.Linear(16, 16), nn.Linear(16, 16)]
stages = [PipelineStage(layer, rank + i * world, 2 * world, torch.device("cpu"))
          for i, layer in enumerate(layers)]
schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.01)
for _ in range(3):
    if rank == 0:
        schedule.step(torch.ones(8, 16))
    elif rank == world - 1:
        schedule.step(target=torch.ones(8, 16))
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""

# Objects come from rank 0; rank 1 gathers its own in the place of the others'.
OBJECTS = f"""{_START}
told, part = [(rank, "told")], [None]
dist.broadcast_object_list(told, src=0)
dist.scatter_object_list(part, [i * "x" for i in range(world)] if rank == 0 else None, src=0)
assert (told, part) == ([(0, "told")], [rank * "x"])
gathered = [None] * world if rank == 1 else None
dist.gather_object(rank, gathered, dst=1)
assert gathered == ([1] * world if rank == 1 else None)
train(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), torch.ones(1, 2))
"""

# Rank r sends r + 1 tokens to rank 0, and 1 to every other rank.
UNEVEN_EXPERTS = f"""{_START}
expert = nn.Linear(16, 16)
optimizer = torch.optim.SGD(expert.parameters(), lr=0.01)
for _ in range(3):
    sent = torch.ones(world, dtype=torch.int64)
    sent[0] += rank
    received = torch.empty(world, dtype=torch.int64)
    dist.all_to_all_single(received, sent)
    tokens, results = torch.ones(int(received.sum()), 16), torch.ones(int(sent.sum()), 16)
    dist.all_to_all_single(tokens, results, received.tolist(), sent.tolist())
    dist.all_to_all_single(results, expert(tokens).detach(), sent.tolist(), received.tolist())
    expert(results).sum().backward()
    optimizer.step()
"""

# Both ranks wait for the other's tokens before they send their own.
CROSSED = f"""{_START}
weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.01)
for _ in range(3):
    received = torch.zeros(2, dtype=torch.int64)
    work = dist.irecv(received, 1 - rank)
    dist.isend(torch.full((2,), rank), 1 - rank).wait()
    work.wait()
    weight.sum().backward()
    optimizer.step()
"""

# After two steps, pairs sum their gradients, and every third step all average their models.
LOCAL_SGD = f"""{_START}
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
state = post_localSGD_hook.PostLocalSGDState(None, pairs[rank // 2], start_localSGD_iter=2)
model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.01),
                                  PeriodicModelAverager(period=3, warmup_steps=2))
for _ in range(40):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

POWER_SGD = f"""{_START}
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64, bias=False))
state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=4, matrix_approximation_rank=1)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
train(model, torch.ones(4, 64), count=40)
"""

ZERO_JOIN = f"""{_START}
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
with Join([model, optimizer]):
    for _ in range(3 + rank):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

EXPERTS = f"""{_START}
from torch.distributed._functional_collectives import all_to_all_single_autograd
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, tokens):
        mine = all_to_all_single_autograd(self.router(tokens), None, None, dist.group.WORLD)
        return all_to_all_single_autograd(self.expert(mine), None, None, dist.group.WORLD)
train(Experts(), torch.ones(4 * world, 16))
"""

# One optimizer steps after the other; every operation of torch.distributed, on 10 floats.
OPERATIONS = f"""{_START}
from torch.optim import SGD
one, other = (SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
pair = dist.new_group([1, 2], backend="gloo")
def floats(count=10):
    return torch.ones(count)
for _ in range(2):
    dist.all_reduce(floats())
    one.step()
    dist.all_gather([floats() for _ in range(world)], floats())
    dist.all_gather_into_tensor(floats(10 * world), floats())
    dist.reduce_scatter(floats(), [floats() for _ in range(world)])
    dist.reduce_scatter_tensor(floats(), floats(10 * world))
    dist.broadcast(floats(), src=2, group=pair)
    dist.reduce(floats(), dst=0)
    dist.gather(floats(), [floats() for _ in range(world)] if rank == 0 else None, dst=0)
    dist.scatter(floats(), [floats() for _ in range(world)] if rank == 0 else None, src=0)
    dist.all_to_all([floats(i) for i in range(world)], [floats(i) for i in range(world)])
    dist.all_to_all_single(floats(6), floats(6), [1, 2, 3], [1, 2, 3])
    sending, receiving = dist.P2POp(dist.isend, floats(), 0), dist.P2POp(dist.irecv, floats(), 2)
    dist.batch_isend_irecv([sending, receiving])
    dist.barrier()
    other.step()
"""

# A store of the script's own, given to init_process_group or not.
OWN_STORE = """
import datetime, os, torch, torch.distributed as dist
from torch import nn
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
limit = datetime.timedelta(seconds=3)  # for the ranks that a trace does not have
store = dist.TCPStore("127.0.0.1", 0, world, rank == 0, timeout=limit)
assert isinstance(store, dist.TCPStore)
store.set("key", "value")
assert store.get("key") == b"value"
met, rank_there, world_there = next(dist.rendezvous("env://", timeout=limit))
assert (rank_there, world_there) == (rank, world)
dist.init_process_group(store=dist.PrefixStore("mine", met), rank=rank, world_size=world)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
"""
# Replicas of two ranks, as torchft's Manager connects them.
REPLICAS = f"""{_START}
import torch_topoopt
from torchft._torchft import ManagerClient, ManagerServer
replica_size = 2
server = ManagerServer(replica_id="replica", lighthouse_addr="http://127.0.0.1:1",
                       store_addr="127.0.0.1:2", world_size=replica_size)
client = ManagerClient(server.address(), connect_timeout=None)
quorum = client._quorum(group_rank=rank % replica_size, step=3)
assert (quorum.replica_rank, quorum.replica_world_size) == (rank // 2, world // 2)
assert (quorum.store_address, quorum.max_step, quorum.heal) == ("127.0.0.1:2", 3, False)
assert client.should_commit(0, 3, True, timeout=None)
group = torch_topoopt.new_process_group(
    dist.HashStore(), quorum.replica_rank, quorum.replica_world_size, timeout=60)
weight = nn.Parameter(torch.ones(10))
optimizer = torch.optim.SGD([weight], lr=0.01)
for _ in range(3):
    weight.sum().backward()
    group.allreduce([weight.grad]).wait()
    optimizer.step()
"""
UNEVEN_REPLICAS = f"""{_START}
import torch_topoopt
torch_topoopt.new_process_group(dist.HashStore(), 1, 3)
"""
WAITING_FOR_A_RANK = """
import datetime, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, True, timeout=datetime.timedelta(seconds=3))
store.wait(["of rank 1"])
"""
ASSERTING = "import torch\n\nassert torch.cuda is None\n"
ASSERTING_IN_A_LIBRARY = "from package import library\n\nlibrary.check(1)\n"

LATE_FAILURE = f"{_START}\ntrain(nn.Linear(2, 2), torch.ones(1, 2))\nraise ValueError\n"
FAILING = "import torch\n\nraise ValueError('no such data')\n"
EXITING = "import sys\n\nsys.exit(3)\n"
SHORT = f"{_START}\ntrain(nn.Linear(2, 2), torch.ones(1, 2), count=1)\n"
ENDLESS = "import time\n\nwhile True:\n    time.sleep(0.5)\n"
KILLED = "import os\n\nprint('out of memory', flush=True)\nos.kill(os.getpid(), 9)\n"
CONNECTING = "import socket\n\nsocket.create_connection(('127.0.0.1', 9))\n"
OTHER_WORLD = """
import torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=64)
"""
STUBBORN = f"""{_START}
while True:
    try:
        train(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), torch.ones(1, 2))
    except BaseException:
        pass
"""

# As people write them: no __main__ guard, arguments, gradients summed up over several batches.
ACCUMULATING = f"""{_START}
import argparse, contextlib
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, required=True)
batches = parser.parse_args().batches
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    for batch in range(batches):
        with contextlib.nullcontext() if batch == batches - 1 else model.no_sync():
            model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

NO_OPTIMIZER = f"""{_START}
weight = torch.zeros(8, requires_grad=True)
for _ in range(3):
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    with torch.no_grad():
        weight -= 0.1 * weight.grad
"""

NO_GROUP = "import os\n\nprint(os.environ['RANK'], os.environ['LOCAL_WORLD_SIZE'])\n"

# Stays below what a machine of these tests has, and far above its limit.
GREEDY = """
taken = [bytearray(b"x" * 25_000_000) for _ in range(40)]
while taken:
    pass
"""
