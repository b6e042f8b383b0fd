"""Models of transformers, diffusers, timm, torchvision and peft train placed as they do alone."""

from __future__ import annotations

import functools
import random
from itertools import permutations
from typing import TYPE_CHECKING

import library_models
import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

from torch_topoopt.parallel import Program, parallelize
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.plan import Placement

if TYPE_CHECKING:
    from pathlib import Path

RANKS, SHARE, STEPS = 4, 2, 12
# steps of SGD: Adam's first ones are as large for gradients that are zero but for rounding
RATE = 0.05
LIMIT_S = 120


def strategy(name: str) -> tuple[Placement, ...]:
    """Random placements, the same each time. As in a plan, operators that follow each other often
    have the same."""
    program = Program.of(library_models.build(name), library_models.batch(name, 4))
    rng = random.Random(name)
    everyone = tuple(range(RANKS))
    sets = [servers for k in (1, 2, 4) for servers in list(permutations(everyone, k))[:8]]
    splits: list[dict[str, int]] = [{}, {"columns": 2}, {"rows": 2}]
    pairs = [(s, w) for s in sets for w in splits if len(s) % max(w.values(), default=1) == 0]
    placed: list[Placement] = []
    for operator in program.operators:
        tried = [Placement(operator, s, **way) for s, way in rng.sample(pairs, len(pairs))]
        if placed and rng.random() < 0.75:
            tried.insert(0, Placement(operator, placed[-1].servers))
        placed.append(next(p for p in tried if not program.why_not_placed(p, RANKS)))
    return tuple(placed)


def alone(name: str) -> list[float]:
    """Losses in one process; shares one after the other."""
    model = library_models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        whole = library_models.batch(name, RANKS * SHARE, step)
        shares = [{k: v.split(SHARE)[rank] for k, v in whole.items()} for rank in range(RANKS)]
        loss = sum(library_models.loss(model(**share)) for share in shares) / RANKS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train(name: str, placed: tuple[Placement, ...], rank: int, world: int) -> list[float]:
    dist.init_process_group("topoopt")
    model = parallelize(library_models.build(name), library_models.batch(name, 4), strategy=placed)
    assert isinstance(model, ParallelModule)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        whole = library_models.batch(name, RANKS * SHARE, step)
        share = {k: v.split(SHARE)[rank] for k, v in whole.items()}
        loss = library_models.loss(model(**share))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    dist.destroy_process_group()
    return losses


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("name", library_models.MODELS)
def test_a_model_of_a_library_trains_placed_as_it_does_alone(name: str, tmp_path: Path) -> None:
    expected = alone(name)
    assert len(set(expected)) == STEPS, "it trains"
    function = functools.partial(train, name, strategy(name))
    done = values(run_ranks(make_plan(RANKS, 2), tmp_path, function, limit_s=LIMIT_S))
    means = [sum(losses) / RANKS for losses in zip(*done, strict=True)]
    assert means == pytest.approx(expected, rel=1e-5)
