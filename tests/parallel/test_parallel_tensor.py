"""Models whose tensors are divided train as they do alone."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from library_models import library
from support.backend.ranks import make_plan, run_ranks, values
from torch import nn

from torch_topoopt.models import bert, gpt, llama, mixtral
from torch_topoopt.parallel import pipeline
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS, STEPS, RATE, SAMPLES, LENGTH, WORDS = 4, 4, 1e-2, 8, 8, 50
DECODER = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "use_cache": False,
}


def transformers_model(name: str, **options: Any) -> nn.Module:
    transformers = library("transformers")
    config = getattr(transformers, f"{name}Config")(**DECODER, **options)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def llama_with(**options: Any) -> nn.Module:
    return llama.Llama(replace(llama.SIZES["tiny"], kv_heads=4, **options))


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


# All tokens have a place at any expert: the parts of a batch drop other tokens than the whole does.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama, tied": lambda: llama_with(tied=True),
    "llama, biases": lambda: llama_with(biases=True, norms=True),
    "gpt": lambda: gpt.build("tiny"),
    "bert": lambda: without_dropout(bert.BERT(replace(bert.SIZES["tiny"], sequence=LENGTH))),
    "mixtral": lambda: llama.Llama(replace(mixtral.SIZES["tiny"], kv_heads=4, capacity=4.0)),
    "transformers Llama, tied": lambda: transformers_model("Llama", tie_word_embeddings=True),
    "transformers Qwen3": lambda: transformers_model("Qwen3", head_dim=4),
    "transformers Mixtral": lambda: transformers_model("Mixtral", num_local_experts=4),
    "transformers Qwen3-MoE": lambda: transformers_model(
        "Qwen3Moe", num_experts=4, moe_intermediate_size=8, num_experts_per_tok=2, head_dim=4
    ),
}
FSDP = {"sharding": "parameters", "state_shards": 2}
TENSOR_2 = Layout(tensor=2, data=2, micro_batch=4)
TENSOR_4 = Layout(tensor=4, micro_batch=4, micro_batches=2)
TENSOR_2_FSDP = Layout(tensor=2, data=2, micro_batch=2, micro_batches=2, **FSDP)
STAGES = Layout(pipeline=2, data=2, micro_batches=4)
CASES = {
    "tensors": [
        ("llama, tied", TENSOR_4),
        ("llama, biases", replace(TENSOR_2, recompute="full")),
        ("gpt", TENSOR_2),
        ("bert", TENSOR_2_FSDP),
        ("mixtral", TENSOR_2),
    ],
    "tensors, transformers": [
        ("transformers Llama, tied", TENSOR_2),
        ("transformers Qwen3", TENSOR_4),
        ("transformers Qwen3-MoE", TENSOR_2_FSDP),
    ],
    "experts": [
        ("mixtral", Layout(data=4, expert=4, micro_batch=2)),
        ("mixtral", Layout(data=4, expert=2, micro_batches=2, **{**FSDP, "state_shards": 4})),
        ("mixtral", Layout(tensor=2, data=2, expert=2, micro_batch=4, recompute="full")),
    ],
    "experts, transformers": [
        ("transformers Qwen3-MoE", Layout(data=4, expert=2, micro_batch=2)),
        ("transformers Mixtral", Layout(tensor=2, data=2, expert=4, micro_batch=4)),
    ],
    "context": [
        ("llama, tied", Layout(context=4, micro_batch=4, micro_batches=2)),
        ("gpt", Layout(context=2, data=2, micro_batch=4)),
        ("llama, biases", Layout(context=2, tensor=2, micro_batch=8)),
        ("llama, tied", Layout(context=2, data=2, micro_batch=4, recompute="full")),
    ],
    "context, transformers": [
        ("transformers Qwen3", Layout(context=2, data=2, micro_batch=4, **FSDP)),
        ("transformers Mixtral", Layout(context=2, data=2, expert=2, micro_batch=4)),
    ],
    "stages": [
        ("llama, tied", Layout(pipeline=2, tensor=2, micro_batch=2, micro_batches=4)),
        ("llama, biases", Layout(pipeline=2, context=2, micro_batch=2, micro_batches=4)),
        ("mixtral", replace(STAGES, expert=2)),
        ("gpt", Layout(pipeline=2, tensor=2, micro_batches=8, recompute="selective")),
    ],
}


def build(name: str) -> nn.Module:
    torch.manual_seed(5)
    return MODELS[name]()


def batch(name: str, step: int) -> tuple[Any, torch.Tensor]:
    """The model's input, and the following tokens."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    inputs = tokens[:, :-1]
    return (inputs, inputs % 2) if name == "bert" else inputs, tokens[:, 1:]


def loss_of(output: Any, following: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def optimizer_of(name: str, parameters: Any) -> torch.optim.Optimizer:
    # AdamW would magnify the rounding of gradients that are zero, such as those of the keys' biases
    kind = torch.optim.SGD if name in ("gpt", "bert", "llama, biases") else torch.optim.AdamW
    return kind(parameters, lr=RATE)


def alone(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build(name)
    optimizer = optimizer_of(name, model.parameters())
    losses = []
    for step in range(STEPS):
        inputs, following = batch(name, step)
        loss = loss_of(model(*inputs) if isinstance(inputs, tuple) else model(inputs), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def train(name: str, layout: Layout) -> tuple[list[float], dict[str, Any]]:
    """The losses of this rank's copy, if it has the last stage, and the whole state."""
    pipe = pipeline(build(name), batch(name, 0)[0], loss_of, strategy=layout)
    optimizer = optimizer_of(name, pipe.parameters())
    losses = []
    for step in range(STEPS):
        inputs, following = batch(name, step)
        whole = inputs if isinstance(inputs, tuple) else (inputs,)
        share = [tensor.chunk(pipe.replicas)[pipe.replica] for tensor in (*whole, following)]
        optimizer.zero_grad()
        given = tuple(share[:-1]) if len(share) > 2 else share[0]
        loss = pipe.step(given, share[-1])
        optimizer.step()
        if loss is not None:
            losses.append(loss.item())
    return losses, {key: value.numpy().copy() for key, value in pipe.state_dict().items()}


def train_all(cases: str, rank: int, world: int) -> list[Any]:
    dist.init_process_group("topoopt")
    done = [train(name, layout) for name, layout in CASES[cases]]
    dist.destroy_process_group()
    return done


@pytest.mark.parametrize("cases", list(CASES))
def test_a_divided_model_trains_as_it_does_alone(cases: str, tmp_path: Path) -> None:
    if "transformers" in cases:
        library("transformers")
    function = functools.partial(train_all, cases)
    done = values(run_ranks(make_plan(RANKS, 2), tmp_path, function, limit_s=300))
    for (name, layout), of_ranks in zip(CASES[cases], zip(*done, strict=True), strict=True):
        losses, state = alone(name)
        of_copies = [its for its, _ in of_ranks if its]
        for step in range(STEPS):
            mean = sum(its[step] for its in of_copies) / len(of_copies)
            assert mean == pytest.approx(losses[step], abs=1e-5), (name, str(layout), step)
        for _, whole in of_ranks:
            assert list(whole) == list(state)
            for key, value in state.items():
                torch.testing.assert_close(torch.from_numpy(whole[key]), value, rtol=0, atol=1e-4)
