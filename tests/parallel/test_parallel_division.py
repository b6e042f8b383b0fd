"""Models that groups of tensors, positions or experts cannot divide are refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.refusals import refused
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from torch_topoopt.models import bert, gpt, llama, mixtral
from torch_topoopt.parallel import StrategyError
from torch_topoopt.parallel.executable import ExecutableLayouts
from torch_topoopt.parallel.sharded.distribute import Division
from torch_topoopt.parallel.sharded.tensor import TensorStyles
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.cell_costs import CellCosts, parameter_kinds
from torch_topoopt.search.layouts.cells import cells_of
from torch_topoopt.search.layouts.divisible import why_not_divided
from torch_topoopt.search.layouts.links import Boxes
from torch_topoopt.search.layouts.prices import LayoutPrices
from torch_topoopt.search.layouts.space import fastest_layouts

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

TINY = llama.SIZES["tiny"]


class JointAttention(nn.Module):
    """Queries, keys and values have half of their features in common."""

    def __init__(self) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.joint(x)
        each = (made[..., first : first + 16] for first in (0, 8, 16))
        parts = (p.unflatten(-1, (-1, 4)).transpose(1, 2) for p in each)
        mixed = scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class CrossAttention(nn.Module):
    """Attention of the positions in `x` to those in `memory`, with a bias if there is one."""

    def __init__(self, *, biased: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.bias = nn.Linear(16, 8) if biased else None

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(read).unflatten(-1, (4, 4)).transpose(1, 2)
            for layer, read in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        bias = None if self.bias is None else self.bias(x)[:, None]
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Encoding(nn.Module):
    """An encoder of 16 positions, and a decoder of 8 that reads its result."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = CrossAttention(), CrossAttention()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.decoder(y, self.encoder(x, x))


class Biased(nn.Module):
    """Attention with a bias that the model computes, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = CrossAttention(biased=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x)


def profiled(module: nn.Module, batch: Any) -> OpGraph:
    return profile(module, batch, name="model")


def tokens(length: int = 8) -> torch.Tensor:
    return torch.zeros(4, length, dtype=torch.long)


def with_limited_norms() -> nn.Module:
    model = llama.Llama(TINY)
    model.embedding = nn.Embedding(64, 16, max_norm=1.0)
    return model


@pytest.mark.parametrize(
    ("module", "batch", "parts", "named"),
    [
        (llama.Llama(TINY), tokens(), 4, ["scaled_dot_product_attention", "2 groups of heads"]),
        (llama.Llama(TINY), tokens(7), 2, ["'embedding'", "7 positions"]),
        (
            nn.Sequential(JointAttention(), nn.LayerNorm(16)),
            torch.zeros(4, 8, 16),
            2,
            ["'0.joint'"],
        ),
        (with_limited_norms(), tokens(), 2, ["'embedding'", "max_norm"]),
    ],
)
def test_tensors_that_cannot_be_divided_are_named(
    module: nn.Module, batch: torch.Tensor, parts: int, named: list[str]
) -> None:
    with pytest.raises(StrategyError) as error:
        dict(TensorStyles(module, profiled(module, batch), parts).of_modules())
    message = str(error.value)
    assert message.startswith("layout: tensor: ")
    assert all(word in message for word in named), message


@pytest.mark.parametrize(
    ("module", "batch", "layout", "named"),
    [
        (llama.Llama(TINY), tokens(12), Layout(context=4), ["12 positions", "multiple of 8"]),
        (nn.Linear(16, 16), torch.zeros(4, 8, 16), Layout(context=2), ["no attention"]),
        (
            bert.build("tiny"),
            bert.example_batch(size="tiny"),
            Layout(context=3),
            ["no attention"],
        ),
        (
            Encoding(),
            (torch.zeros(4, 16, 16), torch.zeros(4, 8, 16)),
            Layout(context=2),
            ["'encoder.scaled_dot_product_attention' has 16", "'decoder.", "has 8"],
        ),
        (Biased(), torch.zeros(4, 8, 16), Layout(context=2), ["'attention.", "bias"]),
    ],
)
def test_positions_that_cannot_be_divided_are_named(
    module: nn.Module, batch: Any, layout: Layout, named: list[str]
) -> None:
    operators = profiled(module, batch).operators
    why = why_not_divided(operators, [None] * len(operators), layout)
    assert why.startswith(f"context: {layout.context}: ")
    assert all(word in why for word in named), why


@pytest.mark.parametrize("layout", [Layout(tensor=4), Layout(context=8), Layout(expert=3, data=3)])
def test_a_search_leaves_them_out(layout: Layout) -> None:
    model = llama.Llama(replace(mixtral.SIZES["tiny"], experts=4))
    costs = CellCosts(profiled(model, tokens()), accelerator("cpu"))
    assert costs.priced(layout) is None
    assert costs.why_not(layout).startswith(("tensor: 4: '", "context: 8: ", "expert: 3: "))
    assert costs.priced(Layout(tensor=2, context=2, expert=2)) is not None


class Repeated(nn.Module):
    """One block that is called four times, or four blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for call in range(4):
            x = x + self.blocks[call % len(self.blocks)](x)
        return self.last(x)


