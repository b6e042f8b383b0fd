"""Layers that make queries, keys and values, or a gate and its operand, at once are divided."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import run_bare_ranks, values
from support.refusals import refused
from torch import nn
from torch.distributed import checkpoint
from torch.nn.functional import scaled_dot_product_attention, silu

from torch_topoopt.parallel import StrategyError, pipeline
from torch_topoopt.parallel.sharded.local_parts import LocalParts
from torch_topoopt.parallel.sharded.tensor import TensorStyles
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANKS, STEPS, RATE, SAMPLES, LENGTH, WIDTH, HEADS = 4, 3, 0.05, 8, 8, 32, 8
LAYOUTS = (
    Layout(tensor=2, data=2, micro_batch=4, sharding="parameters", state_shards=2),
    Layout(tensor=4, micro_batch=4, micro_batches=2),
    Layout(tensor=2, pipeline=2, micro_batch=4, micro_batches=2, recompute="selective"),
)


class Grouped(nn.Module):
    """Heads of queries that share keys and values, which are fewer; the layer has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head = HEADS, HEADS // 2, WIDTH // HEADS
        self.joint = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [self.num_heads * self.head, *(2 * [self.num_kv_heads * self.head])]
        q, k, v = (
            part.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in self.joint(x).split(sizes, dim=-1)
        )
        k, v = (one.repeat_interleave(2, dim=1) for one in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Interleaved(nn.Module):
    """Queries, keys and values of a head are next to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.joint(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        mixed = scaled_dot_product_attention(*made.chunk(3, dim=-1))
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.joint(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


class Masked(nn.Module):
    """nn.MultiheadAttention with a mask of each kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.causal, self.padded = (
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options) for _ in range(2)
        )
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples = x.shape[0]
        by_head = torch.arange(HEADS, dtype=x.dtype)[:, None, None] * self.later * -0.1
        hidden = torch.where(torch.arange(LENGTH) == 1, -9.0, 0.0).expand(samples, -1)
        causal = self.causal(x, x, x, need_weights=False, attn_mask=self.later, is_causal=True)
        padded = self.padded(
            *(x, x, x),
            need_weights=False,
            key_padding_mask=hidden,
            attn_mask=by_head.repeat(samples, 1, 1),
        )
        return causal[0] + padded[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = (Grouped, Interleaved, Gated, Masked, functools.partial(Masked, bias=False))
        self.parts = nn.ModuleList(kind() for kind in kinds)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x


def build() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), Block(), nn.LayerNorm(WIDTH))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    made = torch.randn(2, SAMPLES, LENGTH, WIDTH, generator=generator)
    return made[0], made[1]


def losses_alone(model: nn.Module, steps: range) -> Iterator[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in steps:
        inputs, target = batch(step)
        loss = nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def divided(layout: Layout) -> Any:
    return pipeline(build(), batch(0)[0], nn.functional.mse_loss, strategy=layout)


def losses_of(pipe: Any, steps: range) -> Iterator[float]:
    """Those of all copies together, on a rank of the last stage."""
    optimizer = torch.optim.SGD(pipe.parameters(), lr=RATE)
    for step in steps:
        share = [tensor.chunk(pipe.replicas)[pipe.replica] for tensor in batch(step)]
        optimizer.zero_grad()
        loss = pipe.step(*share)
        optimizer.step()
        total = torch.zeros(2)
        if loss is not None:
            total = torch.stack((loss, torch.ones(())))
        dist.all_reduce(total)
        yield float(total[0] / total[1])


def train(folder: str, rank: int, world: int) -> None:
    dist.init_process_group("gloo")
    expected = build()
    losses = list(losses_alone(expected, range(STEPS)))
    later = list(losses_alone(expected, range(STEPS, STEPS + 1)))
    for number, layout in enumerate(LAYOUTS):
        pipe = divided(layout)
        assert list(losses_of(pipe, range(STEPS))) == pytest.approx(losses, abs=1e-5), str(layout)
        saved = pipe.state_dict()
        again = build()
        assert list(saved) == list(again.state_dict())
        again.load_state_dict(saved)
        assert list(losses_alone(again, range(STEPS, STEPS + 1))) == pytest.approx(later, abs=1e-5)
        checkpoint.save(pipe.module.state_dict(), checkpoint_id=f"{folder}/{number}")
        other = divided(LAYOUTS[number - 1])
        shares = other.module.state_dict()
        checkpoint.load(shares, checkpoint_id=f"{folder}/{number}")
        other.module.load_state_dict(shares)
        for name, value in other.state_dict().items():
            assert torch.equal(value, saved[name]), name
        changed = {name: value + 1 for name, value in saved.items()}
        other.load_state_dict(changed)
        for name, value in other.state_dict().items():
            assert torch.equal(value, changed[name]), name
    dist.destroy_process_group()


def test_joint_layers_train_and_are_saved_as_in_one_process(tmp_path: Path) -> None:
    values(run_bare_ranks(RANKS, functools.partial(train, str(tmp_path))))


def styles(module: nn.Module, parts: int) -> TensorStyles:
    return TensorStyles(module, profile(module, batch(0)[0], name="model"), parts)


def test_each_section_has_its_own_parts() -> None:
    found = styles(build(), 2).sections()
    sizes = {name: one.sizes for name, one in found.items() if name.startswith("1.")}
    queries = 3 * (WIDTH,)
    assert sizes == {
        "1.parts.0.joint.weight": (WIDTH, WIDTH // 2, WIDTH // 2),
        "1.parts.2.joint.weight": 2 * (2 * WIDTH,),
        "1.parts.2.joint.bias": 2 * (2 * WIDTH,),
        **{
            f"1.parts.{part}.{kind}.in_proj_{name}": queries
            for kind in ("causal", "padded")
            for part, name in ((3, "weight"), (3, "bias"), (4, "weight"))
        },
    }


def test_heads_that_are_no_multiple_are_named() -> None:
    with refused(StrategyError, "tensor", 8, "1.parts.0.scaled_dot_product_attention", 4):
        styles(build(), 8)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_attention_to_more_than_the_positions_is_whole_on_every_rank(option: str) -> None:
    found = styles(nn.Sequential(nn.Linear(WIDTH, WIDTH), Masked(**{option: True})), 2)
    assert not found.sections()
    assert isinstance(dict(found.of_modules())["1.causal"], LocalParts)
