"""Decoders and models of images train under plans of layouts as in one process.

Each has ten plans; a layout that a family cannot run is refused, with the module's name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import library_models
import pytest
import torch
import whole_views
from planned_training import SAMPLES, SERVERS, Family, check
from torch import nn

from torch_topoopt.models import gpt, llama
from torch_topoopt.models.qwen3_moe import Qwen3MoESize
from torch_topoopt.parallel.executable import ExecutableLayouts
from torch_topoopt.plan import Cluster
from torch_topoopt.plan.layout import layout_from
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.profiling import on_meta, profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS, LENGTH = 64, 8
SIZES = (4, 64, 128, 4, 4, WORDS, LENGTH, SAMPLES)
DECODER = {
    **{"num_hidden_layers": 4, "num_key_value_heads": 4, "vocab_size": WORDS},
    "use_cache": False,
}
GENERAL = [
    "micro_batch=1",
    "micro_batch=1,sharding=optimizer",
    "micro_batch=1,sharding=gradients",
    "micro_batch=2,sharding=parameters,state_shards=2",
    "micro_batch=2,sharding=parameters,recompute=full",
    "micro_batch=1,sharding=parameters,reshard=false,recompute=selective",
    "pipeline=2,micro_batch=1",
    "pipeline=2,micro_batch=1,sharding=parameters,recompute=full",
    "pipeline=2,micro_batch=1,schedule=zero-bubble,sharding=optimizer",
]
DEEP = ["pipeline=4,micro_batch=2,schedule=gpipe", "pipeline=2,micro_batch=1,interleave=2"]
TENSORS = [
    "tensor=4,micro_batch=4",
    "tensor=2,micro_batch=2,sharding=parameters",
    "tensor=2,pipeline=2,micro_batch=2,recompute=selective",
]
POSITIONS = [
    "context=4,micro_batch=4",
    "context=2,micro_batch=2,sharding=parameters,recompute=full",
    "context=2,tensor=2,micro_batch=8",
]
EXPERTS = [
    "expert=4,micro_batch=2,recompute=selective",
    "expert=2,micro_batch=2,sharding=parameters",
    "tensor=2,expert=4,micro_batch=4",
]


def tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    made = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    return made[:, :-1], made[:, 1:]


def loss_of_words(output: Any, following: torch.Tensor) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def batch_of_library(name: str, step: int) -> tuple[Any, torch.Tensor]:
    """Of a model of library_models, which has no target."""
    return library_models.batch(name, SAMPLES, step), torch.zeros(SAMPLES)


def loss_of_library(output: Any, _: torch.Tensor) -> torch.Tensor:
    return library_models.loss(output)


def encoder() -> nn.Module:
    """Without dropout, which is random."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Linear(64, 64), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    )


