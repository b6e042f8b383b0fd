"""The shipped example, on PyTorch's own launcher and backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import limit_s

from torch_topoopt.profile.profiling import load_model, profile

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def train(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(EXAMPLE), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # other tests may use the other cores
    return subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s(100), check=False, env=environment
    )


def test_the_example_is_profiled_as_it_stands() -> None:
    build, batch, name = load_model(str(EXAMPLE))
    graph = profile(build, batch, name=name)
    assert (graph.model, graph.batch_size) == ("digits", 120)
    assert all(operator.splittable for operator in graph.operators)


@pytest.mark.exhaustive
def test_the_example_reaches_its_target_under_torchrun_with_gloo() -> None:
    result = train(2, "--epochs", "6", "--target-accuracy", "0.9")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["epoch", str(i)] for i in range(1, 7)]
    assert lines[-1].startswith("test accuracy 0.9")
    assert "target 0.9 reached after" in lines[-1]


@pytest.mark.parametrize("target", ["1.01"])
def test_the_example_fails_when_its_target_is_not_reached(target: str) -> None:
    result = train(1, "--epochs", "1", "--target-accuracy", target)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].endswith(f"target {target} not reached")
