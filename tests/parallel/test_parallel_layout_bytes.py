"""Links carry what the plan of a layout predicts."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from planned_training import check_bytes, sent_bytes
from support.backend.ranks import run_ranks, values
from torch import nn

from torch_topoopt.models import llama
from torch_topoopt.models.qwen3_moe import Qwen3MoESize
from torch_topoopt.parallel import pipeline
from torch_topoopt.plan import Cluster
from torch_topoopt.plan.layout import Layout, layout_from
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import Link, Plan

SERVERS, SAMPLES, WARM_UP, STEPS = 4, 8, 1, 2
SIZE = llama.LlamaSize(2, 64, 128, 4, 4, 256, 32, SAMPLES, dtype=torch.float32)


EXPERTS = Qwen3MoESize(*(2, 64, 32, 4, 4, 256, 32, SAMPLES), experts=8, top=4, dtype=torch.float32)


def build(size: llama.LlamaSize = SIZE) -> nn.Module:
    torch.manual_seed(5)
    return llama.Llama(size)


def batch(samples: int) -> torch.Tensor:
    return torch.zeros(samples, SIZE.sequence, dtype=torch.long)


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def bytes_of_a_step(
    size: llama.LlamaSize, layout: Layout, rank: int, world: int
) -> dict[Link, float]:
    # Short AllReduces take trees, and the plan has bytes of its rings.
    os.environ["TOPOOPT_ALGORITHM"] = "multi_ring"
    dist.init_process_group("topoopt")
    pipe = pipeline(build(size), batch(SAMPLES), loss_of, strategy=layout)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=1e-2)
    share = batch(SAMPLES // pipe.replicas)
    before: dict[Link, int] = {}
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            dist.barrier()
            before = sent_bytes()
        pipe.step(share, share)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    after = sent_bytes()
    dist.destroy_process_group()
    return {link: (after[link] - before[link]) / STEPS for link in after}


def plan_of(layout: Layout, size: llama.LlamaSize) -> Plan:
    # Messages between the far ends of a square alternate between its routes.
    device = "cpu" if layout.offload == "none" else "a100"
    cluster = Cluster(SERVERS, 3 if layout.expert > 1 else 2, 10.0, accelerator=device)
    options = PlanningOptions(strategy_space="layouts", layout=layout)
    return LayoutPlanning(
        profile(build(size), batch(SAMPLES), name="llama"), cluster, options
    ).plan()


@pytest.mark.parametrize(
    "text",
    [
        "micro_batch=1",
        "micro_batch=1,sharding=optimizer",
        "micro_batch=1,sharding=gradients",
        "micro_batch=1,sharding=parameters",
        "micro_batch=1,sharding=parameters,reshard=false",
        "micro_batch=1,sharding=parameters,state_shards=2",
        "micro_batch=1,sharding=parameters,offload=host",
        "micro_batch=1,sharding=parameters,state_shards=2,offload=host",
        "pipeline=2,micro_batch=1,sharding=parameters,reshard=false,offload=host",
        "micro_batch=2,sharding=parameters,recompute=full",
        "micro_batch=1,sharding=parameters,reshard_blocks=1,recompute=full,recompute_blocks=1",
        "micro_batch=2,sharding=parameters,recompute=selective",
        "tensor=4,micro_batch=4",
        "tensor=2,micro_batch=2",
        "tensor=2,micro_batch=2,sharding=parameters",
        "tensor=2,micro_batch=4,recompute=full",
        "tensor=2,micro_batch=4,recompute=full,recompute_blocks=1",
        "expert=4,micro_batch=2",
        "expert=2,micro_batch=1,sharding=parameters",
        "tensor=2,expert=4,micro_batch=4",
        "context=4,micro_batch=4",
        "context=2,tensor=2,micro_batch=8",
        "context=2,micro_batch=2,sharding=parameters,recompute=full",
        "context=2,micro_batch=4,recompute=selective",
        "context=2,micro_batch=4,recompute=full,recompute_blocks=1",
        "pipeline=2,micro_batch=1",
        "pipeline=2,micro_batch=1,schedule=zero-bubble,sharding=optimizer",
        "pipeline=2,micro_batch=1,sharding=parameters",
        "pipeline=2,micro_batch=1,sharding=parameters,reshard=false,interleave=2,cells=1-1-1-1",
        "pipeline=4,micro_batch=2,schedule=gpipe,cells=1-1-1-1",
        "context=2,pipeline=2,micro_batch=2",
        "tensor=2,pipeline=2,micro_batch=2",
    ],
)
def test_a_step_sends_the_predicted_bytes(text: str, tmp_path: Path) -> None:
    size = EXPERTS if "expert" in text else SIZE
    layout = layout_from(text, SERVERS, SAMPLES)
    plan = plan_of(layout, size)
    done: list[dict[Link, float]] = values(
        run_ranks(plan, tmp_path, functools.partial(bytes_of_a_step, size, plan.layout))
    )
    check_bytes(text, plan, done)
