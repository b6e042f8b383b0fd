"""Models whose layouts have a pipeline train as they do in one process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from library_models import library
from planned_training import STEPS
from support.backend.ranks import make_plan, run_ranks, values
from torch import nn

from torch_topoopt.models import gpt, llama, qwen3_moe
from torch_topoopt.parallel import pipeline
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

RATE, SAMPLES, LENGTH, WORDS = 1e-2, 8, 8, 64
TWO = Layout(pipeline=2, micro_batch=2, micro_batches=4)
LAYOUTS = {
    "gpipe": replace(TWO, schedule="gpipe"),
    "uneven": replace(TWO, cells=(2, 4), recompute="full", recompute_blocks=(1, 2)),
    "interleaved": replace(TWO, interleave=2, schedule="interleaved"),
    "zero-bubble, interleaved": replace(TWO, interleave=2, schedule="zero-bubble"),
    "few micro-batches": replace(TWO, micro_batch=8, micro_batches=1),
}

SHARED = replace(TWO, data=2, micro_batch=1, state_shards=2)
NESTED = {
    "ZeRO-1, zero-bubble": replace(SHARED, sharding="optimizer", schedule="zero-bubble"),
    "ZeRO-2": replace(SHARED, sharding="gradients"),
    "FSDP, kept": replace(SHARED, sharding="parameters", reshard=False),
    "FSDP, interleaved": replace(
        SHARED, sharding="parameters", interleave=2, schedule="interleaved", recompute="selective"
    ),
    "FSDP, some blocks": replace(
        SHARED,
        sharding="parameters",
        interleave=2,
        schedule="interleaved",
        recompute="full",
        recompute_blocks=(1, 0),
        reshard_blocks=(1, 2),
    ),
    "tensor": Layout(tensor=2, pipeline=2, micro_batch=2, micro_batches=4),
}


class Tables(nn.Module):
    """A module of the first chunk, whose table the last one reads by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(tokens))


class ReadTable(nn.Module):
    """Residual blocks, and logits from the table of the first module."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tables(tokens)
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.linear(x, self.tables.words.weight)


def build(name: str) -> nn.Module:
    torch.manual_seed(5)
    if name == "read table":
        return ReadTable()
    if name == "transformers":
        transformers = library("transformers")
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=16, intermediate_size=32, num_hidden_layers=4, vocab_size=WORDS,
                num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
            )
        )  # fmt: skip
    if name == "qwen3-moe":  # with places for all tokens
        return llama.Llama(replace(qwen3_moe.SIZES["tiny"], blocks=4, capacity=4.0))
    if name == "gpt":
        return gpt.GPT(replace(gpt.SIZES["tiny"], blocks=4))
    return llama.Llama(replace(llama.SIZES["tiny"], blocks=4, tied=name == "tied llama"))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def alone(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        tokens, following = batch(step)
        loss = loss_of(model(tokens), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def train(name: str, layout: Layout) -> tuple[list[float], dict[str, Any]]:
    """The losses of this rank's copy, if it has the last stage, and the whole state."""
    pipe = pipeline(build(name), batch(0)[0], loss_of, strategy=layout)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        share = (tensor.chunk(pipe.replicas)[pipe.replica] for tensor in batch(step))
        optimizer.zero_grad()
        loss = pipe.step(*share)
        optimizer.step()
        if loss is not None:
            losses.append(loss.item())
    return losses, {key: value.numpy().copy() for key, value in pipe.state_dict().items()}


TWO_RANKS = [
    *(("llama", case, layout) for case, layout in LAYOUTS.items()),
    ("gpt", "1f1b", TWO),
    ("tied llama", "1f1b", TWO),
    ("read table", "1f1b", TWO),
]
FOUR_RANKS = [
    *(("llama", case, layout) for case, layout in NESTED.items()),
    ("tied llama", "FSDP", replace(SHARED, sharding="parameters")),
    ("gpt", "context", Layout(context=2, pipeline=2, micro_batch=2, micro_batches=4)),
    ("qwen3-moe", "experts", replace(SHARED, sharding="parameters", expert=2)),
]


