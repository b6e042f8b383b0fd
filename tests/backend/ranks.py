"""Runs a function on every rank of a small job over the loopback fabric, one process per rank."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Network, Plan, Prediction
from torch_topoopt.topology.topology_finder import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LIMIT_S = 90.0


def make_plan(servers: int, degree: int, *, ports: str = "duplex", gbps: float = 10.0) -> Plan:
    """A data-parallel plan whose network TopologyFinder chose."""
    cluster = Cluster(servers, degree, gbps, ports="simplex" if ports == "simplex" else "duplex")
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    network = find_network(cluster, demand) if servers > 1 else Network((), (), ())
    return Plan(
        version=Plan.VERSION,
        model="test",
        batch_size=1,
        seed=0,
        mode="paper",
        strategy_space="data-parallel",
        cluster=cluster,
        network=network,
        demand=demand,
        prediction=Prediction(1.0, 1.0, 1.0, 1.0, (0,) * len(network.links)),
        rounds=(),
        search=(),
        strategy=(),
    ).validate()


@dataclasses.dataclass
class Outcome:
    """What one rank did: `value` that its function returned, or `error` (type and message)."""

    value: Any = None
    error: str | None = None
    exit_code: int | None = None


# Ranks are forked from a server that has imported torch once, for that takes seconds each time.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch_topoopt.backend"])


def _rank_main(
    rank: int, world: int, environment: dict[str, str], function: Any, results: Any
) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    import torch

    from torch_topoopt import backend

    torch.set_num_threads(1)
    outcome = Outcome()
    try:
        outcome.value = function(rank, world)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        # What the interpreter leaves behind after an uncaught exception, for atexit handlers.
        sys.last_value = error
        traceback.print_exc()
    backend._leave()  # registered with atexit, which a forked process ends without
    results.put((rank, outcome))


@contextlib.contextmanager
def wired(plan: Plan, folder: Path, gbps: float | None = None) -> Iterator[dict[str, str]]:
    """The environment that `topoopt run` gives to its ranks."""
    fabric = LoopbackFabric(job=os.getpid(), gbps=gbps)
    try:
        plan.save(folder / "plan.json")
        fabric.connect(plan).save(folder / "wiring.json")
        yield {
            "TOPOOPT_PLAN": str(folder / "plan.json"),
            "TOPOOPT_WIRING": str(folder / "wiring.json"),
            "TOPOOPT_RUN_DIR": str(folder),
        }
    finally:
        fabric.close()


def run_ranks(
    plan: Plan,
    folder: Path,
    function: Callable[[int, int], Any],
    *,
    gbps: float | None = None,
    world: int | None = None,
    limit_s: float = _LIMIT_S,
) -> list[Outcome]:
    """Calls `function(rank, world)` in one process per server; all are gone when this returns."""
    world = plan.cluster.servers if world is None else world
    results = _CONTEXT.Queue()
    outcomes = [Outcome() for _ in range(world)]
    with wired(plan, folder, gbps) as environment:
        # As under torchrun, the store outlives the ranks and their process groups.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        }
        processes = [
            _CONTEXT.Process(target=_rank_main, args=(rank, world, environment, function, results))
            for rank in range(world)
        ]
        try:
            for process in processes:
                process.start()
            _collect(processes, results, outcomes, limit_s)
        finally:
            for process in processes:
                process.kill()
                process.join()
    for outcome, process in zip(outcomes, processes, strict=True):
        outcome.exit_code = process.exitcode
    return outcomes


def _collect(processes: list[Any], results: Any, outcomes: list[Outcome], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    waiting = set(range(len(processes)))
    while waiting:
        try:
            rank, outcome = results.get(timeout=0.2)
        except queue.Empty:
            # A killed process reports nothing.
            waiting -= {r for r in waiting if processes[r].exitcode not in (None, 0)}
            assert time.monotonic() < deadline, f"ranks {sorted(waiting)} did not finish"
            continue
        outcomes[rank] = outcome
        waiting.discard(rank)
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
        assert process.exitcode is not None, "a rank did not exit after its function had returned"


def values(outcomes: list[Outcome]) -> list[Any]:
    """The returned values; fails the test if any rank failed."""
    failed = {
        rank: outcome.error or f"exit {outcome.exit_code}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error or outcome.exit_code
    }
    assert not failed, failed
    return [outcome.value for outcome in outcomes]
