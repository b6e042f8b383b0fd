"""Profiles of models against PyTorch's own counter and closed forms."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import (
    cross_entropy,
    linear,
    rms_norm,
    scaled_dot_product_attention,
)
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from torch_topoopt.models import MODELS, dlrm
from torch_topoopt.op_graph import Operand, OpGraph
from torch_topoopt.profile.profiling import profile

FLOAT = 4  # bytes


def total_flops(build: Any, batch: Any) -> int:
    """Forward and backward FLOPs by FlopCounterMode, from the sum of all floating outputs."""
    batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), batch)
    with torch.device("meta"):
        model = build()
        with FlopCounterMode(display=False) as counter:
            if isinstance(batch, dict):
                output = model(**batch)
            else:
                output = model(*batch) if isinstance(batch, tuple) else model(batch)
            outputs: list[Any] = []
            tree_map_only(torch.Tensor, outputs.append, output)
            sum(tensor.sum() for tensor in outputs if tensor.requires_grad).backward()
    return int(counter.get_total_flops())


def by_name(graph: OpGraph) -> dict[str, Any]:
    return {operator.name: operator for operator in graph.operators}


def producers(graph: OpGraph, name: str) -> list[str]:
    operands = by_name(graph)[name].operands
    return [graph.operators[operand.producer].name for operand in operands]


class Diamond(nn.Module):
    """Two branches of one tensor, joined by cat; the joined tensor goes twice through one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 5)
        self.again = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        joined = torch.cat([self.left(x), self.right(x)], dim=1)
        return self.again(self.again(joined))


class TiedLanguageModel(nn.Module):
    """Embedding, recurrent layer, and an output layer that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.output = nn.Linear(8, 100, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.recurrent(self.embedding(tokens))[0])


class InPlace(nn.Module):
    """Writes parts of a buffer that it makes, in place, and reads parts of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.relu = nn.ReLU(inplace=True)
        self.b = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        joined = torch.zeros(len(x), 16)
        joined[:, :8] = self.relu(self.a(x))
        joined[:, 8:] = self.b(x)
        first, second = joined.chunk(2, dim=1)
        return {"product": first * second, "choice": (joined.argmax(1), "not a tensor")}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class WithFunction(nn.Module):
    """A custom autograd function, and a part that is computed again in the backward pass."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.zeros(8, 8))
        self.part = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> Any:
        x = Scaled.apply(self.first(x), self.weight)
        return checkpoint(self.part, x, use_reentrant=self.reentrant)


class Contrastive(nn.Module):
    """Attention within samples, then similarities between all pairs of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = scaled_dot_product_attention(self.q(x), self.k(x), x).mean(1)
        similarity = y @ y.t()
        return cross_entropy(similarity, torch.arange(len(y)))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten()
    )


CASES: dict[str, tuple[Any, Any]] = {
    "diamond": (Diamond, torch.zeros(4, 8)),
    "tied": (TiedLanguageModel, torch.zeros(4, 6, dtype=torch.long)),
    "in place": (InPlace, torch.zeros(4, 8)),
    "function": (WithFunction, torch.zeros(4, 8)),
    "reentrant checkpoint": (lambda: WithFunction(True), torch.zeros(4, 8)),
    "contrastive": (Contrastive, torch.zeros(4, 5, 8)),
    "encoder": (encoder, torch.zeros(4, 5, 16)),
    "convolutions": (convolutions, torch.zeros(4, 3, 8, 8)),
    "parametrised": (lambda: nn.Sequential(weight_norm(nn.Linear(8, 8))), torch.zeros(4, 8)),
    **{name: (MODELS[name].build, None) for name in MODELS},
}


@pytest.mark.parametrize("case", CASES)
def test_flops_equal_those_of_pytorchs_counter(case: str) -> None:
    build, batch = CASES[case]
    if case in MODELS:
        module = MODELS[case]
        batch = module.example_batch(size="tiny")
        build = lambda: module.build("tiny")  # noqa: E731
    graph = profile(build, batch, name=case)
    assert graph.forward_flops + graph.backward_flops == total_flops(build, batch) > 0
    for i, operator in enumerate(graph.operators):
        assert all(operand.producer < i for operand in operator.operands)