def train_all(rank: int, world: int) -> list[Any]:
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    cases = TWO_RANKS if world == 2 else FOUR_RANKS
    done = [train(name, layout) for name, _, layout in cases]
    dist.destroy_process_group()
    return done


def check(of_ranks: list[Any], name: str, case: str) -> None:
    losses, state = alone(name)
    last = [its for its, _ in of_ranks if its]
    for step in range(STEPS):
        mean = sum(its[step] for its in last) / len(last)
        assert mean == pytest.approx(losses[step], abs=1e-5), (name, case, step)
    for _, whole in of_ranks:
        assert list(whole) == list(state)
        for key, value in state.items():
            if key.endswith("key.bias"):
                continue  # softmax cancels it: AdamW follows the noise of a gradient that is zero
            torch.testing.assert_close(torch.from_numpy(whole[key]), value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_pipeline_trains_as_its_model_does_alone(ranks: int, tmp_path: Path) -> None:
    done = values(run_ranks(make_plan(ranks, ranks // 2), tmp_path, train_all))
    cases = TWO_RANKS if ranks == 2 else FOUR_RANKS
    for (name, case, _), of_ranks in zip(cases, zip(*done, strict=True), strict=True):
        check(list(of_ranks), name, case)


def mask() -> torch.Tensor:
    return torch.ones(SAMPLES, LENGTH, dtype=torch.long).triu(-5)


def loss_of_logits(output: Any, following: torch.Tensor) -> torch.Tensor:
    return loss_of(output.logits, following)


def use(rank: int, world: int) -> list[Any]:
    """A transformers model: its loss, the norm of its gradients, its results. Then the loss of
    compiled blocks in 16 bits."""
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    found = []
    for layout in (TWO, replace(TWO, micro_batches=8, micro_batch=1, schedule="zero-bubble")):
        tokens, following = batch(0)
        named = {"input_ids": tokens, "attention_mask": mask()}
        pipe = pipeline(build("transformers"), named, loss_of_logits, strategy=layout)
        state = {name: value.clone() for name, value in pipe.state_dict().items()}
        pipe.load_state_dict({name: value * 2 for name, value in state.items()})
        pipe.load_state_dict(state)
        loss = pipe.step(named, following)
        pipe.step(named, following)  # adds to the gradients
        norm = pipe.clip_grad_norm_(0.1).item()
        output = pipe.evaluate({name: tensor[:3] for name, tensor in named.items()})
        assert (output is None) == (pipe.stage == 0)
        logits = None if output is None else output.logits.numpy()
        found.append((None if loss is None else loss.item(), norm, logits))
    model = build("llama")
    for block in model.blocks:
        block.compile(backend="eager")
    pipe = pipeline(model, batch(0)[0], loss_of, strategy=TWO, precision=torch.bfloat16)
    loss = pipe.step(*batch(0))
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in pipe.parameters())
    found.append(None if loss is None else (loss.item(), str(loss.dtype)))
    dist.destroy_process_group()
    return found


def test_a_transformers_model_is_used_as_in_one_process(tmp_path: Path) -> None:
    library("transformers")
    done = values(run_ranks(make_plan(2, 1), tmp_path, use))
    (_, (in_16_bits, dtype)) = [of_rank.pop() for of_rank in done]
    expected_loss = loss_of(build("llama")(batch(0)[0]), batch(0)[1]).item()
    assert (in_16_bits, dtype) == (pytest.approx(expected_loss, rel=1e-2), "torch.float32")
    model = build("transformers")
    tokens, following = batch(0)
    loss = loss_of_logits(model(input_ids=tokens, attention_mask=mask()), following)
    loss.backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    logits = model(input_ids=tokens[:3], attention_mask=mask()[:3]).logits
    for first, last in zip(*done, strict=True):
        assert last[0] == pytest.approx(loss.item(), abs=1e-6)
        for _, norm, _ in (first, last):
            assert norm == pytest.approx(2 * expected, rel=1e-5)
        torch.testing.assert_close(torch.from_numpy(last[2]), logits)
