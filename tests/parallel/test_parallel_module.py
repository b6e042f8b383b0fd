"""Losses, gradients and parameters of a spread model equal those of one process."""

from __future__ import annotations

import functools
import random
from itertools import permutations
from typing import TYPE_CHECKING, Any

import parallel_models
import pytest
import torch
import torch.distributed as dist
from ranks import make_plan, run_bare_ranks, run_ranks, values

import torch_topoopt
from torch_topoopt.parallel import Program, StrategyError, parallelize
from torch_topoopt.parallel.api import placed
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.plan import Placement

if TYPE_CHECKING:
    from pathlib import Path

RANKS, SHARE, STEPS, RATE = 4, 2, 3, 0.5


def strategies(name: str, count: int) -> list[tuple[Placement, ...]]:
    """Random ones that can be executed, the same in every process."""
    program = Program.of(parallel_models.build(name), parallel_models.batch(name, 8))
    rng = random.Random(name)
    sets = [servers for k in (1, 2, 4) for servers in list(permutations(range(RANKS), k))[:12]]
    return [
        tuple(
            Placement(
                operator,
                rng.choice([s for s in sets if not program.why_not(operator, s, RANKS)]),
            )
            for operator in program.operators
        )
        for _ in range(count)
    ]


def alone(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of steps of SGD in one process.

    Where samples are mixed, the shares are computed one after the other.
    """
    model = parallel_models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        whole = parallel_models.batch(name, RANKS * SHARE, step)
        shares = zip(*(tensor.split(SHARE) for tensor in whole), strict=True)
        loss = sum(parallel_models.loss(model(*share)) for share in shares) / RANKS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


def train(name: str, strategy: tuple[Placement, ...], rank: int) -> tuple[list[float], Any]:
    """This rank's losses, and the parameters that it is left with."""
    model = parallelize(
        parallel_models.build(name), parallel_models.batch(name, 4), strategy=strategy
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        whole = parallel_models.batch(name, RANKS * SHARE, step)
        share = [tensor.split(SHARE)[rank] for tensor in whole]
        loss = parallel_models.loss(model(*share))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        model.eval()
        parallel_models.loss(model(*share))
    return losses, {k: v.numpy() for k, v in model.module.state_dict().items()}


def train_all(backend: str, count: int, rank: int, world: int) -> list[Any]:
    dist.init_process_group(backend)
    done = [
        train(name, strategy, rank)
        for name in parallel_models.MODELS
        for strategy in strategies(name, count)
    ]
    dist.destroy_process_group()
    return done


@pytest.mark.parametrize("backend", ["topoopt", pytest.param("gloo", marks=pytest.mark.exhaustive)])
def test_a_spread_model_trains_as_it_does_alone(backend: str, tmp_path: Path) -> None:
    count = 3 if backend == "topoopt" else 1
    function = functools.partial(train_all, backend, count)
    if backend == "topoopt":
        done = values(run_ranks(make_plan(RANKS, 2), tmp_path, function))
    else:
        done = values(run_bare_ranks(RANKS, function))
    cases = [(name, s) for name in parallel_models.MODELS for s in strategies(name, count)]
    for case, (name, strategy) in enumerate(cases):
        losses, parameters = alone(name)
        of_ranks = [rank[case] for rank in done]
        for step in range(STEPS):
            mean = sum(of_rank[0][step] for of_rank in of_ranks) / RANKS
            assert mean == pytest.approx(losses[step], rel=1e-9), (name, strategy, step)
        held: dict[str, int] = dict.fromkeys(parameters, 0)
        for _, left in of_ranks:
            for key, value in left.items():
                torch.testing.assert_close(
                    torch.from_numpy(value), parameters[key], rtol=1e-9, atol=1e-12
                )
                held[key] += 1
        assert min(held.values()) >= 1, "every parameter lives somewhere"
        assert any(p.servers != tuple(range(RANKS)) for p in strategy)


def two_models(rank: int, world: int) -> Any:
    dist.init_process_group("gloo")
    name = "tables"
    program = Program.of(parallel_models.build(name), parallel_models.batch(name, 4))
    strategy = tuple(
        Placement(o, (i % world,) if o.startswith("tables") else tuple(range(world)))
        for i, o in enumerate(program.operators)
    )
    model = parallelize(
        parallel_models.build(name), parallel_models.batch(name, 4), strategy=strategy
    )
    assert isinstance(model, ParallelModule)
    share = [t.split(SHARE)[rank] for t in parallel_models.batch(name, world * SHARE)]
    with model.no_sync():
        parallel_models.loss(model(*share)).backward()
    parallel_models.loss(model(*share)).backward()
    twice = {k: p.grad.clone() for k, p in model.module.named_parameters()}
    model.zero_grad()
    for _ in range(2):
        parallel_models.loss(model(*share)).backward()
    for key, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, twice[key])
    kept = sorted(k for k, _ in model.module.named_parameters() if k.startswith("tables"))
    wrong = ""
    try:
        model(share[0][:, :3], share[1])
    except Exception as error:  # of PyTorch, or ours
        wrong = type(error).__name__
    dist.destroy_process_group()
    return kept, wrong


def test_gradients_add_up_and_tables_live_on_their_server_only() -> None:
    done = values(run_bare_ranks(2, two_models))
    kept = [set(of_rank[0]) for of_rank in done]
    assert kept[0] & kept[1] == set()
    assert len(kept[0] | kept[1]) == 3
    assert all(wrong for _, wrong in done)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ([Placement("tables.0", (0,))], "'bottom.0': it is not placed"),
        ([Placement("tables.9", (0,))], "is not placed|no such operator"),
        ({"tables.0": (1, 1)}, r"'tables.0': \[1, 1\] are not different servers in 0..3"),
        ({"tables.0": (0, 4)}, r"'tables.0': \[0, 4\] are not different servers"),
        (
            {"stack": (0, 1, 2)},
            r"'stack' cannot run on servers \[0, 1, 2\]: 3 servers cannot share",
        ),
        ({"output": (0,)}, r"'output' cannot run on servers \[0\]: every rank reads its own"),
    ],
)
def test_a_strategy_that_cannot_be_executed_is_named(strategy: Any, message: str) -> None:
    program = Program.of(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    if isinstance(strategy, dict):
        strategy = [
            Placement(name, strategy.get(name, tuple(range(4)))) for name in program.operators
        ]
    with pytest.raises(StrategyError, match=message):
        placed(program, strategy, 4)


def test_splits_of_parameters_are_refused() -> None:
    program = Program.of(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    strategy = [
        Placement(name, tuple(range(4)), columns=2 if name == "top.0" else 1)
        for name in program.operators
    ]
    with pytest.raises(StrategyError, match=r"'top\.0' cannot .*: it splits more than samples"):
        placed(program, strategy, 4)


def test_what_cannot_be_spread_says_why() -> None:
    attention = Program.of(
        parallel_models.build("attention"), parallel_models.batch("attention", 4)
    )
    assert attention.why_not("embed", (0,), 4) == "it shares a parameter with 'head'"
    assert attention.why_not("embed", (0, 1, 2, 3), 4) == ""
    assert attention.why_not("norm", (1,), 4) == ""
    in_place = Program.of(parallel_models.build("in-place"), parallel_models.batch("in-place", 4))
    assert in_place.why_not("relu", (0,), 4) == "it changes a tensor of 'first' in place"
    assert "mean" in in_place.why_not("sub", (0,), 4)


def test_parallelize_needs_a_process_group_and_a_plan() -> None:
    model, batch = parallel_models.build("tables"), parallel_models.batch("tables", 4)
    with pytest.raises(RuntimeError, match=r"no process group; call init_process_group\(\)"):
        torch_topoopt.parallelize(model, batch)


def without_a_plan(rank: int, world: int) -> str:
    dist.init_process_group("gloo")
    try:
        parallelize(parallel_models.build("tables"), parallel_models.batch("tables", 4))
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return ""


def test_without_a_plan_it_says_how_to_get_one() -> None:
    (said,) = values(run_bare_ranks(1, without_a_plan))
    assert "this job has no plan; start the script with `topoopt run`, or say strategy=" in said
