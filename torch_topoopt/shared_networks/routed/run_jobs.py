"""Jobs on a fabric, iteration by iteration, each flow on the path that a scheme gives it."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan.network import hops_around
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.shared_networks.routed.host_fabric import HostFabric
    from torch_topoopt.shared_networks.routed.ring_jobs import RingJob

    Scheme = Callable[[RoutingProblem, int], list[int]]

STAYS = "ecmp"  # the scheme whose flows keep their path, regardless of other flows
_SALT = 1000  # separates the hash seeds of jobs in different runs


@dataclass(frozen=True)
class SpineFailure:
    """Spine `spine` is dead from `at_s` on."""

    at_s: float
    spine: int


@dataclass(frozen=True)
class ReducedIteration:
    """One AllReduce of a job, that of its last ring to end. A flow is one host's bytes in one
    round; `completion_s` and `flow_gbps` are means over all flows."""

    began_s: float
    all_reduce_s: float
    completion_s: float
    flow_gbps: float
    flows: int
    sent_bytes: float


@dataclass(frozen=True)
class ReducedJob:
    """The iterations of one job."""

    iterations: tuple[ReducedIteration, ...]

    def mean(self, name: str) -> float:
        """Over the iterations: of "all_reduce_s", "completion_s" or "flow_gbps"."""
        return fmean(getattr(iteration, name) for iteration in self.iterations)


@dataclass(frozen=True)
class SimulatedJobs:
    """In the order of the jobs. `scheme_s` are the seconds of each call of the scheme, and
    `scheme_flows` its numbers of flows."""

    jobs: tuple[ReducedJob, ...]
    scheme_s: tuple[float, ...]
    scheme_flows: tuple[int, ...]


# parameters: the fabric, the jobs, the scheme, and the events
def run_jobs(
    fabric: HostFabric,
    jobs: Sequence[RingJob],
    scheme: str | Scheme,
    *,
    iterations: int = 10,
    failures: Iterable[SpineFailure] = (),
    in_rounds: bool = True,
    seed: int = 0,
    clock: Callable[[], float] = time.process_time,
) -> SimulatedJobs:
    """Runs `iterations` iterations of every job. All links, those of hosts included, are shared
    max-min fairly.

    The scheme assigns all current flows again when an AllReduce begins or ends, and when a spine
    dies (section 5.3); flows under one ToR take no path. ECMP is not called again: a flow has the
    same path in every iteration, until a spine dies. With `in_rounds` all hosts of a ring wait for
    each other after each of its 2 (n - 1) rounds; else a host sends all bytes at once. Two runs
    with the same arguments differ only in `scheme_s`, which `clock` measures.

    Raises ValueError for an unknown scheme, fewer than one iteration, a host that is unknown or has
    two jobs, and as the scheme does.
    """
    if isinstance(scheme, str) and scheme not in SCHEMES:
        raise ValueError(f"scheme: {scheme!r} is not one of {', '.join(SCHEMES)}")
    if iterations < 1:
        raise ValueError(f"iterations: {iterations} is not at least 1")
    _check_hosts(fabric, jobs)
    run = _RoutedRun(fabric, jobs, scheme, iterations, in_rounds, seed, clock)
    failures = list(failures)
    fabric.without([failure.spine for failure in failures])  # raises if that is impossible
    for failure in failures:
        run.schedule(failure.at_s, failure)
    return run.finish()


def _check_hosts(fabric: HostFabric, jobs: Sequence[RingJob]) -> None:
    taken: set[int] = set()
    for i, job in enumerate(jobs):
        for host in itertools.chain(*job.copies):
            if not 0 <= host < fabric.hosts:
                raise ValueError(f"jobs[{i}]: host {host} is not one of {fabric.hosts}")
            if host in taken:
                raise ValueError(f"jobs[{i}]: host {host} is taken already")
            taken.add(host)


@dataclass
class _ReducingJob:
    """A job, its hops ring by ring, the begin of its current AllReduce, the unfinished transfers
    with their rings, and all transfers."""

    job: RingJob
    hops: list[tuple[tuple[int, int], ...]]
    began_s: float = 0.0
    rings: dict[int, int] = field(default_factory=dict)
    every: list[int] = field(default_factory=list)
    done: list[ReducedIteration] = field(default_factory=list)


Flow = tuple[int, int, int]  # job, ring, hop


class _RoutedRun:
    # parameters: those of run_jobs
    def __init__(
        self,
        fabric: HostFabric,
        jobs: Sequence[RingJob],
        scheme: str | Scheme,
        iterations: int,
        in_rounds: bool,
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        self.fabric = fabric
        self.scheme = SCHEMES[scheme] if isinstance(scheme, str) else scheme
        self.stays = scheme == STAYS
        self.iterations, self.in_rounds, self.seed, self.clock = iterations, in_rounds, seed, clock
        self.running = [
            _ReducingJob(job, [hops_around(ring) for ring in job.rings]) for job in jobs
        ]
        self.transfers = _core.RingTransfers(fabric.capacity)
        self.dead: set[int] = set()
        self.known: dict[tuple[Flow, ...], dict[Flow, tuple[int, ...]]] = {}
        self.owner: dict[int, int] = {}  # transfer -> job
        self.events: list[tuple[float, int, SpineFailure | int]] = []
        self.count = itertools.count()
        self.scheme_s: list[float] = []
        self.scheme_flows: list[int] = []
        for i, job in enumerate(jobs):
            self.schedule(job.arrival_s + job.compute_s, i)

    def schedule(self, at_s: float, event: SpineFailure | int) -> None:
        """A failure, or the begin of a job's AllReduce."""
        heapq.heappush(self.events, (at_s, next(self.count), event))

    def finish(self) -> SimulatedJobs:
        while any(len(one.done) < self.iterations for one in self.running):
            at_s = self.events[0][0] if self.events else math.inf
            ended = self.transfers.advance(at_s)
            changed = False
            for transfer in ended:
                changed |= self._end_ring(transfer)
            while self.events and self.events[0][0] <= self.transfers.now_s:
                self._handle(heapq.heappop(self.events)[2])
                changed = True
            if changed:
                self._assign()
        return SimulatedJobs(
            tuple(ReducedJob(tuple(one.done)) for one in self.running),
            tuple(self.scheme_s),
            tuple(self.scheme_flows),
        )

    def _handle(self, event: SpineFailure | int) -> None:
        if isinstance(event, SpineFailure):
            self.dead.add(event.spine)
            self.known.clear()
            return
        one = self.running[event]
        one.began_s = self.transfers.now_s
        rounds = one.job.rounds if self.in_rounds else 1
        size_bytes = one.job.round_bytes * one.job.rounds / rounds
        for number, hops_of in enumerate(one.hops):
            hops = [self.fabric.path(*ends, ()) for ends in hops_of]  # until _assign
            transfer = self.transfers.start(hops, size_bytes, rounds)
            one.rings[transfer] = number
            one.every.append(transfer)
            self.owner[transfer] = event

    def _end_ring(self, transfer: int) -> bool:
        """Whether it was the last transfer of its job, which then computes."""
        index = self.owner.pop(transfer)
        one = self.running[index]
        del one.rings[transfer]
        if one.rings:
            return False
        sums = [self.transfers.ended_flows(ring) for ring in one.every]
        count, seconds, rates, sent_bytes = (math.fsum(of) for of in zip(*sums, strict=True))
        now_s = self.transfers.now_s
        one.done.append(
            ReducedIteration(
                *(one.began_s, now_s - one.began_s, seconds / count, rates / count * 8e-9),
                *(int(count), sent_bytes),
            )
        )
        one.every.clear()
        if len(one.done) < self.iterations:
            self.schedule(now_s + one.job.compute_s, index)
        return True

    def _assign(self) -> None:
        """Assigns paths to all current flows."""
        paths: dict[Flow, tuple[int, ...]] = {}
        if self.stays:
            for i, one in enumerate(self.running):
                if one.rings:
                    flows = self._flows(i, range(len(one.hops)))
                    paths |= self._choose(tuple(flows), _SALT * self.seed + i)
        else:
            every = [self._flows(i, one.rings.values()) for i, one in enumerate(self.running)]
            paths = self._choose(tuple(itertools.chain(*every)), self.seed)
        for i, one in enumerate(self.running):
            for transfer, number in one.rings.items():
                hops = [
                    self.fabric.path(*ends, paths.get((i, number, hop), ()))
                    for hop, ends in enumerate(one.hops[number])
                ]
                self.transfers.reroute(transfer, hops)

    def _flows(self, index: int, rings: Iterable[int]) -> Iterable[Flow]:
        """The flows of a job's rings that leave their ToR."""
        hops = self.running[index].hops
        tor_of = self.fabric.tor_of
        for number in rings:
            for hop, (source, target) in enumerate(hops[number]):
                if tor_of(source) != tor_of(target):
                    yield index, number, hop

    def _choose(self, flows: tuple[Flow, ...], seed: int) -> dict[Flow, tuple[int, ...]]:
        """The switches on the path of every flow."""
        if flows and flows not in self.known:
            ends = [self.running[i].hops[ring][hop] for i, ring, hop in flows]
            tor_of = self.fabric.tor_of
            switched = [
                SwitchedFlow(tor_of(source), tor_of(target), job=flow[0])
                for flow, (source, target) in zip(flows, ends, strict=True)
            ]
            network = self.fabric.without(self.dead)
            problem = RoutingProblem(network, switched)
            problem.prepare()
            began = self.clock()
            choice = self.scheme(problem, seed)
            self.scheme_s.append(self.clock() - began)
            self.scheme_flows.append(len(flows))
            self.known[flows] = {
                flow: network.paths(one.source, one.target)[path]
                for flow, one, path in zip(flows, switched, choice, strict=True)
            }
        return self.known[flows] if flows else {}
