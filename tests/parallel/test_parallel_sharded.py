"""Models under layouts train as they do in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch import nn

from torch_topoopt.models import gpt, llama
from torch_topoopt.parallel import pipeline
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

RANKS, STEPS, RATE, SAMPLES, LENGTH, WORDS = 4, 4, 1e-2, 8, 8, 64
FSDP = {"sharding": "parameters", "state_shards": 4}
LAYOUTS = {
    "copies": Layout(data=4, micro_batch=2),
    "copies, micro-batches": Layout(data=4, micro_batch=1, micro_batches=2),
    "ZeRO-1": Layout(data=4, sharding="optimizer", state_shards=4, micro_batches=2),
    "ZeRO-2": Layout(data=4, sharding="gradients", state_shards=4, micro_batches=2),
    "ZeRO-3": Layout(data=4, micro_batches=2, **FSDP),
    "ZeRO-3 kept": Layout(data=4, micro_batches=2, reshard=False, **FSDP),
    "HSDP": Layout(data=4, micro_batches=2, sharding="parameters", state_shards=2),
    "HSDP of ZeRO-1": Layout(data=4, micro_batches=2, sharding="optimizer", state_shards=2),
    "offloaded": Layout(data=4, micro_batches=2, offload="host", **FSDP),
    "offloaded HSDP": Layout(
        data=4, micro_batches=2, sharding="parameters", state_shards=2, offload="host"
    ),
    "offloaded copies": Layout(data=4, micro_batches=2, sharding="parameters", offload="host"),
    "full": Layout(data=4, micro_batch=2, recompute="full", **FSDP),
    "selective": Layout(data=4, micro_batch=2, recompute="selective", **FSDP),
    "some blocks": Layout(
        data=4,
        micro_batches=2,
        recompute="full",
        recompute_blocks=(1,),
        reshard_blocks=(1,),
        **FSDP,
    ),
}
MODELS = {"llama": llama, "gpt": gpt}
CASES = [("llama", case) for case in LAYOUTS] + [("gpt", "ZeRO-3"), ("gpt", "copies")]
# AdamW would magnify the rounding of gradients that are zero, such as those of the keys' biases.
OPTIMIZERS = {"llama": torch.optim.AdamW, "gpt": torch.optim.SGD}


def build(name: str) -> nn.Module:
    torch.manual_seed(5)
    return MODELS[name].build("tiny")


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def alone(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build(name)
    optimizer = OPTIMIZERS[name](model.parameters(), lr=RATE)
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
    """The losses of this rank's copy, and the whole state."""
    pipe = pipeline(build(name), batch(0)[0], loss_of, strategy=layout)
    optimizer = OPTIMIZERS[name](pipe.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        share = (tensor.chunk(pipe.replicas)[pipe.replica] for tensor in batch(step))
        optimizer.zero_grad()
        loss = pipe.step(*share)
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: value.numpy().copy() for key, value in pipe.state_dict().items()}


def train_all(rank: int, world: int) -> list[Any]:
    dist.init_process_group("topoopt")
    done = [train(name, LAYOUTS[case]) for name, case in CASES]
    dist.destroy_process_group()
    return done


def test_a_model_with_shared_state_trains_as_it_does_alone(tmp_path: Path) -> None:
    done = values(run_ranks(make_plan(RANKS, 2), tmp_path, train_all))
    for (name, case), of_ranks in zip(CASES, zip(*done, strict=True), strict=True):
        losses, state = alone(name)
        for step in range(STEPS):
            mean = sum(its[step] for its, _ in of_ranks) / len(of_ranks)
            assert mean == pytest.approx(losses[step], abs=1e-5), (name, case, step)
        for _, whole in of_ranks:
            assert list(whole) == list(state)
            for key, value in state.items():
                torch.testing.assert_close(torch.from_numpy(whole[key]), value, rtol=0, atol=1e-4)
