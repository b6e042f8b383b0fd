"""The GPT can be split along its modules; the mixture of experts is what its definition says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from torch_topoopt.models import gpt, moe
from torch_topoopt.profile.profiling import profile


def text(batch: int, sequence: int, vocabulary: int) -> torch.Tensor:
    """Each token is the one before it plus 3."""
    starts = torch.arange(batch)[:, None] * 7
    return (starts + 3 * torch.arange(sequence)) % vocabulary


def _loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of all tokens but the first; and 0.01 times the balance loss (Switch
    Transformer, section 2.2) of a mixture of experts."""
    found = model(tokens)
    logits, balance = found if isinstance(found, tuple) else (found, 0.0)
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) + 0.01 * balance


@pytest.mark.parametrize("module", [gpt, moe])
def test_a_tiny_model_learns_what_follows(module: Any) -> None:
    torch.manual_seed(0)
    model = module.build("tiny")
    tokens = text(4, 8, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = _loss(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3.5
    assert losses[-1] < 0.5


def test_a_token_sees_only_those_before_it() -> None:
    torch.manual_seed(0)
    model = gpt.build("tiny")
    tokens = text(1, 8, 64)
    changed = tokens.clone()
    changed[0, 5] = 1
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])


def half(linear: Any, dim: int, part: int) -> torch.Tensor:
    return linear.weight.chunk(2, dim)[part]


def test_shards_of_heads_and_columns_add_up_to_the_whole() -> None:
    """Columns of query, key, value and `up`; rows of `out` and `down`: two partial sums."""
    torch.manual_seed(0)
    attention, mlp = gpt.Attention(16, 4), gpt.MLP(16)
    x = torch.randn(2, 5, 16)
    sums = [torch.zeros(2, 5, 16), torch.zeros(2, 5, 16)]
    for part in range(2):
        shard = gpt.Attention(16, 4)
        for name in ("query", "key", "value"):
            whole, mine = getattr(attention, name), getattr(shard, name)
            mine.weight = torch.nn.Parameter(half(whole, 0, part))
            mine.bias = torch.nn.Parameter(whole.bias.chunk(2)[part])
        shard.out.weight = torch.nn.Parameter(half(attention.out, 1, part))
        shard.out.bias = None
        sums[0] += shard(x)
        up = torch.nn.functional.linear(x, half(mlp.up, 0, part), mlp.up.bias.chunk(2)[part])
        sums[1] += torch.nn.functional.linear(torch.nn.functional.gelu(up), half(mlp.down, 1, part))
    torch.testing.assert_close(sums[0] + attention.out.bias, attention(x))
    torch.testing.assert_close(sums[1] + mlp.down.bias, mlp(x))


def plain_mixture(layer: moe.Mixture, tokens: torch.Tensor) -> torch.Tensor:
    """Token by token: what its best experts make of it, weighted, while they have places."""
    probabilities = layer.router(tokens)
    shares, chosen = probabilities.topk(layer.top, dim=-1)
    places = -(-layer.capacity * layer.top * len(tokens) // layer.count)
    taken = [0] * layer.count
    made = torch.zeros_like(tokens)
    for choice in range(layer.top):
        for i, token in enumerate(tokens):
            expert = int(chosen[i, choice])
            taken[expert] += 1
            if taken[expert] <= places:
                hidden = torch.nn.functional.gelu(token @ layer.experts.up[expert])
                made[i] += shares[i, choice] * (hidden @ layer.experts.down[expert])
    return made


@pytest.mark.parametrize("capacity", [0.25, 0.5, 1.25, 4.0])
def test_the_mixture_is_the_plain_one_with_room_and_without(capacity: float) -> None:
    torch.manual_seed(1)
    size = moe.MoESize(2, 16, 4, 8, 64, 4, experts=4, top=2, capacity=capacity)
    layer = moe.Mixture(size)
    x = torch.randn(3, 8, 16)
    with torch.no_grad():
        mixed, balance = layer(x)
        expected = plain_mixture(layer, x.flatten(0, 1))
    torch.testing.assert_close(mixed.flatten(0, 1), expected)
    assert float(balance) >= 0.9  # 1 where the experts are used evenly


def test_what_experts_see_depends_on_the_shapes_alone_and_is_split_with_the_samples() -> None:
    graph = profile(lambda: moe.build("tiny"), moe.example_batch(size="tiny"), name="moe")
    experts = next(operator for operator in graph.operators if operator.kind == "Experts")
    size = moe.SIZES["tiny"]
    places = int(size.capacity * size.top * 4 * size.sequence / size.experts)
    assert experts.splittable
    assert experts.forward_flops == 2 * 2 * size.experts * places * size.hidden * 4 * size.hidden
    assert experts.parameter_bytes == 4 * 2 * size.experts * 4 * size.hidden**2


@pytest.mark.parametrize(
    ("module", "size", "parameters"),
    [
        (gpt, "gpt3-175b", 175.2e9),
        (moe, "gpt2-64e", 1.94e9),
    ],
)
def test_large_ones_have_their_parameters_and_layers(
    module: Any, size: str, parameters: float
) -> None:
    with torch.device("meta"):
        model = module.build(size)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.01)


def test_the_layers_of_a_gpt_are_found() -> None:
    graph = profile(lambda: gpt.build("gpt2"), gpt.example_batch(size="gpt2"), name="gpt")
    assert [(layer.kind, len(layer.starts)) for layer in graph.layers] == [("Block", 12)]