SOME = Layout(pipeline=2, recompute="full", recompute_blocks=(1, 2), micro_batches=4)


def division(module: nn.Module, layout: Layout) -> Division:
    """Without groups, in chunks of table and two blocks, and two blocks and head."""
    mesh: Any = SimpleNamespace(layout=layout)
    cells = len(cells_of(profiled(module, torch.zeros(4, 16))))
    return Division(profiled(module, torch.zeros(4, 16)), mesh, None, (cells // 2, -(-cells // 2)))


def test_the_first_blocks_of_each_stage_are_named() -> None:
    module = Repeated(4)
    named = division(module, SOME).blocks(module, "recompute_blocks")
    assert named == {"blocks.0", "blocks.2", "blocks.3"}
    every = division(module, replace(SOME, recompute_blocks=()))
    assert every.blocks(module, "recompute_blocks") == {f"blocks.{i}" for i in range(4)}
    with refused(StrategyError, "recompute_blocks", 3, 1, 2):
        division(module, replace(SOME, recompute_blocks=(0, 3))).blocks(module, "recompute_blocks")


def test_some_calls_of_one_module_are_neither_planned_nor_executed() -> None:
    module = Repeated(1)
    with refused(StrategyError, "recompute_blocks", "'blocks.0'"):
        division(module, SOME).blocks(module, "recompute_blocks")
    graph = profiled(module, torch.zeros(4, 16))
    layouts = ExecutableLayouts(module, graph)
    assert layouts.why_not(SOME).startswith("recompute_blocks")
    assert not layouts.why_not(replace(SOME, recompute_blocks=()))
    prices = LayoutPrices(graph, accelerator("h100"), Boxes(1, 450e9, 50e9))
    none, full = (
        prices.price(Layout(data=2, micro_batch=2, recompute=kind)) for kind in ("none", "full")
    )
    assert none is not None
    assert full is not None
    limit = (none.memory.total + full.memory.total) / 2

    def some_blocks(**options: Any) -> list[bool]:
        found = fastest_layouts(prices, 2, 4, memory_bytes=limit, **options)
        return [bool(one.layout.recompute_blocks or one.layout.reshard_blocks) for one in found]

    assert any(some_blocks())
    alike = some_blocks(why_not=layouts.why_not)
    assert alike
    assert not any(alike)


def test_only_pairs_of_columns_and_rows_are_divided() -> None:
    """A layer of columns whose result another operator needs whole has positions instead."""
    model = bert.build("tiny")
    operators = profiled(model, bert.example_batch(size="tiny")).operators
    kinds = parameter_kinds(operators, 2, 1)
    assert kinds is not None
    found = {operator.name: kind for operator, kind in zip(operators, kinds, strict=True)}
    assert found["encoder.layers.0.linear1"] == "columns"
    assert found["encoder.layers.0.linear2"] == "rows"
    assert found["embeddings.projection"] is None
    assert found["transform"] is None


def test_columns_of_one_tensor_share_its_gather() -> None:
    model = gpt.build("tiny")
    found = list(TensorStyles(model, profiled(model, tokens()), 2).gathering())
    of_block = ["attention", "mlp.up"]
    assert found == [f"blocks.{i}.{path}" for i in range(2) for path in of_block] + ["head"]
