"""Trains a small model with one of PyTorch's own ways to communicate, which --pattern names."""

import argparse
import contextlib
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 25, 8, 192  # 0.3 MB of parameters; 22 steps are measured
WARM_UP = 2
LIMIT = timedelta(seconds=60)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def with_own_store(backend: str, pattern: str, folder: str) -> None:
    """The ranks find each other in a store of the script."""
    if pattern == "tcp-store":
        port = int(os.environ["MASTER_PORT"]) + 1
        store = dist.TCPStore(os.environ["MASTER_ADDR"], port, WORLD, RANK == 0, timeout=LIMIT)
    elif pattern == "file-store":
        store = dist.FileStore(f"{folder}/store", WORLD)
    else:
        store, *_ = next(dist.rendezvous("env://", timeout=LIMIT))
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD)


def pipelined(layer: torch.nn.Module) -> list[float]:
    """Stages that send each other the shapes of their inputs, as in PyTorch's tutorial."""
    stage = PipelineStage(layer, RANK, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    inputs = [torch.randn(BATCH, WIDTH)] if RANK == 0 else []
    targets = {"target": torch.zeros(BATCH, WIDTH)} if RANK == WORLD - 1 else {}
    for _ in range(STEPS):
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()
    return [float(parameter.sum()) for parameter in layer.parameters()]


def replicated(layers: torch.nn.Module, pattern: str) -> list[float]:
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    if pattern == "local-sgd":
        pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
        state = post_localSGD_hook.PostLocalSGDState(None, pairs[RANK // 2], WARM_UP)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=2, warmup_steps=WARM_UP)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    elif pattern == "power-sgd":
        compressed = power_sgd.PowerSGDState(None, 2, start_powerSGD_iter=WARM_UP)
        hook = default_hooks.bf16_compress_wrapper(power_sgd.powerSGD_hook)
        model.register_comm_hook(compressed, hook)
    elif pattern in ("zero", "join"):
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    torch.manual_seed(RANK)
    losses = []
    joins = pattern == "join"
    with Join([model, optimizer]) if joins else contextlib.nullcontext():
        for _ in range(STEPS - (RANK % 2 if joins else 0)):
            loss = model(torch.randn(BATCH, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--dist-backend", default="topoopt")
    parser.add_argument("--pattern", required=True)
    arguments = parser.parse_args()
    if arguments.pattern.endswith(("store", "rendezvous")):
        with_own_store(arguments.dist_backend, arguments.pattern, arguments.output_dir)
    else:
        dist.init_process_group(arguments.dist_backend)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)]
    model = torch.nn.Sequential(*layers)
    is_pipeline = arguments.pattern == "pipeline"
    values = pipelined(model) if is_pipeline else replicated(model, arguments.pattern)
    if RANK == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(values, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
