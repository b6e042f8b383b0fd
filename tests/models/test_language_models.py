"""Language models split along their modules; mixtures of experts are what their definition says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torch_topoopt.models import gpt, llama, mixtral, moe, qwen3_moe
from torch_topoopt.models.sizes import choose
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


@pytest.mark.parametrize("module", [gpt, moe, llama, qwen3_moe, mixtral])
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


@pytest.mark.parametrize("module", [gpt, llama])
def test_a_token_sees_only_those_before_it(module: Any) -> None:
    torch.manual_seed(0)
    model = module.build("tiny")
    tokens = text(1, 8, 64)
    changed = tokens.clone()
    changed[0, 5] = 1
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])


def test_rotary_positions_keep_lengths_and_make_products_depend_on_distance() -> None:
    torch.manual_seed(0)
    query, key = (torch.randn(1, 1, 1, 8).expand(1, 1, 6, 8) for _ in range(2))
    turned = [llama.Rotary()(x) for x in (query, key)]
    torch.testing.assert_close(turned[0].norm(dim=-1), query.norm(dim=-1))
    products = turned[0][0, 0] @ turned[1][0, 0].T
    for distance in range(-5, 6):
        same = products.diagonal(distance)
        torch.testing.assert_close(same, same[:1].expand_as(same))


def test_queries_of_a_group_share_a_head_of_keys_and_values() -> None:
    torch.manual_seed(0)
    size = choose(llama.SIZES, "tiny")
    shared, plain = llama.GroupedAttention(size), llama.GroupedAttention(replace(size, kv_heads=4))
    for name in ("query", "out"):
        getattr(plain, name).weight = getattr(shared, name).weight
    for name in ("key", "value"):
        heads = getattr(shared, name).weight.unflatten(0, (2, 4))
        getattr(plain, name).weight = nn.Parameter(heads.repeat_interleave(2, 0).flatten(0, 1))
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(shared(x), plain(x))


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
    routing, probabilities = layer.routing, layer.router(tokens)
    shares, chosen = probabilities.topk(routing.top, dim=-1)
    places = -(-routing.capacity * routing.top * len(tokens) // routing.experts)
    taken = [0] * routing.experts
    made = torch.zeros_like(tokens)
    for choice in range(routing.top):
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
    layer = moe.Mixture(16, size, moe.Experts(4, 16))
    x = torch.randn(3, 8, 16)
    with torch.no_grad():
        mixed, balance = layer(x)
        expected = plain_mixture(layer, x.flatten(0, 1))
    torch.testing.assert_close(mixed.flatten(0, 1), expected)
    assert float(balance) >= 0.9  # 1 where the experts are used evenly


def test_experts_with_gates_are_weighted_by_shares_that_add_up_to_one() -> None:
    torch.manual_seed(1)
    layer = qwen3_moe.SparseMLP(replace(qwen3_moe.SIZES["tiny"], capacity=4.0))
    x = torch.randn(3, 8, 16)
    tokens, experts = x.flatten(0, 1), layer.experts
    with torch.no_grad():
        shares, chosen = layer.router(tokens).softmax(-1).topk(2, dim=-1)
        expected = torch.zeros_like(tokens)
        for i, token in enumerate(tokens):
            for share, expert in zip(shares[i] / shares[i].sum(), chosen[i], strict=True):
                gate = torch.nn.functional.silu(token @ experts.gate[expert])
                hidden = gate * (token @ experts.up[expert])
                expected[i] += share * (hidden @ experts.down[expert])
        torch.testing.assert_close(layer(x).flatten(0, 1), expected)


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


@pytest.mark.parametrize(
    ("module", "size", "parameters"),
    [
        (llama, "1b", 1_235_814_400),
        (llama, "8b", 8_030_261_248),
        (llama, "70b", 70_553_706_496),
        (llama, "405b", 405_853_388_800),
        (qwen3_moe, "30b-a3b", 30_532_122_624),
        (qwen3_moe, "235b-a22b", 235_093_634_560),
        (mixtral, "8x7b", 46_702_792_704),
        (mixtral, "8x22b", 140_630_071_296),
    ],
)
def test_todays_models_have_their_published_parameters(
    module: Any, size: str, parameters: int
) -> None:
    with torch.device("meta"):
        model = module.build(size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


def test_a_llama_splits_by_groups_of_heads_without_a_gather_inside() -> None:
    graph = profile(lambda: llama.build("1b"), llama.example_batch(size="1b"), name="llama")
    inside = {
        o.name.removeprefix("blocks.0."): {s.dimension: s.max_degree for s in o.splits}
        for o in graph.operators
        if o.name.startswith("blocks.0.")
    }
    positions, groups, heads = 8192, 8, 32
    attention = "attention.scaled_dot_product_attention"
    assert inside["attention.rotary"] == {"columns": heads, "attribute": positions}
    assert inside["attention.rotary#2"] == {"columns": groups, "attribute": positions}
    assert inside[attention] == {"columns": groups, "attribute": positions}
    assert inside["mlp.mul"] == inside["mlp.silu"] == {"columns": 8192, "attribute": positions}
    assert [(la.kind, la.length, len(la.starts)) for la in graph.layers] == [("LlamaBlock", 17, 16)]


def test_a_profile_of_a_mixture_has_the_flops_of_the_experts_that_a_token_takes() -> None:
    batch = qwen3_moe.example_batch(size="30b-a3b")
    graph = profile(lambda: qwen3_moe.build("30b-a3b"), batch, name="qwen3-moe")
    experts = next(operator for operator in graph.operators if operator.kind == "GatedExperts")
    size = qwen3_moe.SIZES["30b-a3b"]
    assert experts.forward_flops == 2 * size.sequence * size.top * 3 * size.hidden * size.ffn
    assert [(s.dimension, s.max_degree) for s in experts.splits] == [("experts", 128)]
    norm = next(operator for operator in graph.operators if operator.name.endswith("key_norm"))
    assert {s.dimension: s.max_degree for s in norm.splits} == {"columns": 4, "attribute": 4096}


def test_the_layers_of_a_gpt_are_found() -> None:
    graph = profile(lambda: gpt.build("gpt2"), gpt.example_batch(size="gpt2"), name="gpt")
    assert [(layer.kind, len(layer.starts)) for layer in graph.layers] == [("Block", 12)]
