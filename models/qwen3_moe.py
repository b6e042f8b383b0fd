"""Qwen3-MoE (Qwen team, 2025): a Llama whose MLPs are mixtures of experts (moe.py).

Experts have gates (SwiGLU), and a token goes to `top` of them. The model drops no tokens: with
`capacity` 1, experts have places for exactly all tokens, which are their costs where the router
balances its load. Tokens are dropped here where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import silu

from torch_topoopt.models import llama, moe
from torch_topoopt.models.sizes import choose, tokens_of


@dataclass(frozen=True)
class Qwen3MoESize(moe.Routing, llama.LlamaSize):
    """A LlamaSize with experts in every block, each `ffn` wide."""

    capacity: float = 1.0
    normalised: bool = True
    norms: bool = True

    def mlp(self) -> nn.Module:
        return SparseMLP(self)


SIZES = {
    "30b-a3b": Qwen3MoESize(*(48, 2048, 768, 32, 4, 151936, 4096, 1), head=128, experts=128, top=8),
    "235b-a22b": Qwen3MoESize(
        *(94, 4096, 1536, 64, 4, 151936, 4096, 1), head=128, experts=128, top=8
    ),
    "tiny": Qwen3MoESize(
        *(2, 16, 24, 4, 2, 64, 8, 4), experts=4, capacity=2.0, dtype=torch.float32
    ),
}
DEFAULT_SIZE = "30b-a3b"


class GatedExperts(nn.Module):
    """[experts, places, hidden] to the same: an MLP with a gate for each expert."""

    def __init__(self, experts: int, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))
        for weights in (self.gate, self.up, self.down):
            nn.init.normal_(weights, std=weights.shape[1] ** -0.5)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return torch.bmm(silu(torch.bmm(places, self.gate)) * torch.bmm(places, self.up), self.down)


class Assign(nn.Module):
    """Scores of experts [tokens, experts] to the places of tokens, as one operator."""

    def __init__(self, routing: moe.Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        _, place, kept, weights = moe.assigned(self.routing, scores.softmax(-1))
        return place, kept, weights


class Dispatch(nn.Module):
    """Tokens [tokens, hidden] to [experts * places, hidden], as one operator."""

    def __init__(self, routing: moe.Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(
        self, tokens: torch.Tensor, place: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        return moe.dispatched(self.routing, tokens, place, kept)


class Combine(nn.Module):
    """[experts * places, hidden] to [tokens, hidden], summed by weights, as one operator."""

    def __init__(self, routing: moe.Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(
        self, worked: torch.Tensor, weights: torch.Tensor, place: torch.Tensor
    ) -> torch.Tensor:
        return moe.combined(self.routing, worked, weights, place)


class SparseMLP(nn.Module):
    """[batch, sequence, hidden] to the same, without a load-balancing loss."""

    def __init__(self, size: Qwen3MoESize) -> None:
        super().__init__()
        self.count = size.experts
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.assign, self.dispatch, self.combine = Assign(size), Dispatch(size), Combine(size)
        self.experts = GatedExperts(size.experts, size.hidden, size.ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        place, kept, weights = self.assign(self.router(tokens))
        buffer = self.dispatch(tokens, place, kept)
        worked = self.experts(buffer.unflatten(0, (self.count, -1))).flatten(0, 1)
        return self.combine(worked, weights, place).view_as(x)


def build(size: str = DEFAULT_SIZE) -> llama.Llama:
    """The network of one of SIZES; raises ValueError for another name."""
    return llama.Llama(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence], for one of SIZES."""
    return tokens_of(choose(SIZES, size), batch_size)
