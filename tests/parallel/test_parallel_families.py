"""Encoders with decoders, and tables: they train under plans of layouts as in one process."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import library_models
import pytest
import torch
from planned_training import LIMIT_S, SAMPLES, Family, check
from torch import nn

from torch_topoopt.models import dlrm, gpt

if TYPE_CHECKING:
    from pathlib import Path


LENGTH, WORDS = 8, 64
CLICKS = dlrm.DLRMSize(2, 128, 2, 256, 4, 512, 64, 5, SAMPLES, "dot")


def words(name: str, step: int) -> tuple[Any, torch.Tensor]:
    """A batch, and a target for each position."""
    inputs = library_models.batch(name, SAMPLES, step)
    return inputs, inputs["decoder_input_ids"].roll(-1, 1)


def loss_of_words(output: Any, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), following.flatten())


class TableReader(gpt.GPT):
    """Its logits are products with the table of tokens, which no module makes."""

    def __init__(self) -> None:
        super().__init__(gpt.GPTSize(2, 128, 4, LENGTH, WORDS, SAMPLES))
        del self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.embedding(tokens)))
        return nn.functional.linear(x, self.embedding.tokens.weight)


def tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    made = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    return made[:, :-1], made[:, 1:]


def loss_of_tokens(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def clicks(step: int) -> tuple[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    dense = torch.randn(SAMPLES, CLICKS.dense_width, generator=generator)
    bags = torch.randint(0, CLICKS.rows, (SAMPLES, CLICKS.tables, CLICKS.bag), generator=generator)
    return (dense, bags), (dense[:, :1] > 0).float()


FAMILIES = {
    "whisper": Family(
        functools.partial(library_models.build, "whisper"),
        functools.partial(words, "whisper"),
        loss_of_words,
    ),
    "dlrm": Family(
        functools.partial(dlrm.DLRM, CLICKS),
        clicks,
        nn.functional.binary_cross_entropy_with_logits,
    ),
    "table reader": Family(TableReader, tokens, loss_of_tokens),
}
PLANS = {
    "whisper": [
        "micro_batch=1,sharding=parameters",
        "tensor=2,micro_batch=2,recompute=full",
        "pipeline=4,micro_batch=2,schedule=gpipe",
    ],
    "dlrm": ["micro_batch=1,sharding=parameters", "tensor=2,micro_batch=2"],
    "table reader": ["tensor=2,micro_batch=2"],
}
# 1 to 4 % more than planned: tensor groups gather the encoder's result, which no loss reads, and a
# stage with both uses of the shared table gathers it twice.
OTHER_BYTES = {
    *("tensor=2,micro_batch=2,recompute=full", "tensor=4,micro_batch=4"),
    *("tensor=2,micro_batch=2,sharding=parameters", "tensor=2,pipeline=2,micro_batch=2"),
    "pipeline=2,micro_batch=1,sharding=parameters",
}
MORE_PLANS = {
    "whisper": [
        "micro_batch=2",
        "micro_batch=1,sharding=optimizer",
        "micro_batch=1,sharding=gradients",
        "micro_batch=2,sharding=parameters,reshard=false,recompute=full",
        "micro_batch=1,sharding=parameters,state_shards=2,recompute=selective",
        "tensor=4,micro_batch=4",
        "tensor=2,micro_batch=2,sharding=parameters",
        "pipeline=2,micro_batch=1,sharding=parameters",
        "pipeline=2,micro_batch=1,schedule=zero-bubble,sharding=optimizer",
        "pipeline=2,micro_batch=1,interleave=2",
        "tensor=2,pipeline=2,micro_batch=2",
    ],
    "dlrm": [
        "micro_batch=2",
        "micro_batch=1,sharding=optimizer",
        "micro_batch=1,sharding=gradients",
        "micro_batch=1,sharding=parameters,reshard=false",
        "micro_batch=1,sharding=parameters,state_shards=2",
        "micro_batch=2,sharding=optimizer,state_shards=2",
        "tensor=4,micro_batch=8",
        "tensor=2,micro_batch=2,sharding=parameters",
    ],
}


def check_family(name: str, texts: list[str], folder: Path) -> None:
    other = OTHER_BYTES if name == "whisper" else ()
    check(FAMILIES[name], texts, folder, other_bytes=other)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_family_trains_as_planned(name: str, tmp_path: Path) -> None:
    check_family(name, PLANS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("name", MORE_PLANS)
def test_a_family_trains_under_more_plans(name: str, tmp_path: Path) -> None:
    check_family(name, MORE_PLANS[name], tmp_path)


@pytest.mark.slow
def test_a_run_in_another_precision_sends_the_planned_bytes(tmp_path: Path) -> None:
    """The last chunk has results of the encoder in 16 bits, and zeros for absent modules."""
    texts = ["pipeline=4,micro_batch=2", "pipeline=2,micro_batch=1,interleave=2"]
    check(FAMILIES["whisper"], texts, tmp_path, precision="bf16")
