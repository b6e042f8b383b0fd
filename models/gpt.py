"""GPT: a decoder of equal blocks, in modules that can be split in three ways.

- Pipeline stages: `embedding`, the `blocks` one after the other, `norm` and `head` share nothing.
- Columns and rows: queries, keys, values and `up` produce features that `out` and `down` sum over.
  The number of attention heads follows from the number of input features. So a column shard of the
  former feeds a row shard of the latter (Shoeybi et al., 2019, section 3).
- Samples: everything.

Blocks are those of GPT-2 (layer norm first).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from torch_topoopt.models.sizes import choose, tokens_of


@dataclass(frozen=True)
class GPTSize:
    """`batch_size` samples of `sequence` tokens per accelerator; the MLP is `4 * hidden` wide.

    There are embeddings of `positions` (0: `sequence`). With `tied`, the output layer has the
    embedding's weights. With `labels`, it is a classifier of whole samples instead.
    """

    blocks: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch_size: int
    tied: bool = False
    positions: int = 0
    labels: int = 0

    @property
    def longest(self) -> int:
        """The most tokens of a sample."""
        return self.positions or self.sequence


_VOCABULARY = 50304  # GPT-2's 50257, rounded up to a multiple of 128 for splitting

SIZES = {
    "gpt2": GPTSize(12, 768, 12, 1024, _VOCABULARY, 8),
    "gpt2-xl": GPTSize(48, 1600, 25, 1024, _VOCABULARY, 4),
    "gpt3-13b": GPTSize(40, 5120, 40, 2048, _VOCABULARY, 1),
    "gpt3-175b": GPTSize(96, 12288, 96, 2048, _VOCABULARY, 1),
    "tiny": GPTSize(2, 16, 4, 8, 64, 4),
}
DEFAULT_SIZE = "gpt2"


class Embedding(nn.Module):
    """Tokens [batch, sequence] to [batch, sequence, hidden], with learned positions."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.longest, size.hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.tokens(tokens) + self.positions(positions)


class Attention(nn.Module):
    """Causal attention of `hidden` features, `head` of them in each head."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def by_head(features: torch.Tensor) -> torch.Tensor:
            return features.unflatten(-1, (-1, self.head)).transpose(1, 2)

        parts = (by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x)))
        mixed = scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """[batch, sequence, hidden] to the same, through `4 * hidden` features."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    """Attention and an MLP, each with a shortcut."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.hidden)
        self.attention = Attention(size.hidden, size.heads)
        self.norm2 = nn.LayerNorm(size.hidden)
        self.mlp = MLP(size.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class HeadSize(Protocol):
    """The fields of a GPTSize that its output layer depends on."""

    @property
    def hidden(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def labels(self) -> int: ...


def head_of(size: HeadSize, embedding: nn.Embedding) -> nn.Linear:
    """The output layer of a size."""
    head = nn.Linear(size.hidden, size.labels or size.vocabulary, bias=False)
    if size.tied and not size.labels:
        head.weight = embedding.weight
    return head


class GPT(nn.Module):
    """Tokens [batch, sequence] to logits [batch, sequence, vocabulary] of the next token.

    With labels, to logits [batch, labels], those of the last token.
    """

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.embedding = Embedding(size)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.blocks)))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = head_of(size, self.embedding.tokens)
        self.classifies = bool(size.labels)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return logits[:, -1] if self.classifies else logits


def build(size: str = DEFAULT_SIZE) -> GPT:
    """The network of one of SIZES; raises ValueError for another name."""
    return GPT(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence], for one of SIZES."""
    return tokens_of(choose(SIZES, size), batch_size)
