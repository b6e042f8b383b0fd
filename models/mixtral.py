"""Mixtral (Jiang et al., 2024): 8 experts in every block, a token goes to two of them."""

from __future__ import annotations

import torch

from torch_topoopt.models import llama
from torch_topoopt.models.qwen3_moe import Qwen3MoESize
from torch_topoopt.models.sizes import choose, tokens_of

SIZES = {
    "8x7b": Qwen3MoESize(32, 4096, 14336, 32, 8, 32000, 4096, 1, norms=False),
    "8x22b": Qwen3MoESize(56, 6144, 16384, 48, 8, 32768, 4096, 1, norms=False),
    "tiny": Qwen3MoESize(
        *(2, 16, 24, 4, 2, 64, 8, 4), norms=False, capacity=2.0, dtype=torch.float32
    ),
}
DEFAULT_SIZE = "8x7b"


def build(size: str = DEFAULT_SIZE) -> llama.Llama:
    """The network of one of SIZES; raises ValueError for another name."""
    return llama.Llama(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence], for one of SIZES."""
    return tokens_of(choose(SIZES, size), batch_size)