def numbers(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    made = torch.randn(2, SAMPLES, LENGTH, 64, generator=generator)
    return made[0], made[1]


def of_words(build: Callable[..., nn.Module], *args: Any, **options: Any) -> Family:
    return Family(functools.partial(build, *args, **options), tokens, loss_of_words)


def of_library(name: str) -> Family:
    build = functools.partial(library_models.build, name)
    return Family(build, functools.partial(batch_of_library, name), loss_of_library)


FAMILIES = {
    "llama": of_words(llama.Llama, llama.LlamaSize(*SIZES, dtype=torch.float32)),
    "llama of transformers": of_words(library_models.decoder, "Llama", **DECODER),
    "qwen3-moe": of_words(llama.Llama, Qwen3MoESize(*SIZES, experts=4, top=4, dtype=torch.float32)),
    "qwen3-moe of transformers": of_words(
        *(library_models.decoder, "Qwen3Moe"),
        **{**DECODER, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt": of_words(gpt.GPT, gpt.GPTSize(4, 128, 4, LENGTH, WORDS, SAMPLES)),
    "gpt2 of transformers": of_words(library_models.gpt2, WORDS),
    "phi-3 of transformers": of_words(
        *(library_models.decoder, "Phi3"),
        **{**DECODER, "num_attention_heads": 8, "pad_token_id": 0, "eos_token_id": 1},
    ),
    **{name: of_words(build) for name, build in whole_views.DECODERS.items()},
    "encoder": Family(encoder, numbers, nn.functional.mse_loss),
    **{name: of_library(name) for name in ("vit", "vit of timm", "vit of torchvision")},
    "vit of timm without a class": of_library("vit of timm without a class"),
    **{name: of_library(name) for name in ("dit", "unet")},
}
# whose positions cannot be divided: an odd number of patches
UNDIVIDED = ("vit", "vit of timm", "vit of torchvision")
# with joint projections of queries, keys and values
JOINT = (
    *("gpt2 of transformers", "phi-3 of transformers", "encoder", "vit of timm without a class"),
    *("nanogpt", "nanogpt with a softmax"),
)
PLANS = {
    "llama": [*GENERAL, *DEEP, *TENSORS, *POSITIONS],
    "llama of transformers": [*GENERAL, *DEEP, *TENSORS, *POSITIONS],
    "qwen3-moe": [*GENERAL[3:], *TENSORS, *EXPERTS],
    "qwen3-moe of transformers": [*GENERAL[3:], *TENSORS, *EXPERTS],
    "gpt": [*GENERAL, *DEEP, *TENSORS, *POSITIONS],
    **{name: [*GENERAL, "micro_batch=2,recompute=full"] for name in UNDIVIDED},
    **{name: [*GENERAL[2:], *TENSORS] for name in JOINT},
    "dit": [*GENERAL, *TENSORS],
    "unet": [*GENERAL, *DEEP],
}


# The router decides how many tokens each expert gets; plans have the mean.
OTHER_BYTES = {"qwen3-moe of transformers": EXPERTS}


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("llama of transformers", ["tensor=2,pipeline=2,micro_batch=2,recompute=selective"]),
        ("vit of timm", ["micro_batch=2,sharding=parameters,recompute=full"]),
        ("vit of timm without a class", [TENSORS[1]]),
        ("gpt2 of transformers", [TENSORS[0]]),
        ("phi-3 of transformers", [TENSORS[1]]),
        ("encoder", [TENSORS[2]]),
        ("nanogpt", [TENSORS[1]]),
        ("nanogpt with a softmax", [TENSORS[2]]),
        ("nanogpt of five dimensions", [TENSORS[0]]),
        ("nanogpt with three layers", ["context=2,tensor=2,micro_batch=8"]),
        ("qwen3-moe", TENSORS[:2]),  # the group sums the gradients of experts
        ("gpt", ["tensor=2,pipeline=2,micro_batch=2", TENSORS[2]]),  # tables of positions
    ],
)
def test_a_family_trains_as_planned(name: str, texts: list[str], tmp_path: Path) -> None:
    check(FAMILIES[name], texts, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANS)
def test_a_family_trains_as_planned_in_ten_ways(name: str, tmp_path: Path) -> None:
    for number, text in enumerate(PLANS[name]):
        (tmp_path / str(number)).mkdir()
        check(FAMILIES[name], [text], tmp_path / str(number), other_bytes=OTHER_BYTES.get(name, ()))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("llama", "expert=4", ["expert: 4", "no experts"]),
        ("gpt", "pipeline=4,interleave=2", ["pipeline: 4", "4 blocks", "8 chunks"]),
        ("vit", "tensor=2", ["tensor: 2", "'vit.layers.0.layernorm_before'", "17 positions"]),
        ("vit of timm", "context=2", ["context: 2", "17 positions"]),
        ("dit", "context=2", ["context: 2", "'pos_embed.proj'"]),
        ("unet", "context=2", ["context: 2", "attn2", "has 256", "has 64"]),
        ("unet", "tensor=2", ["tensor: 2", "attn2.to_k", "5 positions"]),
        ("nanogpt with biases", "tensor=2", ["tensor: 2", "attn.scaled_dot_product_attention"]),
    ],
)
def test_a_plan_refuses_what_a_family_cannot_run(name: str, text: str, named: list[str]) -> None:
    family = FAMILIES[name]
    model = on_meta(family.model())
    graph = profile(model, family.batch(0)[0], name=name)
    options = PlanningOptions(
        strategy_space="layouts",
        layout=layout_from(text, SERVERS, SAMPLES),
        why_not_layout=ExecutableLayouts(model, graph).why_not,
    )
    cluster = Cluster(SERVERS, 3, 10.0, accelerator="cpu")
    with pytest.raises(ValueError, match="layout: ") as error:
        LayoutPlanning(graph, cluster, options).plan()
    assert all(word in str(error.value) for word in named), str(error.value)
