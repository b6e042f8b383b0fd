"""BERT (Devlin et al., NAACL 2019) for masked-language pre-training.

Word embeddings are factorised: List 1 gives an embedding size (512) of its own, below the hidden
size, so a projection stands between the two, and the output layer shares the embedding's weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu, linear

from torch_topoopt.models.sizes import choose, with_alias


@dataclass(frozen=True)
class BERTSize:
    """`batch_size` is List 1's batch per accelerator, `sequence` the tokens of one sample."""

    blocks: int
    hidden: int
    heads: int
    sequence: int
    embedding: int
    vocabulary: int
    batch_size: int


_VOCABULARY = 30522  # of the published uncased models

SIZES = with_alias(
    {
        "paper-5.3": BERTSize(12, 1024, 16, 64, 512, _VOCABULARY, 16),
        "paper-5.6": BERTSize(6, 768, 6, 256, 512, _VOCABULARY, 16),
        "paper-6": BERTSize(6, 1024, 16, 1024, 512, _VOCABULARY, 2),
        "tiny": BERTSize(2, 32, 4, 6, 16, 50, 4),
    }
)
DEFAULT_SIZE = "paper"


class Embeddings(nn.Module):
    """Token, position and segment embeddings: [batch, sequence] to [batch, sequence, hidden]."""

    def __init__(self, size: BERTSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.embedding)
        self.positions = nn.Embedding(size.sequence, size.embedding)
        self.segments = nn.Embedding(2, size.embedding)
        self.norm = nn.LayerNorm(size.embedding)
        self.dropout = nn.Dropout(0.1)
        self.projection = nn.Linear(size.embedding, size.hidden)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions) + self.segments(segments)
        return self.projection(self.dropout(self.norm(x)))


class BERT(nn.Module):
    """Token and segment indices [batch, sequence] to logits [batch, sequence, vocabulary]."""

    def __init__(self, size: BERTSize) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        block = nn.TransformerEncoderLayer(
            size.hidden, size.heads, 4 * size.hidden, 0.1, activation=gelu, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(block, size.blocks, enable_nested_tensor=False)
        self.transform = nn.Linear(size.hidden, size.embedding)
        self.norm = nn.LayerNorm(size.embedding)
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embeddings(tokens, segments))
        x = self.norm(gelu(self.transform(x)))
        return linear(x, self.embeddings.tokens.weight, self.bias)


def build(size: str = DEFAULT_SIZE) -> BERT:
    """The network of one of SIZES; raises ValueError for another name."""
    return BERT(choose(SIZES, size))


def example_batch(
    batch_size: int | None = None, *, size: str = DEFAULT_SIZE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token and segment indices, both zero, [batch_size, sequence]."""
    chosen = choose(SIZES, size)
    shape = (batch_size or chosen.batch_size, chosen.sequence)
    return torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
