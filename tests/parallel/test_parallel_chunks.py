"""Chunks of models, one after the other, compute what the whole model does."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from library_models import library
from support.refusals import refused
from torch import nn

from torch_topoopt.models import gpt, llama, qwen3_moe
from torch_topoopt.parallel.layout_pipelines import cells_of_chunks
from torch_topoopt.parallel.sharded.blocks import model_cells
from torch_topoopt.parallel.sharded.chunks import ModelChunk, Sent, kept_parameters, shared_copy
from torch_topoopt.parallel.sharded.module_calls import ModelCalls
from torch_topoopt.parallel.sharded.schedules import check_schedule
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.layouts.cells import cells_of, passed_bytes, with_shared_tables

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS, WORDS = 4, 64
DECODER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": BLOCKS, "vocab_size": WORDS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER = {
    name: DECODER[name]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
T5 = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 4, "d_kv": 4, "vocab_size": WORDS}


class Conditioned(nn.Module):
    """A DiT: every block reads the sum of two embeddings, which no module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, 8)
        self.position = nn.Parameter(torch.linspace(-1, 1, 24).view(3, 8))
        self.time, self.kind = nn.Linear(1, 8), nn.Embedding(5, 8)
        self.blocks = nn.ModuleList(ConditionedBlock() for _ in range(BLOCKS))
        self.end = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, time: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        x = self.start(x) + self.position
        condition = self.time(time) + self.kind(kind)
        for block in self.blocks:
            x = block(x, condition)
        return self.end(x + condition[:, None])


class ConditionedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.mix = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.mix(x)) * self.scale(condition)[:, None]


def of_transformers(name: str, config: str, **options: Any) -> nn.Module:
    transformers = library("transformers")
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
    return model


def of_size(family: Any, **more: Any) -> nn.Module:
    size = replace(family.SIZES["tiny"], blocks=BLOCKS, **more)
    return gpt.GPT(size) if family is gpt else llama.Llama(size)


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(16).view(2, 8) * 7 % WORDS}


def masked() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return {**tokens(), "attention_mask": mask}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "llama": (functools.partial(of_size, llama), lambda: tokens()["input_ids"]),
    "tied gpt": (functools.partial(of_size, gpt, tied=True), lambda: tokens()["input_ids"]),
    "qwen3-moe": (functools.partial(of_size, qwen3_moe), lambda: tokens()["input_ids"]),
    "conditioned": (
        Conditioned,
        lambda: (torch.randn(2, 3, 4), torch.randn(2, 1), torch.tensor([1, 3])),
    ),
    "LlamaForCausalLM": (
        lambda: of_transformers("LlamaForCausalLM", "LlamaConfig", **DECODER),
        masked,
    ),
    "Qwen3MoeForCausalLM": (
        lambda: of_transformers(
            "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **DECODER,
            head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        ),
        tokens,
    ),
    "GPT2LMHeadModel": (
        lambda: of_transformers(
            "GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=BLOCKS, n_head=4,
            vocab_size=WORDS, n_positions=64, bos_token_id=0, eos_token_id=0,
        ),
        tokens,
    ),
    "ViTForImageClassification": (
        lambda: of_transformers(
            "ViTForImageClassification", "ViTConfig", **ENCODER, image_size=16, patch_size=4
        ),
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16)},
    ),
    "T5ForConditionalGeneration": (
        lambda: of_transformers("T5ForConditionalGeneration", "T5Config", **T5),
        lambda: {**tokens(), "decoder_input_ids": tokens()["input_ids"]},
    ),
}  # fmt: skip


def output_of(made: Any) -> torch.Tensor:
    return made if isinstance(made, torch.Tensor) else made.logits


