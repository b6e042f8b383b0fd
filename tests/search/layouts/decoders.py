"""Small decoders whose costs can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from torch_topoopt.models.llama import Llama, LlamaSize
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

SIZE = LlamaSize(4, 64, 128, 8, 4, 256, 32, 1)
ELEMENT_BYTES = 2


@cache
def decoder(blocks: int = 4, *, tied: bool = False) -> OpGraph:
    """`SIZE` with so many blocks, one sequence."""
    size = replace(SIZE, blocks=blocks, tied=tied)
    tokens = torch.zeros(1, size.sequence, dtype=torch.long)
    return profile(lambda: Llama(size), tokens, name="decoder")


def parameters(blocks: int = 4, *, tied: bool = False) -> int:
    """The number of parameters."""
    size = SIZE
    pairs = size.hidden * size.kv_heads // size.heads
    attention = 2 * size.hidden**2 + 2 * size.hidden * pairs
    block = attention + 3 * size.hidden * size.ffn + 2 * size.hidden
    tables = (1 if tied else 2) * size.vocabulary * size.hidden
    return blocks * block + tables + size.hidden
