"""The network plugin for NCCL, driven as NCCL's proxy drives it, by one process per rank."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.nccl_harness import compiled

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.links.nccl_wiring import LIBRARY, write_nccl_wiring
from torch_topoopt.plan import Plan
from torch_topoopt.runtime.versions import build_info

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 60.0
SILENCE_LIMIT_S = "2"

RingPlan = Callable[..., Plan]
RunRanks = Callable[..., list[str]]

_BUILD = build_info()
needs_tls = pytest.mark.skipif(_BUILD is None or not _BUILD.openssl, reason="this build has no TLS")


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("nccl_net_harness", tmp_path_factory)


@pytest.fixture
def run_ranks(harness: Path, tmp_path: Path, ring_plan: RingPlan) -> Iterator[RunRanks]:
    """Runs a scenario on the ranks of a ring, of which opposite ones have no cable."""
    fabric = LoopbackFabric(job=os.getpid())

    def run(
        version: int, *scenario: str, servers: int = 4, per_server: int = 1, encrypt: bool = False
    ) -> list[str]:
        plan = ring_plan(servers)
        wiring, ranks_of_job = tmp_path / "wiring", servers * per_server
        write_nccl_wiring(
            wiring, plan, fabric.connect(plan), ranks_per_server=per_server, encrypt=encrypt
        )
        names = {"TOPOOPT_NCCL_WIRING": str(wiring), "TOPOOPT_SILENCE_LIMIT_S": SILENCE_LIMIT_S}
        command = [str(harness), str(LIBRARY), str(version), str(tmp_path / "exchange")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(ranks_of_job), *scenario],
                env={**os.environ, **names, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks_of_job)
        ]
        try:
            printed = [rank.communicate(timeout=limit_s(LIMIT_S))[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert [rank.returncode for rank in ranks] == [0] * ranks_of_job, "\n".join(printed)
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


def test_several_ranks_on_each_server(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "pairs", servers=3, per_server=2)
    assert ["all pairs" in text for text in printed] == [True] * 6


def test_sixteen_ranks_connect_with_all(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "mesh", "1000", servers=4, per_server=4)
    assert ["all pairs" in text for text in printed] == [True] * 16


@needs_tls
def test_encrypted_links(run_ranks: RunRanks) -> None:
    printed = run_ranks(11, "ring", str(8 << 20), encrypt=True)
    assert ["seconds" in text for text in printed] == [True] * 4


@pytest.mark.parametrize("encrypt", [False, pytest.param(True, marks=needs_tls)])
def test_a_cable_is_lost_during_an_all_reduce(run_ranks: RunRanks, encrypt: bool) -> None:
    printed = run_ranks(11, "ring", str(64 << 20), "cut", encrypt=encrypt)
    assert ["seconds" in text for text in printed] == [True] * 4


def test_a_rank_that_dies_is_a_remote_error(run_ranks: RunRanks) -> None:
    assert "remote error" in run_ranks(11, "gone")[0]


@pytest.mark.parametrize("version", [8, 9, 10, 11])
def test_wrong_calls_are_refused(run_ranks: RunRanks, version: int) -> None:
    printed = run_ranks(version, "wrong")
    assert ["all refused" in text for text in printed] == [True] * 4
