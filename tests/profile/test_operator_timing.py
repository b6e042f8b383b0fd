"""Operators are called alone, as the model calls them, and equal ones once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.refusals import refused
from torch import nn

from torch_topoopt.models import MODELS
from torch_topoopt.profile.operator_timing import Bench, ReplayTrace, Timing, measure_operators
from torch_topoopt.profile.profiling import ProfileError, profile, trace_batches

GIB = 2**30


def timed(build: Any, batch: Any, *samples: int, **options: Any) -> Timing:
    """With a clock that says one second later each time it is asked."""
    clock = itertools.count(0.0, 1.0)
    options = {"memory_bytes": GIB, "limit_s": 1e9, **options}
    return measure_operators(build, batch, samples, device="cpu", clock=clock.__next__, **options)


QUICK = ("dlrm", "gpt", "moe")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.exhaustive) for n in MODELS],
)
def test_every_operator_of_a_workload_can_be_called_alone(name: str) -> None:
    module = MODELS[name]
    batch = module.example_batch(size="tiny")
    timing = timed(lambda: module.build("tiny"), batch, 2, 4)
    assert timing.left_out == {}
    graph = profile(lambda: module.build("tiny"), batch, name=name)
    assert [cost.operator for cost in timing.table.costs] == [o.name for o in graph.operators]
    assert all([p.samples for p in cost.points] == [2, 4] for cost in timing.table.costs)


def test_a_replay_computes_what_the_operator_computes() -> None:
    """The shapes of results are those of the trace, forward and backward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 8, mode="sum")
            self.relu = nn.ReLU(inplace=True)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.relu(self.bag(rows)), torch.ones(len(rows), 2)], dim=1)

    (trace,) = trace_batches(Net, torch.zeros(6, 3, dtype=torch.long), [4], ReplayTrace)
    assert list(trace.replays) == ["bag", "relu", "cat"]
    assert trace.replays["bag"].function.num_embeddings == 10
    bench = Bench("cpu", itertools.count(0.0, 1.0).__next__, other_bytes=4096)
    assert bench.start_s == 1.0
    bench.start_s = 0.25
    assert [replay.run(bench) for replay in trace.replays.values()] == [(1.0, 0.75)] * 3
    bench.start_s = 2.0
    assert trace.replays["cat"].run(bench) == (1.0, 0.0)


def _is_traced() -> bool:
    """Whether a trace observes the functions that are called."""
    return torch._C._len_torch_function_stack() > 0


def test_equal_operators_are_measured_once() -> None:
    runs: list[str] = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not _is_traced():
                runs.append(f"{self.out_features}")
            return super().forward(x)

    def build(*widths: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), *(Counted(8, width) for width in widths))

    timed(lambda: build(8), torch.zeros(2, 8), 2)
    once = len(runs)
    runs.clear()
    timing = timed(lambda: build(8, 8, 8, 8), torch.zeros(2, 8), 2)
    assert len(runs) == once
    assert len(timing.table.costs) == 5


def test_what_is_too_large_or_too_late_is_left_out_and_said() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10**6), nn.ReLU())

    large = timed(build, torch.zeros(2, 8), 2, memory_bytes=10**6)
    assert set(large.left_out) == {"1", "2"}
    assert "bytes of memory, of 1000000" in large.left_out["1"]
    late = timed(build, torch.zeros(2, 8), 2, limit_s=5.0)
    assert late.left_out == {"1": "5 s have passed", "2": "5 s have passed"}
    with refused(ProfileError, "1e-09"):
        timed(build, torch.zeros(2, 8), 2, limit_s=1e-9)


def test_an_operator_that_raises_on_real_tensors_is_left_out() -> None:
    class OnlyMeta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not _is_traced():
                raise RuntimeError("not here\nnor there")
            return x * self.weight

    build = lambda: nn.Sequential(nn.Linear(8, 8), OnlyMeta())  # noqa: E731
    assert timed(build, torch.zeros(2, 8), 2).left_out == {"1": "it raised RuntimeError: not here"}
