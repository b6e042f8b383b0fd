"""A short run of every fuzz target; `make fuzz` runs ten million inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import controller_requests
import handshake_inputs
import pytest
from support.limits import limit_s

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
RUNS = {"frame_reader": 10_000, "flow_file": 20_000}


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    "target", ["frame_reader", pytest.param("flow_file", marks=pytest.mark.exhaustive)]
)
def test_cpp(target: str) -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which("make") is None or shutil.which(compiler) is None:
        pytest.skip("no make or no C++ compiler here")
    program = ROOT / "build" / "fuzz" / target
    corpus = ROOT / "tests" / "fuzz" / "corpus" / target
    for command in (
        ["make", "-s", "-f", "tests/fuzz/Makefile", f"CXX={compiler}", str(program)],
        [str(program), str(corpus), "--runs", str(RUNS[target])],
    ):
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(LIMIT_S), check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"{RUNS[target]} inputs" in done.stdout


def test_handshakes() -> None:
    counts = handshake_inputs.run(10_000, 1)
    assert set(counts) == {"stranger", "taken", "error"}
    assert min(counts.values()) > 100


def test_controller_requests() -> None:
    statuses = controller_requests.run(400, 1)
    assert statuses.keys() >= {200, 400, 401, 404, 409, 413, 431}