def test_a_linear_layer_has_its_closed_forms() -> None:
    batch, inputs, outputs = 4, 8, 5
    graph = profile(
        lambda: nn.Sequential(nn.Linear(3, inputs), nn.Linear(inputs, outputs)),
        torch.zeros(batch, 3),
        name="x",
    )
    operator = graph.operators[1]
    weights = (inputs * outputs + outputs) * FLOAT
    assert operator.kind == "Linear"
    assert operator.forward_flops == 2 * batch * inputs * outputs
    assert operator.backward_flops == 2 * operator.forward_flops
    assert operator.parameter_bytes == operator.parameter_gradient_bytes == weights
    assert operator.output_bytes == batch * outputs * FLOAT
    assert operator.operands == (Operand(0, batch * inputs * FLOAT, batch * inputs * FLOAT),)
    assert operator.saved_bytes == batch * inputs * FLOAT
    assert operator.memory_bytes == (batch * inputs + batch * outputs) * FLOAT + weights
    # The first layer's input is the batch: no operand, and no gradient to compute for it.
    assert graph.operators[0].operands == ()
    assert graph.operators[0].backward_flops == graph.operators[0].forward_flops


def test_a_convolution_has_its_closed_form() -> None:
    graph = profile(lambda: nn.Conv2d(3, 8, 5, stride=2), torch.zeros(2, 3, 21, 21), name="x")
    (operator,) = graph.operators
    assert operator.forward_flops == 2 * 2 * 8 * 9 * 9 * 3 * 5 * 5
    assert operator.output_bytes == 2 * 8 * 9 * 9 * FLOAT


