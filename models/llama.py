"""Llama 3 (Grattafiori et al., 2024) and decoders like it, in modules that split as those of GPT.

Blocks have RMS norms, rotary positions, attention whose queries share keys and values in groups
(GQA), and an MLP with a gate (SwiGLU). Shards of attention have whole groups, so keys and values
bound their number. Options of a size make it Llama 3.2 (tied embeddings), Qwen2 (biases) or Qwen3
(norms of queries and keys). All but "tiny" are in BF16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from torch_topoopt.models.gpt import head_of
from torch_topoopt.models.sizes import choose, tokens_of


@dataclass(frozen=True)
class LlamaSize:
    """`batch_size` samples of `sequence` tokens per accelerator; the MLP is `ffn` wide.

    Every `heads / kv_heads` heads of queries share one of keys and values. A head has `head`
    features (0: `hidden / heads`). With `biases`, queries, keys and values have biases. With
    `norms`, queries and keys have norms. `tied` and `labels` are those of a GPTSize.
    """

    blocks: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    batch_size: int
    head: int = 0
    tied: bool = False
    biases: bool = False
    norms: bool = False
    labels: int = 0
    dtype: torch.dtype = torch.bfloat16

    @property
    def longest(self) -> int | None:
        """The most tokens of a sample: rotary positions have no limit."""
        return None

    def mlp(self) -> nn.Module:
        """The MLP of one block."""
        return GatedMLP(self.hidden, self.ffn)


_VOCABULARY = 128256

SIZES = {
    "1b": LlamaSize(16, 2048, 8192, 32, 8, _VOCABULARY, 8192, 1, tied=True),
    "8b": LlamaSize(32, 4096, 14336, 32, 8, _VOCABULARY, 8192, 1),
    "70b": LlamaSize(80, 8192, 28672, 64, 8, _VOCABULARY, 8192, 1),
    "405b": LlamaSize(126, 16384, 53248, 128, 8, _VOCABULARY, 8192, 1),
    "tiny": LlamaSize(2, 16, 32, 4, 2, 64, 8, 4, dtype=torch.float32),
}
DEFAULT_SIZE = "8b"

_ROTARY_BASE = 500_000.0  # Llama 3's; no cost depends on it


class Rotary(nn.Module):
    """Heads [batch, heads, sequence, features], each pair of features turned by its position.

    A pair is a feature of the first half and the corresponding one of the second half.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        positions = torch.arange(x.shape[-2], device=x.device)
        steps = torch.arange(half, device=x.device) / half
        angles = positions[:, None] * _ROTARY_BASE**-steps
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.head = size.head or size.hidden // size.heads
        queries, pairs = size.heads * self.head, size.kv_heads * self.head
        self.query = nn.Linear(size.hidden, queries, bias=size.biases)
        self.key = nn.Linear(size.hidden, pairs, bias=size.biases)
        self.value = nn.Linear(size.hidden, pairs, bias=size.biases)
        self.rotary = Rotary()
        self.query_norm = nn.RMSNorm(self.head) if size.norms else None
        self.key_norm = nn.RMSNorm(self.head) if size.norms else None
        self.out = nn.Linear(queries, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def by_head(features: torch.Tensor, norm: nn.Module | None = None) -> torch.Tensor:
            heads = features.unflatten(-1, (-1, self.head))
            return (heads if norm is None else norm(heads)).transpose(1, 2)

        query = self.rotary(by_head(self.query(x), self.query_norm))
        key = self.rotary(by_head(self.key(x), self.key_norm))
        value = by_head(self.value(x))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class GatedMLP(nn.Module):
    """[batch, sequence, hidden] to the same, through `ffn` features with a gate each."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """Attention and an MLP, each with a shortcut."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(size.hidden)
        self.attention = GroupedAttention(size)
        self.norm2 = nn.RMSNorm(size.hidden)
        self.mlp = size.mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Tokens [batch, sequence] to logits, as a GPT."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.Sequential(*(LlamaBlock(size) for _ in range(size.blocks)))
        self.norm = nn.RMSNorm(size.hidden)
        self.head = head_of(size, self.embedding)
        self.classifies = bool(size.labels)
        self.to(size.dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return logits[:, -1] if self.classifies else logits


def build(size: str = DEFAULT_SIZE) -> Llama:
    """The network of one of SIZES; raises ValueError for another name."""
    return Llama(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence], for one of SIZES."""
    return tokens_of(choose(SIZES, size), batch_size)
