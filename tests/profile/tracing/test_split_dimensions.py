"""The splits of PyTorch's operators in a profile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

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
