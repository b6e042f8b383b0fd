"""Runs the ranks of a job on the testbed's hosts and measures what an iteration takes them."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes
from testbed.stand_in import StandIn
from torch_topoopt.launcher.run import link_bytes
from torch_topoopt.processes.rank_main import enter_namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from testbed.networks import Testbed
    from testbed.workload import Workload
    from torch_topoopt.plan import LinkTraffic

_LIMIT_S = 400.0
_TIMEOUT_S = 120.0  # of a collective
_FIRST_PORT = 29500
_NICE = -10
_STDERR = 2


@dataclass(frozen=True)
class MeasuredJob:
    """`busy` is the part of this machine's processors that was busy meanwhile, with whatever, and
    `load` its load average of a minute before; `links` the bytes that ranks counted."""

    iteration_s: float
    wrong: int
    busy: float
    load: float
    links: list[LinkTraffic]


def measure(testbed: Testbed, workload: Workload, backend: str, iterations: int) -> MeasuredJob:
    """Seconds of an iteration of the slowest rank, the first two left out."""

    def train(rank: int) -> tuple[float, int, float]:
        model = StandIn(workload)
        for _ in range(2):
            model.step()
        dist.barrier()
        before, began = _processor_times(), time.perf_counter()
        for _ in range(iterations):
            model.step()
        took = (time.perf_counter() - began) / iterations
        return took, model.wrong, _busy_share(before, _processor_times())

    load = os.getloadavg()[0]
    answers = run_ranks(testbed, backend, train)
    links, _, _ = link_bytes.gather(Path(testbed.folder))
    return MeasuredJob(
        max(took for took, _, _ in answers),
        sum(wrong for _, wrong, _ in answers),
        answers[0][2],
        load,
        links,
    )


def run_ranks(testbed: Testbed, backend: str, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` on every host, inside a process group of `backend`; raises RankError."""
    ranks = testbed.plan.cluster.servers

    def become(rank: int) -> Any:
        os.environ.update(
            testbed.environment,
            RANK=str(rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(ranks),
            MASTER_PORT=str(_FIRST_PORT),
        )
        if backend == "topoopt":
            os.environ["TOPOOPT_RUN_DIR"] = testbed.folder
        enter_namespace(f"1:{testbed.namespaces}")
        os.nice(_NICE)  # the ranks hardly compute, and what else runs here should not delay them
        # Where no names are served, torch warns of every connection. Errors come back as answers.
        with open(f"{testbed.folder}/rank{rank}.log", "ab") as log:
            os.dup2(log.fileno(), _STDERR)
        torch.set_num_threads(1)
        # torch 2.13 renamed what autograd calls; the old name still works
        warnings.filterwarnings("ignore", category=FutureWarning)
        dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))
        answer = work(rank)
        dist.barrier()
        dist.destroy_process_group()
        return answer

    return call_in_processes(ranks, become, limit_s=_LIMIT_S)


def _processor_times() -> tuple[int, int]:
    """Ticks of this machine's processors since it started: (idle, all)."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    idle, whole = after[0] - before[0], after[1] - before[1]
    return 1.0 - idle / whole if whole else 0.0
