"""BERT (Devlin et al., NAACL 2019) for masked-language pre-training.

Word embeddings are factorised: List 1 gives an embedding size (512) of its own, below the hidden
size. So a projection joins the two, and the output layer shares the embedding's weights.

Size "released" is the BERT of the simulations that the paper released: an encoder and a decoder of
attention and dense layers, without embeddings and norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu, linear

from torch_topoopt.models.sizes import choose, with_alias


@dataclass(frozen=True)
class BERTSize:
    """`batch_size` is List 1's batch per accelerator, `sequence` the tokens of one sample.

    Without a `vocabulary` it is an EncoderDecoder, which takes numbers instead of tokens.
    """

    blocks: int
    hidden: int
    heads: int
    sequence: int
    embedding: int
    vocabulary: int
    batch_size: int

    @property
    def longest(self) -> int:
        """The most tokens of a sample."""
        return self.sequence


_VOCABULARY = 30522  # of the published uncased models

SIZES = with_alias(
    {
        "paper-5.3": BERTSize(12, 1024, 16, 64, 512, _VOCABULARY, 16),
        "paper-5.6": BERTSize(6, 768, 6, 256, 512, _VOCABULARY, 16),
        "paper-6": BERTSize(6, 1024, 16, 1024, 512, _VOCABULARY, 2),
        "released": BERTSize(12, 1024, 16, 64, 0, 0, 16),
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


class EncoderDecoderBlock(nn.Module):
    """Three attention and four dense layers: of encoder and decoder, [batch, sequence, hidden]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.encoder_attention = nn.MultiheadAttention(hidden, heads, bias=False, batch_first=True)
        self.encoder_dense = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.decoder_attention = nn.MultiheadAttention(hidden, heads, bias=False, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(hidden, heads, bias=False, batch_first=True)
        self.decoder_dense = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.encoder_dense(x + self.encoder_attention(x, x, x, need_weights=False)[0])
        y = y + self.decoder_attention(y, y, y, need_weights=False)[0]
        y = y + self.cross_attention(y, x, x, need_weights=False)[0]
        return x, self.decoder_dense(y)


class EncoderDecoder(nn.Module):
    """[batch, sequence, hidden], for encoder and decoder, to [batch, sequence, 1]."""

    def __init__(self, size: BERTSize) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            EncoderDecoderBlock(size.hidden, size.heads) for _ in range(size.blocks)
        )
        self.output = nn.Linear(size.hidden, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = y = inputs
        for block in self.blocks:
            x, y = block(x, y)
        return self.output(y)


def build(size: str = DEFAULT_SIZE) -> BERT | EncoderDecoder:
    """The network of one of SIZES; raises ValueError for another name."""
    chosen = choose(SIZES, size)
    return BERT(chosen) if chosen.vocabulary else EncoderDecoder(chosen)


def example_batch(
    batch_size: int | None = None, *, size: str = DEFAULT_SIZE
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Token and segment indices, both zero, [batch_size, sequence]; zeros for an EncoderDecoder."""
    chosen = choose(SIZES, size)
    shape = (batch_size or chosen.batch_size, chosen.sequence)
    if not chosen.vocabulary:
        return torch.zeros(*shape, chosen.hidden)
    return torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