def test_the_sum_behind_rows_is_needed_by_a_loss_too() -> None:
    """An output that no operator reads is not split by rows, as no operator would pay the sum."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    first, last = profile(model, torch.zeros(4, 8), name="x").operators
    assert [split.dimension for split in first.splits] == ["columns", "rows"]
    assert [split.dimension for split in last.splits] == ["columns"]
    *_, last, output = profile(model, torch.zeros(4, 8), name="x", boundary=True).operators
    assert output.name == "output"
    assert last.split("rows") is not None


def test_a_diamond_joins_both_branches_and_a_reused_module_counts_parameters_once() -> None:
    graph = profile(Diamond(), torch.zeros(4, 8), name="x")
    names = [operator.name for operator in graph.operators]
    assert names == ["stem", "left", "right", "cat", "again", "again#2"]
    assert producers(graph, "left") == producers(graph, "right") == ["stem"]
    assert producers(graph, "cat") == ["left", "right"]
    assert [o.size_bytes for o in by_name(graph)["cat"].operands] == [4 * 3 * FLOAT, 4 * 5 * FLOAT]
    assert by_name(graph)["cat"].forward_flops == 0
    assert by_name(graph)["cat"].memory_bytes == 2 * 4 * 8 * FLOAT
    assert by_name(graph)["again"].parameter_bytes == 72 * FLOAT
    assert by_name(graph)["again#2"].parameter_bytes == 0
    assert by_name(graph)["again#2"].parameter_gradient_bytes == 0
    assert all(operator.splittable for operator in graph.operators)


def test_tied_weights_count_at_the_first_user_and_indices_have_no_gradient() -> None:
    model = TiedLanguageModel()
    graph = profile(model, torch.zeros(4, 6, dtype=torch.long), name="x")
    assert graph.parameter_bytes == sum(p.nbytes for p in model.parameters())
    embedding, _, output = graph.operators
    assert embedding.parameter_bytes == 100 * 8 * FLOAT
    assert output.parameter_bytes == 0
    assert embedding.operands == ()
    # A lookup touches 24 indices, 24 rows and its output, not the whole table.
    assert embedding.memory_bytes == 24 * 8 + 2 * 24 * 8 * FLOAT


def test_the_gradient_of_an_operand_that_is_not_differentiable_is_empty() -> None:
    graph = profile(InPlace, torch.zeros(4, 8), name="x")
    (operand,) = by_name(graph)["argmax"].operands
    assert (operand.size_bytes, operand.gradient_bytes) == (4 * 16 * FLOAT, 0)


def test_parts_written_in_place_are_followed_to_who_reads_them() -> None:
    graph = profile(InPlace, torch.zeros(4, 8), name="x")
    assert producers(graph, "setitem") == ["relu"]
    assert producers(graph, "setitem#2") == ["setitem", "b"]
    assert producers(graph, "mul") == ["setitem#2", "setitem#2"]
    assert [operand.size_bytes for operand in by_name(graph)["mul"].operands] == [128, 128]


def test_views_are_folded_into_the_operator_that_made_the_tensor() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)
            self.flatten = nn.Flatten()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.flatten(self.conv(x).transpose(2, 3).transpose(2, 3)))

    graph = profile(Viewing, torch.zeros(4, 1, 2, 2), name="x")
    assert [operator.name for operator in graph.operators] == ["conv", "fc"]
    assert graph.operators[1].operands == (Operand(0, 128, 128),)


def test_frozen_parameters_have_bytes_but_no_gradient() -> None:
    model = Diamond()
    model.stem.requires_grad_(False)
    model.left.weight.requires_grad_(False)
    graph = profile(model, torch.zeros(4, 8), name="x")
    stem, left = graph.operators[:2]
    assert (stem.parameter_bytes, stem.parameter_gradient_bytes) == (72 * FLOAT, 0)
    assert (left.parameter_bytes, left.parameter_gradient_bytes) == (27 * FLOAT, 3 * FLOAT)
    assert stem.backward_flops == 0
    assert left.operands[0].gradient_bytes == 0  # nothing below it is trained
    assert left.saved_bytes == 0


def test_the_gradient_of_a_sparse_table_counts_the_rows_that_were_looked_up() -> None:
    batch = torch.zeros(4, 3, dtype=torch.long)
    graph = profile(lambda: nn.EmbeddingBag(10**6, 16, mode="sum", sparse=True), batch, name="x")
    rows = 4 * 3
    assert graph.parameter_bytes == 10**6 * 16 * FLOAT
    assert graph.parameter_gradient_bytes == rows * 16 * FLOAT + rows * 8


def test_unused_parameters_stand_nowhere() -> None:
    model = Diamond()
    model.unused = nn.Linear(100, 100)
    graph = profile(model, torch.zeros(4, 8), name="x")
    assert graph.parameter_bytes == profile(Diamond, torch.zeros(4, 8), name="x").parameter_bytes


def test_attention_is_one_operator_and_its_parameters_count() -> None:
    graph = profile(encoder, torch.zeros(4, 5, 16), name="x")
    attention = graph.operators[0]
    assert (attention.name, attention.kind) == ("layers.0.self_attn", "MultiheadAttention")
    assert attention.splittable
    assert attention.parameter_bytes == (16 * 64 + 64) * FLOAT
    assert graph.parameter_bytes == sum(p.nbytes for p in encoder().parameters())


def test_batch_norm_state_is_memory_and_no_operand() -> None:
    graph = profile(convolutions, torch.zeros(4, 3, 8, 8), name="x")
    conv, norm, relu = graph.operators
    assert [operand.producer for operand in norm.operands] == [0]
    assert norm.parameter_bytes == 2 * 8 * FLOAT
    state = 2 * 8 * FLOAT + 8  # running mean and variance, and the int64 count of batches
    assert norm.memory_bytes == 2 * conv.output_bytes + 2 * 8 * FLOAT + state
    assert relu.output_bytes == conv.output_bytes  # in place


def test_operators_that_mix_samples_are_not_splittable() -> None:
    graph = profile(Contrastive, torch.zeros(4, 5, 8), name="x")
    splittable = {operator.name: operator.splittable for operator in graph.operators}
    assert splittable == {
        "q": True,
        "k": True,
        "scaled_dot_product_attention": True,
        "mean": True,
        "matmul": False,
        "cross_entropy": False,
    }


def test_an_operator_that_ignores_the_batch_is_not_splittable() -> None:
    graph = profile(
        lambda: MODELS["bert"].build("tiny"), MODELS["bert"].example_batch(size="tiny"), name="x"
    )
    assert [o.name for o in graph.operators if not o.splittable] == ["embeddings.positions"]


def test_a_function_with_its_own_backward_passes_gradients_on() -> None:
    graph = profile(WithFunction, torch.zeros(4, 8), name="x")
    product = by_name(graph)["matmul"]
    assert product.operands == (Operand(0, 128, 128),)
    assert product.forward_flops == 2 * 4 * 8 * 8
    assert product.backward_flops == 2 * product.forward_flops
    assert product.parameter_gradient_bytes == 8 * 8 * FLOAT


def test_recomputed_parts_save_nothing_and_cost_their_forward_again() -> None:
    graph = profile(WithFunction, torch.zeros(4, 8), name="x")
    part = [operator for operator in graph.operators if operator.name.startswith("part")]
    assert sum(operator.saved_bytes for operator in part) == 0
    forward = sum(operator.forward_flops for operator in part)
    # Twice the forward for the backward pass, and the forward again but for its last layer.
    assert 2 * forward <= sum(operator.backward_flops for operator in part) <= 3 * forward


def test_batches_may_be_dicts_and_tuples_and_outputs_may_be_nested() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return {"sum": [self.fc(a) + b], "more": (self.fc(b), 3, None)}

    a, b = torch.zeros(4, 8), torch.zeros(4, 8)
    assert profile(Two, {"a": a, "b": b}, name="x") == profile(Two, (a, b), name="x")
    graph = profile(Two, (a, b), name="x")
    assert [operator.name for operator in graph.operators] == ["fc", "add", "fc#2"]


def test_a_tensor_that_several_read_has_one_number_for_all_of_them() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.query, self.key, self.both = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x)
            query, key = self.query(x), self.key(x.view(-1, 2, 8)).view(-1, 8)
            left, right = self.both(x).chunk(2, dim=1)
            gated = [part.relu() * part.sigmoid() for part in (left, right)]
            return query * key + torch.cat(gated, dim=1) + x

    operators = profile(Block, torch.zeros(4, 8), name="x").operators
    read = {op.name: [(o.producer, o.tensor) for o in op.operands] for op in operators}
    assert read["query"] == read["key"] == read["both"] == [(0, 1)], "a view is the same tensor"
    assert (0, 1) in read["add#2"]
    assert read["cat"] == [(6, 0), (9, 0)], "no other operator reads those"
    assert read["relu"] == read["sigmoid"] == [(3, 1)]
    assert read["relu#2"] == read["sigmoid#2"] == [(3, 2)], "another part, another tensor"


def test_the_users_module_is_left_alone() -> None:
    model = Diamond()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    profile(model, torch.zeros(4, 8), name="x")
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("name", ["bert", "resnet50", "dlrm"])
def test_two_profiles_are_the_same_bytes_and_survive_a_round_trip(name: str) -> None:
    module = MODELS[name]
    batch = module.example_batch(size="tiny")
    first, second = (profile(lambda: module.build("tiny"), batch, name=name) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert OpGraph.from_json(first.to_json()) == first


def test_a_model_of_a_third_of_a_terabyte_needs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = profile(dlrm.build, dlrm.example_batch(), name="dlrm")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert graph.parameter_bytes > 64 * 10**7 * 128 * FLOAT
    assert grown < 1e9


def test_a_function_alone_is_more_than_one_operator() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.zeros(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = linear(x, weight).relu()
            return x

    graph = profile(Functional, torch.zeros(4, 8), name="x")
    names = [operator.name for operator in graph.operators]
    assert names == ["linear", "relu", "linear#2", "relu#2"]
    assert graph.parameter_bytes == 2 * 8 * 8 * FLOAT


@pytest.mark.parametrize(
    ("says", "given", "causal"),
    [
        (False, {"is_causal": True}, True),
        (False, {}, False),
        (False, {"attn_mask": torch.ones(6, 6, dtype=torch.bool, device="meta")}, False),
        (
            True,
            {"attn_mask": torch.ones(6, 6, dtype=torch.bool, device="meta")},
            True,
        ),  # as in transformers
        (True, {}, False),
    ],
)
def test_causal_attention_is_a_kind_with_the_flops_of_the_square(
    says: bool, given: dict[str, object], causal: bool
) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.is_causal = says

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(*3 * [self.linear(x)], **given)

    attention = profile(Attending, torch.zeros(4, 2, 6, 8), name="x").operators[1]
    assert attention.name == "scaled_dot_product_attention"
    assert attention.kind == "causal_" * causal + attention.name
    assert attention.forward_flops == 2 * (2 * 4 * 2 * 6 * 6 * 8)
    assert [split.dimension for split in attention.splits] == ["columns", "attribute"]


class Norms(nn.Module):
    """An RMS norm as a module, and one as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(self.norm(self.first(x)), (8,))


