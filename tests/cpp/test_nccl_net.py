"""The network plugin for NCCL, driven as NCCL's proxy drives it, by one process per rank."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.limits import limit_s

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.fabric.nccl_wiring import LIBRARY, write_nccl_wiring
from torch_topoopt.plan import Plan

HERE = Path(__file__).parent
LIMIT_S = 60.0
SILENCE_LIMIT_S = "2"

RingPlan = Callable[..., Plan]
RunRanks = Callable[..., list[str]]


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("nccl") / "harness"
    source = HERE / "nccl_net_harness.cc"
    compiler = os.environ.get("CXX", "c++").split()
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{HERE.parent.parent / 'csrc'}"]
    subprocess.run(
        [*compiler, *flags, str(source), "-o", str(built), "-ldl"],
        check=True,
        timeout=limit_s(LIMIT_S),
    )
    return built


@pytest.fixture
def run_ranks(harness: Path, tmp_path: Path, ring_plan: RingPlan) -> Iterator[RunRanks]:
    """Runs a scenario on the ranks of a ring, of which opposite ones have no cable."""
    fabric = LoopbackFabric(job=os.getpid())

    def run(version: int, *scenario: str, servers: int = 4) -> list[str]:
        plan = ring_plan(servers)
        wiring = tmp_path / "wiring"
        write_nccl_wiring(wiring, plan, fabric.connect(plan))
        names = {"TOPOOPT_NCCL_WIRING": str(wiring), "TOPOOPT_SILENCE_LIMIT_S": SILENCE_LIMIT_S}
        command = [str(harness), str(LIBRARY), str(version), str(tmp_path / "exchange")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(servers), *scenario],
                env={**os.environ, **names, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(servers)
        ]
        try:
            printed = [rank.communicate(timeout=limit_s(LIMIT_S))[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert [rank.returncode for rank in ranks] == [0] * servers, "\n".join(printed)
        return printed

    yield run
    fabric.close()


@pytest.mark.parametrize(
    "version",
    [8, 11, *(pytest.param(version, marks=pytest.mark.exhaustive) for version in (9, 10))],
)
def test_all_pairs_of_a_ring_exchange_messages(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "pairs")
    assert ["all pairs" in text for text in printed] == [True] * 4


def test_ring_and_tree_of_a_ring_of_four(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "ring", str(8 << 20))
    assert ["seconds" in text for text in printed] == [True] * 4


def test_a_rank_that_dies_is_a_remote_error(run_ranks: RunRanks) -> None:
    assert "remote error" in run_ranks(11, "gone")[0]


@pytest.mark.parametrize("version", [8, 9, 10, 11])
def test_wrong_calls_are_refused(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "wrong")
    assert ["all refused" in text for text in printed] == [True] * 4
