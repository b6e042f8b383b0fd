"""Runs a function on every rank of a small job over the loopback fabric, one process per rank."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import multiprocessing.forkserver
import os
import queue
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from support.limits import limit_s as stretched

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Network, Plan
from torch_topoopt.runtime.versions import build_info
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TESTS = Path(__file__).parents[2]
_LIMIT_S = 90.0  # of all ranks where nothing else runs
_NAMESPACE_VARIABLE = "TOPOOPT_TEST_NETWORK_NAMESPACE"
_CLONE_NEWNET = 0x40000000  # <sched.h>


def make_plan(servers: int, degree: int, *, ports: str = "duplex", gbps: float = 10.0) -> Plan:
    """A data-parallel plan whose network TopologyFinder chose."""
    cluster = Cluster(servers, degree, gbps, ports="simplex" if ports == "simplex" else "duplex")
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    network = find_network(cluster, demand) if servers > 1 else Network((), (), ())
    return Plan.of_network(cluster, network, demand, model="test")


def require_tls() -> None:
    """Skips the test in a build that cannot encrypt links."""
    info = build_info()
    if info is None or not info.openssl:
        pytest.skip("this build has no OpenSSL")


@dataclasses.dataclass
class Outcome:
    """The outcome of one rank: `value` that its function returned, or `error` (type, message)."""

    value: Any = None
    error: str | None = None
    exit_code: int | None = None


# Ranks are forked from a server that has imported torch once, for that takes seconds each time.
_CONTEXT = multiprocessing.get_context("forkserver")
# Modules that tests import: a rank that has them is a fork, one that has not takes a second.
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "torch_topoopt.runtime.backend",
        "pytest",
        "scipy.optimize",
        "numpy.testing",
        "support.backend.device",
        "support.backend.ranks",
        "support.backend.forked",
    ]
)


@functools.cache
def _start_server() -> None:
    """Before the first rank; the server finds modules of tests/ by PYTHONPATH only."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_TESTS), before]))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _enter_network_namespace(name: str) -> None:
    with open(f"/run/netns/{name}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {name}")


def _rank_main(
    rank: int, world: int, environment: dict[str, str], function: Any, results: Any
) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    if namespace := environment.get(_NAMESPACE_VARIABLE):
        _enter_network_namespace(namespace)
    import torch

    from torch_topoopt.runtime import backend

    torch.set_num_threads(1)
    outcome = Outcome()
    try:
        outcome.value = function(rank, world)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        # State that the interpreter leaves after an uncaught exception, for atexit handlers.
        sys.last_value = error
        traceback.print_exc()
    backend._leave()  # registered with atexit, which a forked process ends without
    results.put((rank, outcome))


@functools.cache
def _cache() -> str:
    """Where the first job of a plan keeps what it has measured, for all tests of this process."""
    folder = tempfile.mkdtemp(prefix="topoopt-test-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
            "XDG_CACHE_HOME": _cache(),
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
    with wired(plan, folder, gbps) as environment:
        return _run([environment] * world, function, "127.0.0.1", limit_s)


def run_bare_ranks(
    world: int,
    function: Callable[[int, int], Any],
    *,
    namespaces: Sequence[str] | None = None,
    store_address: str = "127.0.0.1",
    limit_s: float = _LIMIT_S,
    **environment: str,
) -> list[Outcome]:
    """As run_ranks, but without a plan; rank i runs in network namespace `namespaces[i]`."""
    environments = [dict(environment) for _ in range(world)]
    for of_rank, namespace in zip(environments, namespaces or (), strict=bool(namespaces)):
        of_rank[_NAMESPACE_VARIABLE] = namespace
    return _run(environments, function, store_address, limit_s)


def _run(
    environments: list[dict[str, str]],
    function: Callable[[int, int], Any],
    store_address: str,
    limit_s: float,
) -> list[Outcome]:
    _start_server()
    world = len(environments)
    results = _CONTEXT.Queue()
    outcomes = [Outcome() for _ in range(world)]
    # As under torchrun, the store outlives the ranks and their process groups.
    store = dist.TCPStore(store_address, 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": store_address,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        _CONTEXT.Process(
            target=_rank_main, args=(rank, world, environment | common, function, results)
        )
        for rank, environment in enumerate(environments)
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
    deadline = time.monotonic() + stretched(limit_s)
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
