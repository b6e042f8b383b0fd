"""A small decoder whose attention views tensors by the number of features of its whole input.

So do many that people write themselves; its modules have the names and the views of nanoGPT's.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention, softmax

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 64, 8


class LayerNorm(nn.Module):
    """Without a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class JointAttention(nn.Module):
    """Queries, keys and values of one layer, whose sections are split apart."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.resid_dropout = nn.Dropout(0.0)
        self.n_head, self.n_embd = HEADS, WIDTH

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, features = x.size()
        made = self.c_attn(x).split(self.n_embd, dim=2)
        size = samples, length, self.n_head, features // self.n_head
        mixed = self.mix(*(each.view(size).transpose(1, 2) for each in made))
        mixed = mixed.transpose(1, 2).contiguous().view(samples, length, features)
        return self.resid_dropout(self.c_proj(mixed))

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)


class SoftmaxAttention(JointAttention):
    """Attention in products and a softmax, with a mask that is a buffer."""

    bias: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        seen = torch.ones(LENGTH, LENGTH).tril().view(1, 1, LENGTH, LENGTH)
        self.register_buffer("bias", seen, persistent=False)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.size(2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        hidden = self.bias[:, :, :length, :length] == 0
        return softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v


class BiasedAttention(JointAttention):
    """Every head has a bias of positions of its own, which no part of the heads could read."""

    slopes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        distance = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
        later = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        biases = slopes[:, None, None] * distance + later
        self.register_buffer("slopes", biases, persistent=False)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=self.slopes)


class FiveDimensions(nn.Module):
    """Sections and heads in one view; no attribute has a number of heads by its usual name."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.h = HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, features = x.shape
        made = self.qkv(x).reshape(samples, length, 3, self.h, features // self.h)
        mixed = scaled_dot_product_attention(*made.permute(2, 0, 3, 1, 4), is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(-1, length, features))


class SeparateAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value, self.proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.n_head = HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, features = x.size()
        q, k, v = (
            layer(x).view(samples, length, self.n_head, features // self.n_head).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).contiguous().view(samples, length, features))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU()
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn = LayerNorm(WIDTH), attention()
        self.ln_2, self.mlp = LayerNorm(WIDTH), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """The output layer has the weights of the table of words."""

    def __init__(self, attention: Callable[[], nn.Module], blocks: int = 4) -> None:
        super().__init__()
        parts = {
            "wte": nn.Embedding(WORDS, WIDTH),
            "wpe": nn.Embedding(LENGTH, WIDTH),
            "h": nn.ModuleList(Block(attention) for _ in range(blocks)),
            "ln_f": LayerNorm(WIDTH),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](positions)
        blocks = self.transformer["h"]
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


DECODERS = {
    "nanogpt": functools.partial(Decoder, JointAttention),
    "nanogpt with a softmax": functools.partial(Decoder, SoftmaxAttention),
    "nanogpt with biases": functools.partial(Decoder, BiasedAttention),
    "nanogpt of five dimensions": functools.partial(Decoder, FiveDimensions),
    "nanogpt with three layers": functools.partial(Decoder, SeparateAttention),
}
