"""Trains as examples/llama.py does, with a mixture of experts in every block."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import llama
from llama import example_batch, loss_of

from torch_topoopt.models.qwen3_moe import Qwen3MoESize

__all__ = ["build_model", "example_batch", "loss_of"]  # topoopt reads them

SIZE = Qwen3MoESize(4, 128, 128, 8, 4, 256, 64, llama.BATCH, experts=8, top=2, dtype=torch.float32)


def build_model() -> torch.nn.Module:
    return llama.Llama(SIZE)


if __name__ == "__main__":
    llama.build_model = build_model
    llama.main()
