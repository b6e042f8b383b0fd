"""A script of one process works under layouts: clipping, accumulation, checkpoints, compilation."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks, values
from support.refusals import named
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._python_dispatch import TorchDispatchMode

from torch_topoopt.models import llama
from torch_topoopt.parallel import ShardedModel, StrategyError, parallelize, pipeline
from torch_topoopt.parallel.sharded.recompute import recompute
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RANKS, STEPS, RATE, SAMPLES, LENGTH, WORDS, NORM = 4, 3, 1e-2, 8, 8, 64, 0.1
COPIES = Layout(data=4, micro_batch=2)
FSDP = Layout(data=4, micro_batch=2, sharding="parameters", state_shards=4)
HSDP = Layout(data=4, micro_batch=2, sharding="parameters", state_shards=2)
OFFLOADED = replace(FSDP, offload="host")
TENSOR = Layout(tensor=2, data=2, micro_batch=4, sharding="parameters", state_shards=2)
STAGES = Layout(data=2, pipeline=2, micro_batches=4, sharding="parameters", state_shards=2)
CHUNKS = replace(STAGES, interleave=2, schedule="interleaved", cells=(1, 1, 1, 1))
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def build() -> nn.Module:
    torch.manual_seed(5)
    return llama.build("tiny")


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def share_of(model: ShardedModel, step: int) -> list[torch.Tensor]:
    return [tensor.chunk(model.replicas)[model.replica] for tensor in batch(step)]


def divided(layout: Layout) -> tuple[Any, torch.optim.Optimizer]:
    model = parallelize(build(), batch(0)[0], strategy=layout)
    return model, torch.optim.AdamW(model.parameters(), lr=RATE)


def train(model: Any, optimizer: torch.optim.Optimizer, first: int, steps: int) -> list[float]:
    """The norms of the gradients, which are clipped."""
    norms = []
    for step in range(first, first + steps):
        tokens, following = share_of(model, step)
        optimizer.zero_grad()
        loss_of(model(tokens), following).backward()
        norms.append(model.clip_grad_norm_(NORM).item())
        optimizer.step()
    return norms


def clip_and_accumulate(rank: int, world: int) -> list[Any]:
    dist.init_process_group("gloo")
    done = []
    for layout in (COPIES, FSDP, HSDP, OFFLOADED, TENSOR):
        model, optimizer = divided(layout)
        norms = train(model, optimizer, 0, STEPS)
        tokens, following = share_of(model, 0)
        optimizer.zero_grad()
        loss_of(model(tokens), following).backward()
        ours = model.clip_grad_norm_(1e9).item()
        if layout.tensor == 1:
            theirs: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            assert theirs.full_tensor().item() == pytest.approx(ours, rel=1e-5)
        with model.no_sync():
            loss_of(model(tokens), following).backward()
        loss_of(model(tokens), following).backward()
        assert model.clip_grad_norm_(1e9).item() == pytest.approx(3 * ours, rel=1e-5)
        done.append(norms)
    dist.destroy_process_group()
    return done


def test_gradients_are_clipped_and_added_up_as_in_one_process() -> None:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    norms = []
    for step in range(STEPS):
        tokens, following = batch(step)
        optimizer.zero_grad()
        loss_of(model(tokens), following).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), NORM).item())
        optimizer.step()
    for of_rank in values(run_bare_ranks(RANKS, clip_and_accumulate)):
        for of_layout in of_rank:
            assert of_layout == pytest.approx(norms, rel=1e-5)


def offloaded_alone(rank: int, world: int) -> list[tuple[bool, bool]]:
    """By layout: whether FSDP keeps shares on the host, and whether gradients are those of the
    model."""
    dist.init_process_group("gloo")
    tokens, following = batch(0)
    whole = build()
    loss_of(whole(tokens), following).backward()
    done = []
    for layout in (
        Layout(micro_batch=8, sharding="parameters", offload="host"),
        Layout(micro_batch=8, sharding="parameters", offload="host", reshard=False),
    ):
        model, _ = divided(layout)
        loss_of(model(tokens), following).backward()
        state = model.module._get_fsdp_state()._state_ctx.all_states
        groups = [one._fsdp_param_group for one in state if one._fsdp_param_group is not None]
        on_host = [p.offload_to_cpu for group in groups for p in group.fsdp_params]
        assert len(on_host) == len(list(whole.parameters()))
        pairs = zip(model.parameters(), whole.parameters(), strict=True)
        alike = [torch.allclose(mine.grad.full_tensor(), its.grad) for mine, its in pairs]
        done.append((all(on_host), all(alike)))
    dist.destroy_process_group()
    return done


def test_one_accelerator_may_keep_its_state_on_the_host() -> None:
    assert values(run_bare_ranks(1, offloaded_alone)) == [[(True, True), (True, True)]]


def staged(layout: Layout) -> tuple[Any, torch.optim.Optimizer]:
    pipe = pipeline(build(), batch(0)[0], loss_of, strategy=layout)
    return pipe, torch.optim.AdamW(pipe.parameters(), lr=RATE)


def shares_of(pipe: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": pipe.module.state_dict(),
        "optimizer": get_optimizer_state_dict(pipe.module, optimizer, options=FLAT),
    }


def take_steps(pipe: Any, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        pipe.step(*share_of(pipe, step))
        pipe.clip_grad_norm_(NORM)
        optimizer.step()


def save_and_load(folder: str, rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    continue_under((COPIES, FSDP, HSDP, TENSOR, CHUNKS), STAGES, f"{folder}/stages")
    continue_under((STAGES, OFFLOADED), CHUNKS, f"{folder}/chunks")
    dist.destroy_process_group()


def continue_under(layouts: Sequence[Layout], saved: Layout, folder: str) -> None:
    pipe, optimizer = staged(saved)
    take_steps(pipe, optimizer, range(STEPS))
    checkpoint.save(shares_of(pipe, optimizer), checkpoint_id=folder)
    take_steps(pipe, optimizer, range(STEPS, STEPS + 1))
    expected = pipe.state_dict()
    assert set(pipe.module.state_dict()) <= set(expected)
    for layout in layouts:
        other, its = staged(layout)
        wanted = shares_of(other, its)
        checkpoint.load(wanted, checkpoint_id=folder)
        other.module.load_state_dict(wanted["model"])
        set_optimizer_state_dict(other.module, its, wanted["optimizer"], options=FLAT)
        take_steps(other, its, range(STEPS, STEPS + 1))
        for name, value in other.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)
        changed = {name: value + 1 for name, value in expected.items()}
        other.load_state_dict(changed)
        for name, value in other.state_dict().items():
            assert torch.equal(value, changed[name])
    build().load_state_dict(expected)


def test_a_checkpoint_continues_under_another_layout(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    values(run_ranks(make_plan(RANKS, 2), tmp_path, functools.partial(save_and_load, str(folder))))


def compile_and_cast(rank: int, world: int) -> tuple[list[float], ...]:
    dist.init_process_group("gloo")
    found = []
    for compiled in (False, True):
        model, optimizer = divided(FSDP)
        for block in model.module.blocks if compiled else ():
            block.compile(backend="aot_eager")
        found.append(train(model, optimizer, 0, STEPS))
    pipe = pipeline(build(), batch(0)[0], loss_of, strategy=FSDP, precision=torch.bfloat16)
    pipe.step(*share_of(pipe, 0))  # type: ignore[arg-type]
    for parameter in pipe.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
    assert pipe.evaluate(share_of(pipe, 0)[0]).dtype == torch.float32  # type: ignore[arg-type]
    found.append([pipe.clip_grad_norm_(1e9).item()])
    dist.destroy_process_group()
    return tuple(found)


def test_compiled_blocks_and_another_precision_train_alike() -> None:
    plain, compiled, cast = values(run_bare_ranks(RANKS, compile_and_cast))[0]
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert cast != plain[:1]
    assert cast == pytest.approx(plain[:1], rel=0.02)


class Counted(TorchDispatchMode):
    """The calls of operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "products"), [("none", 6), ("selective", 6), ("full", 7)])
