"""Layers that a model has several times are found, and only those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.refusals import refused
from torch import nn

from torch_topoopt.models import MODELS
from torch_topoopt.op_graph import OpGraph, RepeatedLayer
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.layouts.cells import cells_of


class Block(nn.Module):
    """A residual layer of its own width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        made = self.inner(x)
        return x + (made if scale is None else made * scale)


def blocks(*widths: int) -> OpGraph:
    return profile(
        lambda: nn.Sequential(nn.Linear(8, 8), *(Block(width) for width in widths)),
        torch.zeros(4, 8),
        name="blocks",
    )


@pytest.mark.parametrize(
    ("widths", "starts"),
    [
        ((16, 16, 16), [(1, 5, 9)]),
        ((16, 12, 16), [(1, 9), (5,)]),
        ((16, 12, 16, 12), [(1, 9), (5, 13)]),
        ((16, 12), []),
    ],
)
def test_equal_blocks_are_one_layer_and_others_are_not(widths: Any, starts: Any) -> None:
    graph = blocks(*widths)
    assert [layer.starts for layer in graph.layers] == starts
    assert {(layer.kind, layer.length) for layer in graph.layers} <= {("Block", 4)}


class Scaled(nn.Module):
    """Blocks that multiply by one tensor, as rotary embeddings do: the first saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))

    def forward(self, tensor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        tensor, scale = self.first(tensor), scale.cos()
        for block in self.blocks:
            tensor = block(tensor, scale)
        return tensor


def test_blocks_that_save_one_tensor_are_equal() -> None:
    batch = torch.zeros(4, 8), torch.zeros(4, 8)
    graph = profile(Scaled, batch, name="scaled")
    (layer,) = graph.layers
    assert (layer.kind, len(layer.starts)) == ("Block", 2)
    saved = [[o.saved_bytes for o in graph.operators[s : s + layer.length]] for s in layer.starts]
    assert sum(saved[0]) - sum(saved[1]) == 4 * 8 * 4
    kinds = [cell.kind for cell in cells_of(graph) if cell.block]
    assert len(set(kinds)) == 2, "each costs what it saves"


def test_a_block_whose_weights_are_shared_is_not_equal_to_the_first() -> None:
    """Its gradients are summed with the first one's: they are not another AllReduce."""
    shared = Block(16)
    graph = profile(
        lambda: nn.Sequential(nn.Linear(8, 8), shared, shared, shared), torch.zeros(4, 8), name="x"
    )
    assert [layer.starts for layer in graph.layers] == [(1,), (5, 9)]


def test_the_layers_of_the_shipped_models() -> None:
    def layers(name: str) -> list[tuple[int, str]]:
        module = MODELS[name]
        graph = profile(
            lambda: module.build("paper"), module.example_batch(2, size="paper"), name=name
        )
        return [(len(layer.starts), layer.kind) for layer in graph.layers]

    assert layers("bert") == [(12, "TransformerEncoderLayer")]
    assert layers("resnet50") == [(n, "Bottleneck") for n in (1, 2, 1, 3, 1, 5, 1, 2)]


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [
        (RepeatedLayer("Block", 4, ()), ("layers[0]", "Block")),
        (RepeatedLayer("Block", 4, (1, 10)), ("starts", 10, 4, 13)),
        (RepeatedLayer("Block", 4, (1, 4)), ("starts", 4)),
        (RepeatedLayer("Block", 4, (1, 6)), ("starts", 6)),
    ],
)
def test_a_document_that_names_wrong_layers_is_refused(
    layer: RepeatedLayer, tokens: tuple[object, ...]
) -> None:
    graph = blocks(16, 16, 16)
    with refused(DocumentError, *tokens):
        replace(graph, layers=(layer,)).validate()
    assert OpGraph.from_json(graph.to_json()) == graph
