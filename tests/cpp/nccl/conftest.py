"""Runs the harness of the plugin for NCCL: one process per rank."""

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

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 60.0
SILENCE_LIMIT_S = "2"

RingPlan = Callable[..., Plan]
RunRanks = Callable[..., list[str]]


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