def in_chunks(model: nn.Module, batch: Any, cells: tuple[int, ...]) -> torch.Tensor:
    """The output, by chunks of so many cells, which pass as many bytes as is planned; gradients
    come to the parameters of `model`."""
    op_graph = profile(model, batch, name="model")
    found = model_cells(model, op_graph)
    calls = ModelCalls.of(model, batch, [cell.paths[0] for cell in found if cell.block])
    bounds = calls.bounds(found, cells)
    planned = passed_bytes(with_shared_tables(op_graph), cells_of(op_graph))
    passed: Any = ()
    for number in range(len(cells)):
        bound = bounds[number], bounds[number + 1]
        chunk = ModelChunk(shared_copy(model), calls, *bound, None)  # type: ignore[arg-type]
        chunk.follow()
        chunk.batch = ((), batch) if isinstance(batch, dict) else ((batch,), {})
        if isinstance(batch, tuple):
            chunk.batch = batch, {}
        chunk.received_as = tuple(map(Sent.of, passed))
        kept = kept_parameters(model, calls, range(*bound))
        names = {name for name, _ in chunk.module.named_parameters(remove_duplicate=False)}
        assert names == kept
        passed = chunk(*passed)
        if number < len(cells) - 1:
            in_output = type(model).__name__ == "T5ForConditionalGeneration"
            sent = sum(tensor.nbytes for tensor in passed)
            # T5 also returns the result of its encoder; an OpGraph does not have the output.
            assert sent == planned[sum(cells[: number + 1]) - 1] or in_output
    return output_of(passed)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_compute_what_the_model_does(name: str) -> None:
    make, batch_of = MODELS[name]
    torch.manual_seed(3)
    model, batch = make().eval(), batch_of()
    args = batch if isinstance(batch, tuple) else (batch,)
    made = output_of(model(**batch) if isinstance(batch, dict) else model(*args))
    count = len(model_cells(model, profile(model, batch, name="model")))
    made.square().mean().backward()
    gradients = {k: None if p.grad is None else p.grad for k, p in model.named_parameters()}
    for cells in ((count // 2, count - count // 2), (1, count - 2, 1)):
        model.zero_grad()
        chunked = in_chunks(model, batch, cells)
        torch.testing.assert_close(chunked, made)
        chunked.square().mean().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[key], rtol=1e-4, atol=1e-6)


def test_a_tensor_that_all_blocks_read_passes_with_their_results() -> None:
    model, batch = Conditioned(), MODELS["conditioned"][1]()
    cells = model_cells(model, profile(model, batch, name="model"))
    calls = ModelCalls.of(model, batch, [cell.paths[0] for cell in cells if cell.block])
    bounds = calls.bounds(cells, (3, len(cells) - 3))
    made_by = [calls.calls[tensor.call] for tensor in calls.passed(bounds[1])]
    assert {(call.name, call.leaf) for call in made_by} == {
        ("add", False),
        (cells[2].paths[0], True),
    }


@pytest.mark.parametrize(
    ("layout", "tokens"),
    [
        (Layout(pipeline=2, micro_batches=4, interleave=2), ("interleave", 2, "1f1b")),
        (Layout(pipeline=2, micro_batches=5, schedule="zero-bubble"), ("micro_batches", 5, 2)),
        (
            Layout(
                data=2, pipeline=2, sharding="parameters", state_shards=2, schedule="zero-bubble"
            ),
            ("sharding", "parameters"),
        ),
        (Layout(pipeline=2, recompute="full", schedule="zero-bubble"), ("recompute", "full")),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(layout: Layout, tokens: tuple[object, ...]) -> None:
    with refused(StrategyError, *tokens):
        check_schedule(layout)


def test_chunks_have_the_cells_of_the_layout() -> None:
    op_graph = profile(of_size(llama), tokens()["input_ids"], name="llama")
    layout = Layout(pipeline=2, micro_batches=2)
    assert sum(cells_of_chunks(op_graph, layout)) == BLOCKS + 2
    assert cells_of_chunks(op_graph, replace(layout, cells=(2, 4))) == (2, 4)
    with refused(StrategyError, (3, 4), BLOCKS):
        cells_of_chunks(op_graph, replace(layout, cells=(3, 4)))
    with refused(StrategyError, BLOCKS, 8):
        cells_of_chunks(op_graph, Layout(pipeline=8))
