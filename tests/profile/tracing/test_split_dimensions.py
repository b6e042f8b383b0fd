"""The splits of PyTorch's operators in a profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import grouped_mm, scaled_dot_product_attention, silu

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.profile.profiling import load_model, profile
from torch_topoopt.search.traffic import transfers


def splits(model: nn.Module, *batch: Any) -> dict[str, set[tuple[str, int, str]]]:
    """Operator -> (dimension, most parts, operands) of each of its splits."""
    graph = profile(model, batch, name="model")
    return {
        operator.name: {(s.dimension, s.max_degree, s.operands) for s in operator.splits}
        for operator in graph.operators
    }


def test_linear_layers_split_by_output_and_input_features_and_by_positions() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4))
    flat = splits(model, torch.empty(3, 6))
    assert flat["0"] == {("columns", 8, "whole"), ("rows", 6, "part")}
    assert flat["1"] == {("columns", 8, "part")}
    assert flat["3"] == set(), "a norm needs all features"
    sequence = splits(model, torch.empty(3, 5, 6))
    assert sequence["2"] == {
        ("columns", 4, "whole"),
        ("rows", 8, "part"),
        ("attribute", 5, "part"),
    }
    assert sequence["1"] == {("columns", 8, "part"), ("attribute", 5, "part")}
    assert sequence["3"] == {("attribute", 5, "part")}


def test_convolutions_split_by_channels_and_without_a_halo_by_height() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 1),
        nn.Conv2d(6, 6, 3, groups=6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip
    found = splits(model, torch.empty(2, 4, 16, 16))
    assert found["0"] == {("columns", 8, "whole"), ("rows", 4, "part")}
    assert found["1"] == {("columns", 8, "part")}, "its statistics run over all positions"
    assert found["2"] == {("columns", 8, "part"), ("attribute", 16, "part")}
    assert ("attribute", 16, "part") in found["3"]
    assert found["4"] == {("columns", 6, "part")}, "each channel for itself"
    assert found["5"] == {("columns", 6, "part")}


def test_tables_split_by_width_and_by_rows_that_are_added_up() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(100, 8)
            self.bags = nn.EmbeddingBag(50, 8, mode="sum")
            self.most = nn.EmbeddingBag(50, 8, mode="max")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.tokens(ids).sum(1) + self.bags(ids) * self.most(ids)

    found = splits(Tables(), torch.zeros(4, 3, dtype=torch.int64))
    assert found["tokens"] == {
        ("columns", 8, "whole"),
        ("rows", 100, "whole"),
        ("attribute", 3, "part"),
    }
    assert found["bags"] == {("columns", 8, "whole"), ("rows", 50, "whole")}
    assert found["most"] == {("columns", 8, "whole")}, "a maximum is no sum"
    assert found["mul"] == found["add"] == {("columns", 8, "part")}
    assert found["sum"] == set(), "not known"


def test_attention_splits_by_heads_and_by_queries() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
            self.built_in = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = [
                layer(x).view(x.shape[0], -1, 3, 4).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            ]
            mixed = scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
            return self.built_in(mixed, mixed, mixed, need_weights=False)[0].relu()

    found = splits(Attention(), torch.empty(2, 5, 12))
    assert found["scaled_dot_product_attention"] == {
        ("columns", 3, "part"),
        ("attribute", 5, "whole"),
    }
    assert found["flatten"] == {("columns", 3, "part"), ("attribute", 5, "part")}
    assert found["built_in"] == {("rows", 3, "whole")}


class Decoder(nn.Module):
    """Attention as transformers writes it: joint or separate layers, norms of heads, positions
    that turn halves of features, and shared keys and values that are copied."""

    def __init__(self, joint: bool) -> None:
        super().__init__()
        self.joint = joint
        self.query = nn.Linear(12, 24 if joint else 12)
        self.key, self.value = nn.Linear(12, 6), nn.Linear(12, 6)
        self.norm = nn.RMSNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.query(x)
        if self.joint:
            made = made.chunk(2, dim=-1)[1]
        query = self.norm(made.unflatten(-1, (-1, 3))).transpose(1, 2)
        key, value = (y(x).unflatten(-1, (-1, 3)).transpose(1, 2) for y in (self.key, self.value))
        query = query * 2 + torch.cat((-query[..., 2:], query[..., :2]), dim=-1)
        key, value = (y.repeat_interleave(2, dim=1) for y in (key, value))
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        return scaled_dot_product_attention(query, key, value) + weights @ value


@pytest.mark.parametrize("joint", [False, True])
def test_operators_between_linear_layers_and_attention_split_by_heads(joint: bool) -> None:
    found = splits(Decoder(joint), torch.empty(2, 5, 12))
    queries = {("columns", 4, "part"), ("attribute", 5, "part")}
    for name in ("norm", "mul", "neg", "cat", "add"):
        assert found[name] == queries, name
    groups = ("columns", 2, "part")
    for name in ("repeat_interleave", "repeat_interleave#2"):
        assert found[name] == {groups, ("attribute", 5, "part")}
    assert found["scaled_dot_product_attention"] == {groups, ("attribute", 5, "whole")}


def test_the_blocks_of_a_gpt_can_be_split_without_a_gather_inside() -> None:
    loaded = load_model("gpt:tiny")
    graph = profile(loaded.build, loaded.example_batch, name="gpt")
    places = {}
    for operator in graph.operators:
        kind = "rows" if operator.name.endswith(("attention.out", "mlp.down")) else "columns"
        split = operator.split(kind)  # type: ignore[arg-type]
        inside = operator.name.startswith(("blocks.0.attention", "blocks.0.mlp"))
        degrees = Degrees(1, kind, 2) if split and inside else Degrees(2)  # type: ignore[arg-type]
        places[operator.name] = Placement.of(operator.name, (0, 1), degrees)
    sends = {
        operator.name
        for operator in graph.operators
        for operand in operator.operands
        if transfers(
            operator, places[graph.operators[operand.producer].name], places[operator.name]
        )
    }
    first = {name.removeprefix("blocks.0.") for name in sends if name.startswith("blocks.0.")}
    gathers = {"attention.query", "attention.key", "attention.value", "mlp.up"}
    assert first == gathers | {"add", "add#2"}, "which add the partial sums"


def test_parameters_with_experts_first_split_by_experts() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.empty(4, 6, 8))
            self.down = nn.Parameter(torch.empty(4, 8, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bmm(torch.bmm(x, self.up).relu(), self.down)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            by_expert = x.view(x.shape[0], 4, 6).transpose(0, 1)  # each takes a part of a token
            return self.experts(by_expert)

    assert splits(Layer(), torch.empty(10, 24))["experts"] == {("experts", 4, "part")}


class Sorted(nn.Module):
    """Experts as functions on tokens that are sorted by expert, as transformers writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(4, 32, 8))
        self.down = nn.Parameter(torch.empty(4, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.arange(1, 5, dtype=torch.int32, device=x.device) * len(x) // 4
        gate, up = grouped_mm(x, self.up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return grouped_mm(silu(gate) * up, self.down.transpose(1, 2), offs=ends) * 2


class Viewed(Sorted):
    """The same with parameters of two dimensions, as Megatron keeps them."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.up = nn.Parameter(torch.empty(4 * 32, 8))  # type: ignore[assignment]
        self.down = nn.Parameter(torch.empty(4 * 8, 16))  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.arange(1, 5, dtype=torch.int32, device=x.device) * len(x) // 4
        up, down = self.up.view(4, 32, 8), self.down.view(4, 8, 16)
        gate, up = grouped_mm(x, up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return grouped_mm(silu(gate) * up, down.transpose(1, 2), offs=ends) * 2


@pytest.mark.parametrize("kind", [Sorted, Viewed])
def test_grouped_products_split_by_experts_and_features(kind: type[nn.Module]) -> None:
    found = splits(kind().to(torch.bfloat16), torch.empty(40, 8, dtype=torch.bfloat16))
    experts = ("experts", 4, "part")
    assert found["grouped_mm"] == {experts, ("columns", 16, "whole"), ("rows", 8, "part")}
    assert found["silu"] == found["mul"] == {experts, ("columns", 16, "part")}
    assert found["grouped_mm#2"] == {experts, ("columns", 8, "whole"), ("rows", 16, "part")}


def test_a_module_of_grouped_products_splits_by_experts() -> None:
    """As torchtitan's: it calls no other module, so it is one operator."""
    layer = nn.Sequential(nn.Linear(8, 8), Sorted()).to(torch.bfloat16)
    found = splits(layer, torch.empty(40, 8, dtype=torch.bfloat16))
    assert found["1"] == {("experts", 4, "part")}


def test_batched_products_of_experts_that_are_functions_split_with_what_is_between() -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.empty(4, 6, 8))
            self.down = nn.Parameter(torch.empty(4, 8, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            by_expert = x.view(x.shape[0], 4, 6).transpose(0, 1)
            return torch.bmm(torch.bmm(by_expert, self.up).relu(), self.down) * 2

    found = splits(Batched(), torch.empty(10, 24))
    experts = ("experts", 4, "part")
    assert found["bmm"] == {experts, ("columns", 8, "whole"), ("rows", 6, "part")}
    assert found["relu"] == {experts}
    assert found["bmm#2"] == {experts, ("columns", 6, "whole"), ("rows", 8, "part")}


def test_what_is_shared_or_reads_other_shapes_is_split_by_samples_only() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.again = nn.Linear(6, 6)
            self.scale = nn.Parameter(torch.empty(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.again(x)
            return self.again(first) * self.scale + first.sum(1, keepdim=True)

    found = splits(Shared(), torch.empty(3, 6))
    assert found["again"] == found["again#2"] == set(), "one weight, two operators"
    assert found["mul"] == found["add"] == set(), "a parameter, and a narrower operand"
