"""Sections are the ranges of a layer's features that different operators read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.refusals import refused
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import Split

    Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

HEADS, WIDTH = 4, 4


def in_thirds(x: torch.Tensor) -> Heads:
    query, key, value = x.split(HEADS * WIDTH, dim=2)
    return by_head(query), by_head(key), by_head(value)


def by_head(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def unbound(x: torch.Tensor) -> Heads:
    samples, length, _ = x.shape
    query, key, value = x.reshape(samples, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def interleaved(x: torch.Tensor) -> Heads:
    query, key, value = x.unflatten(-1, (HEADS, 3 * WIDTH)).transpose(1, 2).chunk(3, dim=-1)
    return query, key, value


def clamped(x: torch.Tensor) -> Heads:
    return in_thirds(x.clamp(-8.0, 8.0))


def turned(x: torch.Tensor) -> Heads:
    """As rotary positions, which read halves of each head, and nothing else of a head."""
    query, key, value = in_thirds(x)
    half = WIDTH // 2
    return query * 2 + torch.cat((-query[..., half:], query[..., :half]), dim=-1), key, value


def grouped(x: torch.Tensor) -> Heads:
    """Four heads of queries, and two of keys and of values."""
    query, key, value = (by_head(part) for part in x.split((16, 8, 8), dim=2))
    return query, key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1)


def overlapping(x: torch.Tensor) -> Heads:
    query, key, value = (by_head(x[..., first : first + 16]) for first in (0, 8, 16))
    return query, key, value


class Attention(nn.Module):
    def __init__(self, width: int, heads: Callable[[torch.Tensor], Heads]) -> None:
        super().__init__()
        self.joint, self.heads = nn.Linear(16, width), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(*self.heads(self.joint(x))).transpose(1, 2).flatten(2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint, self.down = nn.Linear(16, 48), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.joint(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


class Overlapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.joint(x)
        return made[..., :20].relu() + made[..., 12:].relu()


def columns(model: nn.Module, name: str = "joint") -> Split | None:
    graph = profile(model, torch.zeros(2, 5, 16), name="model")
    (found,) = [operator for operator in graph.operators if operator.name == name]
    return found.split("columns")


@pytest.mark.parametrize(
    ("width", "heads", "sections", "parts"),
    [
        (48, in_thirds, (16, 16, 16), 16),
        (48, unbound, (16, 16, 16), 16),
        (48, clamped, (16, 16, 16), 16),
        (48, turned, (16, 16, 16), 16),
        (32, grouped, (16, 8, 8), 8),
        (48, interleaved, (48,), 48),
        (64, lambda x: in_thirds(x[..., :48]), (16, 16, 16, 16), 16),
    ],
)
def test_queries_keys_and_values_are_sections(
    width: int, heads: Callable[[torch.Tensor], Heads], sections: tuple[int, ...], parts: int
) -> None:
    found = columns(Attention(width, heads))
    assert found is not None
    assert (found.sections, found.max_degree) == (sections, parts)


def test_what_reads_a_section_has_its_features() -> None:
    model = Gated()
    joint = columns(model)
    assert joint is not None
    assert (joint.sections, joint.max_degree) == ((24, 24), 24)
    for name in ("silu", "mul"):
        found = columns(model, name)
        assert found is not None
        assert (found.max_degree, found.operands, found.sections) == (24, "part", ())


def test_a_layer_that_is_read_as_a_whole_has_none() -> None:
    found = columns(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16)), "0")
    assert found is not None
    assert (found.sections, found.max_degree) == ((), 48)


def test_features_of_two_readers_have_no_parts() -> None:
    assert columns(Attention(32, overlapping)) is None
    assert columns(Overlapping()) is None
    assert columns(Overlapping(), "relu") is None


def test_an_op_graph_keeps_sections_and_refuses_uneven_ones() -> None:
    graph = profile(Gated(), torch.zeros(2, 5, 16), name="model")
    text = graph.to_json()
    assert OpGraph.from_json(text) == graph
    with refused(DocumentError, "sections", 20, 24):
        OpGraph.from_json(text.replace("[24,24]", "[24,20]").replace("[24, 24]", "[24, 20]"))
