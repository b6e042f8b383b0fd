"""An emulated leaf-spine network, jobs on it, and what their AllReduces take."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.plan import BYTES_PER_GBPS, Cluster, Demand, GroupDemand, Plan
from torch_topoopt.processes.rank_main import enter_namespace
from torch_topoopt.route_control.emulation.build import MTU
from torch_topoopt.route_control.emulation.clos import EmulatedClos
from torch_topoopt.route_control.emulation.job import TCP_PORT, JobOnClos
from torch_topoopt.route_control.network_shapes import leaf_spine_file
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths
from torch_topoopt.route_control.probing.probed_flow import ProbedFlow
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_topoopt.links.wiring import Wiring

_STORE_PORT = 29500
_TIMEOUT_S = 120.0  # of a collective
_LIMIT_S = 900.0  # of a run
_STDERR = 2
_ELEMENT_BYTES = 4
_MOST_STEPS = 20_000
_LOOK_S = 0.01  # between two looks at what ranks have done
_ESTABLISHED = "01"  # in /proc/net/tcp


@dataclass(frozen=True)
class Shape:
    """`jobs` jobs of one host on each of `leaves` leaves; each sums `size_bytes` around a ring of
    its hosts, leaf by leaf, so that every leaf sends a flow of each job to the next one."""

    leaves: int
    spines: int
    jobs: int
    gbps: float
    size_bytes: int

    @property
    def link_bytes(self) -> float:
        """What an AllReduce puts on each link of its ring."""
        return 2 * (self.leaves - 1) / self.leaves * self.size_bytes

    @property
    def bound_s(self) -> float:
        """No AllReduce takes less: bytes over the rate of a link, less headers, and less the
        acknowledgements of as many connections as there are jobs, which may come over one link."""
        return self.link_bytes / (self.gbps * BYTES_PER_GBPS * paced_share(MTU, self.jobs))


@dataclass(frozen=True)
class PlacedJob:
    """A job that is wired; `folder` has what its ranks read."""

    hosts: tuple[str, ...]
    driver: JobOnClos
    plan: Plan
    wiring: Wiring
    folder: str

    @cached_property
    def flows(self) -> tuple[tuple[str, str], ...]:
        """(source, target) of its links, hosts by name."""
        links = self.plan.network.links
        return tuple((self.hosts[link.source], self.hosts[link.target]) for link in links)


class Progress:
    """Steps that ranks have done, seen by the benchmark while they run; times are those of
    time.monotonic()."""

    def __init__(self, processes: int) -> None:
        memory = multiprocessing.get_context("fork")
        self._ends = memory.RawArray("d", processes * _MOST_STEPS)
        self._counts = memory.RawArray("q", processes)
        self._stopping = memory.RawValue("b", 0)
        self._ended = threading.Event()

    def done(self, process: int, step: int) -> None:
        self._ends[process * _MOST_STEPS + step] = time.monotonic()
        self._counts[process] = step + 1

    def ends(self, process: int) -> tuple[float, ...]:
        begin = process * _MOST_STEPS
        return tuple(self._ends[begin : begin + self._counts[process]])

    @property
    def least(self) -> int:
        """Steps that every rank has done."""
        return min(self._counts)

    def wait_for(self, steps: int) -> None:
        """Returns when all ranks have done that many; raises RuntimeError if they end before."""
        self.wait(lambda: self.least >= steps)

    def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._ended.wait(_LOOK_S):
                raise RuntimeError("ranks have ended before their time")

    def stop(self) -> None:
        """Ranks end after one of the next steps, those of a job after the same."""
        self._stopping.value = 1

    @property
    def stopping(self) -> bool:
        return bool(self._stopping.value)

    def end(self) -> None:
        """Ranks have ended: nobody waits for them any longer."""
        self._ended.set()


@dataclass(frozen=True)
class JobTimes:
    """When each rank of a job had done each step."""

    ends: tuple[tuple[float, ...], ...]

    @cached_property
    def step_ends(self) -> tuple[float, ...]:
        """When the last rank had done each step."""
        return tuple(max(of_step) for of_step in zip(*self.ends, strict=True))

    @property
    def step_s(self) -> list[float]:
        """Of each step but the first, with which connections begin."""
        ends = self.step_ends
        return [after - before for before, after in itertools.pairwise(ends)]

    @property
    def median_s(self) -> float:
        return statistics.median(self.step_s)


class SharedClos:
    """The network with its jobs wired, from `shared_clos()`."""

    def __init__(self, shape: Shape, clos: EmulatedClos, jobs: Sequence[PlacedJob]) -> None:
        self.shape = shape
        self.clos = clos
        self.jobs = tuple(jobs)

    @property
    def hosts(self) -> list[str]:
        return [host for job in self.jobs for host in job.hosts]

    def flow(self, ends: tuple[str, str], source_port: int) -> ProbedFlow:
        return ProbedFlow(*ends, source_port, TCP_PORT)

    def targets(self) -> dict[str, list[str]]:
        """The hosts that each host sends to."""
        found: dict[str, list[str]] = {}
        for job in self.jobs:
            for source, target in job.flows:
                found.setdefault(source, []).append(target)
        return found

    def paths_taken(self) -> dict[tuple[str, str], tuple[str, ...] | None]:
        """(source, target) -> the path of the connection that a running job has between the two,
        by its source port and what switches do with it now."""
        flows = []
        for host, targets in self.targets().items():
            ports = netns_kernel.inside(self.clos.names.namespace(host), _connected)
            address_of = self.clos.names.host_address
            flows += [
                self.flow((host, target), port)
                for target in targets
                for address, port in ports
                if address == address_of(target)
            ]
        paths = kernel_paths(self.clos.names, flows)
        return {(f.source, f.target): path for f, path in zip(flows, paths, strict=True)}

    def run(
        self,
        jobs: Sequence[int],
        until: Callable[[Progress], None],
        environment: dict[str, str] | None = None,
    ) -> list[JobTimes]:
        """Some of the jobs at once, until `until`, which is called in a thread, has returned.

        All results are checked. Raises RankError, or what `until` raises.
        """
        ranks = self.shape.leaves
        progress = Progress(len(jobs) * ranks)
        start = multiprocessing.get_context("fork").Barrier(len(jobs) * ranks)

        def become(process: int) -> None:
            job = self.jobs[jobs[process // ranks]]
            rank = process % ranks
            _enter(job, rank, ranks, environment or {})
            _train(self.shape, rank, process, progress, start)

        errors: list[BaseException] = []

        def watch() -> None:
            try:
                until(progress)
            except BaseException as error:
                errors.append(error)
            finally:
                progress.stop()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            call_in_processes(len(jobs) * ranks, become, limit_s=_LIMIT_S)
        finally:
            progress.end()
            thread.join(_TIMEOUT_S)
        if errors:
            raise errors[0]
        return [
            JobTimes(tuple(progress.ends(j * ranks + rank) for rank in range(ranks)))
            for j in range(len(jobs))
        ]


@contextlib.contextmanager
def shared_clos(shape: Shape, seed: int) -> Iterator[SharedClos]:
    """Raises FabricError where this machine cannot emulate it."""
    file = leaf_spine_file(shape.leaves, shape.spines, shape.jobs, shape.gbps * 1e9)
    with (
        EmulatedClos(f"routes-{os.getpid()}", file, shape.gbps, seed=seed) as clos,
        tempfile.TemporaryDirectory(prefix="topoopt-routes-") as folder,
    ):
        jobs = []
        for number in range(shape.jobs):
            hosts = tuple(f"h{leaf * shape.jobs + number}" for leaf in range(shape.leaves))
            jobs.append(_place(shape, clos, hosts, f"{folder}/{number}"))
        yield SharedClos(shape, clos, jobs)


def _place(shape: Shape, clos: EmulatedClos, hosts: tuple[str, ...], folder: str) -> PlacedJob:
    driver = JobOnClos(clos, hosts, ways_back=shape.jobs)
    cluster = Cluster(shape.leaves, 1, shape.gbps, ports="simplex")
    demand = Demand((GroupDemand(tuple(range(shape.leaves)), shape.size_bytes),), ())
    plan = Plan.of_network(cluster, find_network(cluster, demand), demand, model="benchmark")
    sizes = (round(shape.link_bytes),) * len(plan.network.links)
    plan = replace(plan, prediction=replace(plan.prediction, link_bytes=sizes))
    wiring = driver.connect(plan)
    os.mkdir(folder)
    plan.save(f"{folder}/plan.json")
    wiring.save(f"{folder}/wiring.json")
    for server in range(shape.leaves):  # as enter_namespace expects them
        os.symlink(driver.namespace(server), f"{folder}/host{server}")
    return PlacedJob(hosts, driver, plan, wiring, folder)


def _enter(job: PlacedJob, rank: int, ranks: int, environment: dict[str, str]) -> None:
    """This process is a rank from now on, on its host; its messages go to a file of the job."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(ranks),
        MASTER_ADDR=job.driver.management_address(0),
        MASTER_PORT=str(_STORE_PORT),
        TOPOOPT_PLAN=f"{job.folder}/plan.json",
        TOPOOPT_WIRING=f"{job.folder}/wiring.json",
        TOPOOPT_RUN_DIR=job.folder,
        TOPOOPT_CONTROLLER_HOST=job.hosts[rank],
    )
    os.environ.update(environment)
    enter_namespace(f"1:{job.folder}/host")
    with open(f"{job.folder}/rank{rank}.log", "ab") as log:
        os.dup2(log.fileno(), _STDERR)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)


