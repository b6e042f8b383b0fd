"""Small models for the parallel tests, with what makes each of them awkward to spread."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_topoopt.models import llama

if TYPE_CHECKING:
    from collections.abc import Callable


class Tables(nn.Module):
    """A DLRM: tables beside dense layers, and a view over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10, 3, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        self.top = nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        looked_up = [table(bags[:, i]) for i, table in enumerate(self.tables)]
        joined = torch.stack([self.bottom(dense), *looked_up], dim=1)
        return self.top(joined.view(dense.shape[0], -1)).squeeze(1)


class Attention(nn.Module):
    """Residuals, sizes taken from shapes, a layer used twice, a parameter of no leaf module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.linspace(-1, 1, 5 * 8).view(5, 8))
        self.mix = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        samples, length = tokens.shape
        x = self.embed(tokens) + self.position
        q, k, v = self.mix(self.norm(x)).view(samples, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(samples, length, 8))
        x = torch.tanh(self.twice(self.twice(x)))
        return self.head(x).flatten(0, 1)


class InPlace(nn.Module):
    """Changes tensors in place, mixes samples, returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.second(self.relu(self.first(x)))
        hidden = hidden - hidden.mean()
        return {"a": self.third(hidden), "b": hidden.transpose(0, 1).contiguous().transpose(0, 1)}


class Split(nn.Module):
    """All that can be split by columns or rows: tables and bags of them, linear layers and what
    lies between them, one that two others read."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8, padding_idx=7)
        self.mean = nn.EmbeddingBag(8, 8, mode="mean", padding_idx=0)
        self.sum = nn.EmbeddingBag(8, 8, mode="sum")
        self.widen = nn.Linear(8, 16)
        self.act = nn.GELU()
        self.narrow = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)  # samples, 3, 8
        mixed = self.narrow(torch.tanh(self.act(self.widen(words))))
        both = self.mean(tokens % 8) + self.sum(tokens % 8, per_sample_weights=weights)
        return self.head(mixed + words).sum(1) + self.head(both)


class Angles(nn.Module):
    """Rotary embeddings: a leaf module that reads only the shape and the type of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.tensor([1.0, 0.1]), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.rates
        doubled = torch.cat([angles, angles], dim=-1)
        return doubled.cos().to(x.dtype), doubled.sin().to(x.dtype)


class AsTheyAre(nn.Module):
    """Leaf modules without operators, sizes of -1, shapes of tensors elsewhere, control flow on
    values and on the device, repeated values, samples that depend on each other, views that mix
    samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.angles = Angles()
        self.query = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.0)
        self.same = nn.Identity()
        self.out = nn.Linear(16, 8)
        self.experts = nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool((tokens < 0).any()):
            raise ValueError("negative tokens")
        x = self.embed(tokens)
        cos, sin = self.angles(x)
        heads = self.query(x).view(x.shape[0], -1, 2, 4)
        turned = heads * cos[:, None] + heads.roll(2, -1) * sin[:, None]
        wide = torch.tanh(turned)[:, :, None].expand(-1, -1, 2, -1, -1).reshape(*tokens.shape, -1)
        x = self.same(self.drop(self.out(wide))).view_as(x) + x
        return self.routed(x.flatten(0, 1)).view_as(x) + x

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in the order of their first feature, with a share that depends on their place."""
        counts = x[:, 0].float() if x.device.type == "cpu" else x[:, 0].double()
        order = counts.argsort()
        place = torch.arange(len(x), device=x.device) * 2 - (len(x) - 1)
        worked = self.experts(x[order]) * (place[:, None] / len(x))
        twice = torch.tanh(worked.repeat(2, 1)).view(2, -1, 8).transpose(0, 1)
        return torch.zeros_like(x).index_copy(0, order, twice.sum(1))


class Middle(nn.Module):
    """A block that the backward pass computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False) + x


class Recomputed(nn.Module):
    """A checkpoint between other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.middle = Middle()
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(torch.tanh(self.first(x))))


def _tables_batch(samples: int, generator: torch.Generator) -> tuple[Any, ...]:
    return (
        torch.randn(samples, 4, generator=generator, dtype=torch.float64),
        torch.randint(0, 10, (samples, 3, 2), generator=generator),
    )


def _tokens(samples: int, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randint(0, 11, (samples, 5), generator=generator),)


def _weighted(samples: int, generator: torch.Generator) -> tuple[Any, ...]:
    tokens = torch.randint(0, 12, (samples, 3), generator=generator)
    return tokens, torch.rand(samples, 3, generator=generator, dtype=torch.float64)


def _values(samples: int, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randn(samples, 4, generator=generator, dtype=torch.float64),)


MODELS: dict[
    str, tuple[Callable[[], nn.Module], Callable[[int, torch.Generator], tuple[Any, ...]]]
] = {
    "tables": (Tables, _tables_batch),
    "attention": (Attention, _tokens),
    "in-place": (InPlace, _values),
    "split": (Split, _weighted),
    "as they are": (AsTheyAre, _tokens),
    "recomputed": (Recomputed, _values),
    "llama": (functools.partial(llama.build, "tiny"), _tokens),
}


def build(name: str) -> nn.Module:
    """With the same values every time; float64, so that sums in another order hardly differ."""
    torch.manual_seed(7)
    return MODELS[name][0]().double()


def batch(name: str, samples: int, seed: int = 0) -> tuple[Any, ...]:
    return MODELS[name][1](samples, torch.Generator().manual_seed(seed))


def loss(output: Any) -> torch.Tensor:
    """The mean over the samples of something that no symmetry makes zero."""
    tensors = list(output.values()) if isinstance(output, dict) else [output]
    return sum(((t - 0.3) ** 2).mean() for t in tensors)  # type: ignore[return-value]
