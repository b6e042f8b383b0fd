"""A GPT with a mixture of experts in every other MLP; a capacity keeps shapes static.

A router sends each token to its `top` best experts (GShard, Lepikhin et al., 2021; Switch
Transformer, Fedus et al., 2022). Of all the tokens of a batch, an expert takes at most `capacity`
times its even share, in order; for the rest, the layer is its shortcut alone. So the experts see
[experts, places, hidden] for any routing, and the all-to-all to the experts' servers has a size
that does not depend on data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import gelu

from torch_topoopt.models.gpt import MLP, Attention, Embedding, GPTSize, head_of
from torch_topoopt.models.sizes import choose, tokens_of


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Each token goes to `top` of the `experts`.

    `capacity` is an expert's number of places over its even share of the tokens. With `normalised`,
    the shares of a token's experts add up to 1.
    """

    experts: int = 8
    top: int = 2
    capacity: float = 1.25
    normalised: bool = False


@dataclass(frozen=True)
class MoESize(Routing, GPTSize):
    """A GPTSize with experts in every other block; it classifies no samples."""


SIZES = {
    "gpt2-8e": MoESize(12, 768, 12, 1024, 50304, 8, experts=8),
    "gpt2-64e": MoESize(12, 768, 12, 1024, 50304, 8, experts=64),
    "1.3b-128e": MoESize(24, 2048, 16, 2048, 50304, 1, experts=128),
    "13b-128e": MoESize(40, 5120, 40, 2048, 50304, 1, experts=128),
    "tiny": MoESize(2, 16, 4, 8, 64, 4, experts=4),
}
DEFAULT_SIZE = "gpt2-64e"


class Router(nn.Module):
    """Tokens [tokens, hidden] to probabilities of experts, [tokens, experts]."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, experts, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(tokens).softmax(-1)


class Experts(nn.Module):
    """[experts, places, hidden] to the same: an MLP of its own for each expert."""

    def __init__(self, experts: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, hidden, 4 * hidden))
        self.down = nn.Parameter(torch.empty(experts, 4 * hidden, hidden))
        for weights in (self.up, self.down):
            nn.init.normal_(weights, std=weights.shape[1] ** -0.5)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return torch.bmm(gelu(torch.bmm(places, self.up)), self.down)


class TokenPlaces(NamedTuple):
    """First choices of all tokens, then second ones: [top * tokens], or with another dimension.

    `sent` says which expert each goes to, [top * tokens, experts]. `kept` is 1 for those that get a
    `place` and 0 for others, and `weights` are the shares of kept ones, [top * tokens, 1].
    """

    sent: torch.Tensor
    place: torch.Tensor
    kept: torch.Tensor
    weights: torch.Tensor


def places_of(routing: Routing, tokens: int) -> int:
    """The places that each expert has for that many tokens."""
    return math.ceil(routing.capacity * routing.top * tokens / routing.experts)


def assigned(routing: Routing, probabilities: torch.Tensor) -> TokenPlaces:
    """The assignment for probabilities [tokens, experts]."""
    shares, chosen = probabilities.topk(routing.top, dim=-1)
    if routing.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    places = places_of(routing, len(probabilities))
    expert = chosen.t().flatten()
    sent = expert[:, None] == torch.arange(routing.experts, device=probabilities.device)
    rank = (sent.cumsum(0) * sent).sum(-1) - 1
    kept = (rank < places).to(probabilities.dtype)[:, None]
    place = expert * places + rank.clamp(max=places - 1)
    return TokenPlaces(sent, place, kept, shares.t().reshape(-1, 1) * kept)


def dispatched(
    routing: Routing, tokens: torch.Tensor, place: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    """Tokens [tokens, hidden] at their places, [experts * places, hidden]."""
    places = routing.experts * places_of(routing, len(tokens))
    buffer = tokens.new_zeros(places, tokens.shape[-1])
    # index_add would keep its source for the backward pass
    rows = place[:, None].expand(-1, tokens.shape[-1])
    return buffer.scatter_add(0, rows, tokens.repeat(routing.top, 1) * kept)


def combined(
    routing: Routing, worked: torch.Tensor, weights: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """The results at all places, [experts * places, hidden], summed for each token by weights."""
    weighted = worked.index_select(0, place) * weights
    return weighted.unflatten(0, (routing.top, len(place) // routing.top)).sum(0)


class Mixture(nn.Module):
    """[batch, sequence, hidden] to the same, and the load-balancing loss (Switch, equation 4)."""

    def __init__(self, hidden: int, routing: Routing, experts: nn.Module) -> None:
        super().__init__()
        self.routing = routing
        self.router = Router(hidden, routing.experts)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        routing, tokens = self.routing, x.flatten(0, -2)
        probabilities = self.router(tokens)
        assignment = assigned(routing, probabilities)
        buffer = dispatched(routing, tokens, assignment.place, assignment.kept)
        worked = self.experts(buffer.unflatten(0, (routing.experts, -1))).flatten(0, 1)
        mixed = combined(routing, worked, assignment.weights, assignment.place)
        first = assignment.sent[: len(tokens)].to(x.dtype).mean(0)
        balance = routing.experts * (first * probabilities.mean(0)).sum()
        return mixed.view_as(x), balance


class MoEBlock(nn.Module):
    """As GPT's; `mixture` selects the kind of MLP."""

    def __init__(self, size: MoESize, mixture: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.hidden)
        self.attention = Attention(size.hidden, size.heads)
        self.norm2 = nn.LayerNorm(size.hidden)
        self.mlp: nn.Module = (
            Mixture(size.hidden, size, Experts(size.experts, size.hidden))
            if mixture
            else MLP(size.hidden)
        )
        self.mixture = mixture

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = x + self.attention(self.norm1(x))
        if not self.mixture:
            return x + self.mlp(self.norm2(x)), None
        mixed, balance = self.mlp(self.norm2(x))
        return x + mixed, balance


class MoE(nn.Module):
    """Tokens [batch, sequence] to logits [batch, sequence, vocabulary] and the balance loss."""

    def __init__(self, size: MoESize) -> None:
        super().__init__()
        self.embedding = Embedding(size)
        self.blocks = nn.ModuleList(MoEBlock(size, i % 2 == 1) for i in range(size.blocks))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = head_of(size, self.embedding.tokens)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens)
        balances = []
        for block in self.blocks:
            x, balance = block(x)
            if balance is not None:
                balances.append(balance)
        return self.head(self.norm(x)), torch.stack(balances).mean()


def build(size: str = DEFAULT_SIZE) -> MoE:
    """The network of one of SIZES; raises ValueError for another name."""
    return MoE(choose(SIZES, size))


def example_batch(batch_size: int | None = None, *, size: str = DEFAULT_SIZE) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence], for one of SIZES."""
    return tokens_of(choose(SIZES, size), batch_size)