def _train(shape: Shape, rank: int, process: int, progress: Progress, start: Any) -> None:
    """AllReduces as a training step makes them, of values such that a wrong sum is found.

    The last of them says whether some rank wants to stop.
    """
    dist.init_process_group("topoopt", timeout=timedelta(seconds=_TIMEOUT_S))
    ranks = dist.get_world_size()
    values = torch.empty(shape.size_bytes // _ELEMENT_BYTES)
    dist.barrier()
    start.wait(_TIMEOUT_S)
    for step in range(_MOST_STEPS):
        values.fill_(rank + step)
        values[-1] = float(progress.stopping)
        dist.all_reduce(values)
        expected = ranks * (ranks - 1) // 2 + ranks * step
        if not bool((values[:-1] == expected).all()):
            raise ValueError(f"step {step}: the sum is not {expected}")
        progress.done(process, step)
        if values[-1] > 0:
            break
    start.wait(_TIMEOUT_S)  # no job has the links for itself before all have measured
    dist.destroy_process_group()


def _connected() -> list[tuple[str, int]]:
    """On a host: (address that a link leads to, source port) of the connections that are there."""
    found = []
    for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state = line.split()[:4]
        address, port = there.split(":")
        if state == _ESTABLISHED and int(port, 16) == TCP_PORT:
            plain = socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder))
            found.append((plain, int(here.split(":")[1], 16)))
    return found


def hold_to_ports(namespace: str, ports: range, allowed: Sequence[int]) -> None:
    """Connections of a host get source ports out of `allowed`, which are some of `ports`.

    The kernel chooses, as ever, but the others are reserved.
    """
    reserved = sorted(set(ports) - set(allowed))

    def write() -> None:
        ipv4 = Path("/proc/sys/net/ipv4")
        (ipv4 / "ip_local_port_range").write_text(f"{ports[0]} {ports[-1]}")
        (ipv4 / "ip_local_reserved_ports").write_text(",".join(map(str, reserved)) or "\n")

    netns_kernel.inside(namespace, write)
