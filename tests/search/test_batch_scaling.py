"""A saved OpGraph of another batch size has the costs of a profile of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.refusals import refused
from torch import nn

from torch_topoopt.models import MODELS
from torch_topoopt.op_graph import MeasuredCost, MeasuredStep, Operator, OpGraph
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.search.batch_scaling import with_batch_size


def of(name: str, samples: int) -> OpGraph:
    module = MODELS[name]
    batch = module.example_batch(samples, size="tiny")
    return profile(lambda: module.build("tiny"), batch, name=name)


def without_constants(operator: Operator) -> Operator:
    """Constants that all samples share, such as positions, are in no proportion to them."""
    return replace(operator, memory_bytes=0, saved_bytes=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_scaled_profile_is_that_of_the_other_batch(name: str) -> None:
    scaled, fresh = with_batch_size(of(name, 4), 12), of(name, 12)
    assert scaled.batch_size == 12
    assert list(map(without_constants, scaled.operators)) == list(
        map(without_constants, fresh.operators)
    )
    assert scaled.layers == fresh.layers
    for field in ("memory_bytes", "saved_bytes"):
        sums = [sum(getattr(o, field) for o in g.operators) for g in (scaled, fresh)]
        assert sums[0] == pytest.approx(sums[1], rel=0.02), field
    assert with_batch_size(scaled, 4).operators == of(name, 4).operators


def test_measured_costs_stay_those_of_as_many_samples() -> None:
    graph = of("gpt", 4)
    measured = tuple(MeasuredCost(shards, 1 / shards, 2 / shards) for shards in (1.0, 4.0))
    graph = replace(graph, operators=tuple(replace(o, measured=measured) for o in graph.operators))
    device = accelerator("a100")
    for before, after in zip(graph.operators, with_batch_size(graph, 16).operators, strict=True):
        for shards in (1, 2, 4):
            found = operator_seconds(device, after, 4 * shards)
            assert found == pytest.approx(operator_seconds(device, before, shards))


class Mean(nn.Module):
    """One number of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean()


class Pairs(nn.Module):
    """The product of every sample with every other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y @ y.T


def test_what_samples_share_stays_and_their_products_are_refused() -> None:
    scaled = with_batch_size(profile(Mean(), torch.zeros(4, 6), name="mean"), 8)
    assert scaled == profile(Mean(), torch.zeros(8, 6), name="mean")
    with refused(ValueError, "batch-size", "matmul"):
        with_batch_size(profile(Pairs(), torch.zeros(4, 6), name="pairs"), 8)


def test_a_measured_step_is_of_its_batch() -> None:
    graph = replace(of("gpt", 4), measured_step=MeasuredStep(0.1))
    assert with_batch_size(graph, 4) == graph
    with refused(ValueError, "batch-size", "4"):
        with_batch_size(graph, 8)
    with refused(ValueError, "batch-size", "0"):
        with_batch_size(graph, 0)
