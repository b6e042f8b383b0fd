"""Trains as examples/llama.py does, with a mixture of experts in every block."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import torch_topoopt
from torch_topoopt.models.qwen3_moe import Qwen3MoESize

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from llama import BATCH, example_batch, loss_of, text

from torch_topoopt.models.llama import Llama

SIZE = Qwen3MoESize(4, 128, 128, 8, 4, 256, 64, BATCH, experts=8, top=2, dtype=torch.float32)


def build_model() -> torch.nn.Module:
    return Llama(SIZE)


def main(steps: int) -> None:
    dist.init_process_group()
    torch.manual_seed(0)
    pipe = torch_topoopt.pipeline(build_model(), example_batch(), loss_of)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        tokens, following = (t.chunk(pipe.replicas)[pipe.replica] for t in text(BATCH, step))
        optimizer.zero_grad()
        pipe.step(tokens, following)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[-1]))  # --steps N
