"""Pipelines train as their model does alone; what cannot be cut says why."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import parallel_models
import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s
from support.refusals import refused
from torch import nn

from torch_topoopt.parallel import (
    Program,
    StrategyError,
    parallelize,
    pipeline,
    stages_of,
)
from torch_topoopt.plan import Placement
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = limit_s(30)
RANKS, SHARE, STEPS, RATE, PARTS = 4, 4, 3, 0.5, 4


class Blocks(nn.Module):
    """Embedding, residual blocks with sizes from shapes, a head; a parameter of no leaf module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.linspace(-1, 1, 5 * 8).view(5, 8))
        self.first = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.second = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.register_buffer("steps", torch.zeros(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        samples, length = tokens.shape
        x = self.embed(tokens) + self.position[:length]
        for first, second in zip(self.first, self.second, strict=True):
            hidden = torch.relu(first(x)).view(samples * length, 2, 4)
            x = x + second(hidden.view(samples, length, 8))
        return self.head(x.mean(dim=1))


class Named(Blocks):
    """Takes keyword arguments, and returns more than a tensor, as libraries do."""

    def forward(self, *, tokens: torch.Tensor) -> dict[str, Any]:
        return {"scores": super().forward(tokens), "cache": None}


def build() -> nn.Module:
    torch.manual_seed(5)
    return Blocks().double()


def batch(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 11, (samples, 5), generator=generator)
    return tokens, tokens.double()[:, :3].sin()


def strategy(program: Program, *blocks: tuple[str, tuple[int, ...]]) -> tuple[Placement, ...]:
    """Stages by the operator that each begins with."""
    made, servers = [], blocks[0][1]
    begins = dict(blocks)
    for name in program.operators:
        if name not in program.boundary:
            servers = begins.get(name, servers)
            made.append(Placement(name, servers))
    return tuple(made)


CASES: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "two stages of two": (("embed", (0, 2)), ("first.1", (3, 1))),
    "four stages": (("embed", (2,)), ("first.0", (0,)), ("first.1", (1,)), ("head", (3,))),
    "one stage": (("embed", (0, 1, 2, 3)),),
}


def train(case: str, rank: int) -> tuple[Any, ...]:
    """This rank's losses, parameters and shape of an output, and the whole state."""
    program = Program.of(build(), batch(8)[0])
    pipe = pipeline(
        build(),
        batch(8)[0],
        nn.functional.mse_loss,
        strategy=strategy(program, *CASES[case]),
        micro_batches=PARTS,
    )
    assert pipe.stages * pipe.replicas == RANKS
    optimizer = torch.optim.SGD(pipe.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        tokens, target = (t.chunk(pipe.replicas)[pipe.replica] for t in batch(RANKS * SHARE, step))
        optimizer.zero_grad()
        loss = pipe.step(tokens, target)
        optimizer.step()
        if loss is not None:
            losses.append(loss.item() / pipe.replicas)
    output = pipe.evaluate(tokens)
    last = pipe.stage == pipe.stages - 1
    assert (output is not None) == last
    shape = None if output is None else tuple(output.shape)
    values_left = pipe.module.state_dict()
    inner = {k.removeprefix("module."): v.numpy().copy() for k, v in values_left.items()}
    state = pipe.state_dict()
    whole_state = {name: value.numpy().copy() for name, value in state.items()}
    changed = {name: value + 1 for name, value in state.items()}
    pipe.load_state_dict(changed)
    for name, value in pipe.state_dict().items():
        assert torch.equal(value, changed[name]), name
    return losses, inner, shape, whole_state


def train_while_a_copy_is_held_back(rank: int, world: int) -> None:
    """The first stage of one copy works to its end before the last stage of the other one does."""
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    places = CASES["two stages of two"]
    first_done, held_back = places[0][1][0], places[1][1][1]
    calls = iter(range(1, PARTS + 1))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if rank == held_back and next(calls) == PARTS:
            store.wait(["the first stage has its gradients"], timedelta(seconds=LIMIT_S))
        return nn.functional.mse_loss(output, target)

    program = Program.of(build(), batch(8)[0])
    pipe = pipeline(
        build(), batch(8)[0], loss, strategy=strategy(program, *places), micro_batches=PARTS
    )
    if rank == first_done:
        passes = iter(range(1, PARTS + 1))

        def accumulated(_: torch.Tensor) -> None:
            if next(passes) == PARTS:
                store.set("the first stage has its gradients", "")

        pipe.module.embed.weight.register_post_accumulate_grad_hook(accumulated)
    pipe.step(*(t.chunk(pipe.replicas)[pipe.replica] for t in batch(RANKS * SHARE)))
    dist.destroy_process_group()


def train_named(rank: int, world: int) -> tuple[list[float], Any]:
    """The losses of this rank, and the output of an evaluation."""
    dist.init_process_group("topoopt")
    torch.manual_seed(5)
    example = {"tokens": batch(8)[0]}
    pipe = pipeline(
        Named().double(),
        example,
        lambda output, target: nn.functional.mse_loss(output["scores"], target),
        strategy=strategy(Program.of(build(), batch(8)[0]), *CASES["two stages of two"]),
        micro_batches=PARTS,
    )
    optimizer = torch.optim.SGD(pipe.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        tokens, target = (t.chunk(pipe.replicas)[pipe.replica] for t in batch(RANKS * SHARE, step))
        optimizer.zero_grad()
        loss = pipe.step({"tokens": tokens}, target)
        optimizer.step()
        if loss is not None:
            losses.append(loss.item() / pipe.replicas)
    output = pipe.evaluate({"tokens": tokens})
    dist.destroy_process_group()
    return losses, None if output is None else sorted(output)


def train_all(rank: int, world: int) -> list[Any]:
    dist.init_process_group("topoopt")
    done = [train(case, rank) for case in CASES]
    dist.destroy_process_group()
    return done


def alone() -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of the same steps in one process."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        tokens, target = batch(RANKS * SHARE, step)
        loss = nn.functional.mse_loss(model(tokens), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def test_a_pipeline_takes_a_dict_and_returns_what_the_model_does(tmp_path: Path) -> None:
    done = values(run_ranks(make_plan(RANKS, 2), tmp_path, train_named))
    sums = [sum(losses) for losses in zip(*(losses for losses, _ in done if losses), strict=True)]
    assert sums == pytest.approx(alone()[0], rel=1e-9)
    assert [names for _, names in done if names] == [["cache", "scores"]] * 2


def test_the_last_gradient_of_a_stages_input_does_not_wait_for_the_mean_over_copies(
    tmp_path: Path,
) -> None:
    values(run_ranks(make_plan(RANKS, 2), tmp_path, train_while_a_copy_is_held_back))


def test_a_pipeline_trains_as_its_model_does_alone(tmp_path: Path) -> None:
    done = values(run_ranks(make_plan(RANKS, 2), tmp_path, train_all))
    expected, parameters = alone()
    for case, name in enumerate(CASES):
        of_ranks = [rank[case] for rank in done]
        for step in range(STEPS):
            mean = sum(losses[step] for losses, *_ in of_ranks if losses)
            assert mean == pytest.approx(expected[step], rel=1e-9), (name, step)
        seen = set()
        for _, left, shape, state in of_ranks:
            assert list(state) == list(parameters)
            for key, value in state.items():
                torch.testing.assert_close(
                    torch.from_numpy(value), parameters[key], rtol=1e-9, atol=1e-12
                )
            assert shape in (None, (RANKS * SHARE // (4 if name == "one stage" else 2), 3), (16, 3))
            for key, value in left.items():
                seen.add(key)
                torch.testing.assert_close(
                    torch.from_numpy(value), parameters[key], rtol=1e-9, atol=1e-12
                )
        assert seen == set(parameters), name


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        (
            (("embed", (0, 1)), ("first.1", (1, 2))),
            ("pipelines", "stages"),
        ),
        ((("embed", (0, 1)), ("head", (2,))), ("as many",)),
        (
            (("embed", (0,)), ("relu", (1,))),
            ("stage 1", "stage 2"),
        ),
    ],
)
def test_what_cannot_be_cut_says_why(
    blocks: tuple[tuple[str, tuple[int, ...]], ...], tokens: tuple[object, ...]
) -> None:
    program = Program.of(build(), batch(8)[0])
    with refused(StrategyError, *tokens):
        stages_of(program, strategy(program, *blocks))


def test_what_two_operators_of_a_stage_read_is_handed_over_once() -> None:
    program = Program.of(build(), batch(8)[0])
    graph = profile(build(), batch(8)[0], name="blocks")
    placed = strategy(program, ("embed", (0, 1)), ("first.1", (2, 3)))
    crossing = 8 * 5 * 8 * 8  # samples, length, width, bytes of a float64
    once = demand(graph, placed, 4)
    assert [(p.source, p.target, p.size_bytes) for p in once.pairs] == [
        (source, target, crossing // 2) for source, target in ((0, 2), (1, 3), (2, 0), (3, 1))
    ]


def test_stages_share_no_parameter_and_only_the_first_reads_the_batch() -> None:
    attention = Program.of(
        parallel_models.build("attention"), parallel_models.batch("attention", 4)
    )
    with refused(StrategyError, "embed", "head", "weight"):
        stages_of(attention, strategy(attention, ("embed", (0,)), ("head", (1,))))
    tables = Program.of(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    with refused(StrategyError, "tables.1", "stage 2"):
        stages_of(tables, strategy(tables, ("tables.0", (0,)), ("tables.1", (1,))))
    in_place = Program.of(parallel_models.build("in-place"), parallel_models.batch("in-place", 4))
    with refused(StrategyError, "relu", "first"):
        stages_of(in_place, strategy(in_place, ("first", (0,)), ("relu", (1,))))


def test_a_job_without_a_plan_is_an_error_of_the_function_that_was_called() -> None:
    module, batch = nn.Linear(2, 2), torch.zeros(2, 2)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with refused(RuntimeError, "pipeline", "plan", "strategy="):
            pipeline(module, batch, nn.functional.mse_loss)
        with refused(RuntimeError, "parallelize", "plan", "strategy="):
            parallelize(module, batch)
    finally:
        dist.destroy_process_group()