def test_rms_norms_keep_what_a_fused_kernel_keeps() -> None:
    batch = torch.empty(3, 5, 6, dtype=torch.bfloat16)
    graph = profile(Norms().to(torch.bfloat16), batch, name="norms")
    saved = {operator.name: operator.saved_bytes for operator in graph.operators}
    rows = 3 * 5
    assert saved["norm"] == saved["rms_norm"] == rows * 8 * 2 + rows * 4


@pytest.mark.parametrize("as_module", [True, False])
def test_attention_keeps_what_a_fused_kernel_keeps(as_module: bool) -> None:
    """Not the matrix of all weights, which PyTorch makes on meta tensors."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.qkv = nn.Linear(64, 192)
            self.out = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if as_module:
                return self.out(self.attention(x, x, x, need_weights=False)[0])
            q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(mixed.transpose(1, 2).flatten(2))

    model, x = Attending(), torch.randn(2, 50, 64, requires_grad=True)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # alive: no number comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(x)
    real = sum(t.untyped_storage().nbytes() for data, t in kept.items() if data not in own)
    assert output.requires_grad
    traced = profile(model, x, name="attending")
    assert sum(operator.saved_bytes for operator in traced.operators) == real
    assert nn.functional.scaled_dot_product_attention is scaled_dot_product_attention


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "bf16")],
)
def test_the_format_of_a_model_is_that_of_most_parameters(
    dtype: torch.dtype, expected: str
) -> None:
    layers = nn.Linear(8, 64, dtype=dtype), nn.Linear(64, 64, dtype=dtype)
    graph = profile(nn.Sequential(*layers), torch.zeros(4, 8, dtype=dtype), name="layers")
    assert graph.number_format == expected
    assert OpGraph.from_json(graph.to_json()) == graph