def test_recomputation_runs_products_again_only_if_it_is_full(kind: Any, products: int) -> None:
    layers = nn.Linear(4, 4, bias=False), nn.GELU(), nn.Linear(4, 4, bias=False)
    block = nn.Sequential(*layers)
    recompute(block, kind, (0,))
    x = torch.randn(2, 4, requires_grad=True)
    with Counted() as counted:
        block(x).sum().backward()
    assert counted.calls["mm"] == products  # of each layer forward, and two of the backward pass
    assert counted.calls["gelu"] == (1 if kind == "none" else 2)


def refusals(rank: int, world: int) -> list[str]:
    dist.init_process_group("gloo")
    found = []
    for layout in (
        Layout(data=2, micro_batch=4),
        Layout(data=4, micro_batches=2),
        Layout(data=2, pipeline=2, micro_batches=4),
    ):
        try:
            parallelize(build(), batch(0)[0], strategy=layout)
        except StrategyError as error:
            found.append(str(error))
    dist.barrier()  # gloo may still connect another rank to this one
    dist.destroy_process_group()
    return found


def test_parallelize_refuses_layouts_of_other_ranks_and_with_steps() -> None:
    for of_rank in values(run_bare_ranks(RANKS, refusals)):
        ranks, micro_batches, stages = of_rank
        assert named(ranks, "layout", "2 ranks")
        assert named(micro_batches, "micro_batches", "2")
        assert named(stages, "pipeline", "2")
