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
_CROSS = 999  # the hash seed of cross traffic, among those of jobs
_ENDLESS_BYTES = 1e30


@dataclass(frozen=True)
class SpineFailure:
    """Spine `spine` is dead from `at_s` on."""

    at_s: float
    spine: int


@dataclass(frozen=True)
class ReducedIteration:
    """One AllReduce of a job, that of its last ring to end. A flow is one host's bytes in one
    round; `completion_s` and `flow_gbps` are means over all flows. `exchange_s` is the time of the
    tensor and pipeline messages before it."""

    began_s: float
    all_reduce_s: float
    completion_s: float
    flow_gbps: float
    flows: int
    sent_bytes: float
    exchange_s: float = 0.0


@dataclass(frozen=True)
class ReducedJob:
    """The iterations of one job."""

    iterations: tuple[ReducedIteration, ...]

    def mean(self, name: str) -> float:
        """Over the iterations: of a field of `ReducedIteration`."""
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
    control_s: float = 0.0,
    cross_traffic: Sequence[tuple[int, int]] = (),
    seed: int = 0,
    clock: Callable[[], float] = time.process_time,
) -> SimulatedJobs:
    """Runs `iterations` iterations of every job. All links, those of hosts included, are shared
    max-min fairly, also with `cross_traffic`: (source, target) of flows that send all the time, on
    paths of ECMP.

    The scheme assigns all current flows again when messages or an AllReduce begin or end, and when
    a spine dies (section 5.3); flows under one ToR take no path. The new paths arrive after
    `control_s`; until then flows keep their paths, and those without a live one take ECMP's. ECMP
    is not called again: a flow has the same path in every iteration, until a spine dies.

    With `in_rounds` all hosts of a ring wait for each other after each of its 2 (n - 1) rounds;
    else a host sends all bytes at once. Two runs with the same arguments differ only in `scheme_s`,
    which `clock` measures.

    Raises ValueError for an unknown scheme, fewer than one iteration, a `control_s` below 0, a host
    that is unknown or has two jobs, and as the scheme does.
    """
    if isinstance(scheme, str) and scheme not in SCHEMES:
        raise ValueError(f"scheme: {scheme!r} is not one of {', '.join(SCHEMES)}")
    if iterations < 1:
        raise ValueError(f"iterations: {iterations} is not at least 1")
    if not 0 <= control_s < math.inf:
        raise ValueError(f"control_s: {control_s} is not a number from 0 on")
    _check_hosts(fabric, jobs, cross_traffic)
    run = _RoutedRun(fabric, jobs, scheme, iterations, in_rounds, seed, clock)
    run.control_s = control_s
    run.start_cross_traffic(cross_traffic)
    failures = list(failures)
    fabric.without([failure.spine for failure in failures])  # raises if that is impossible
    for failure in failures:
        run.schedule(failure.at_s, failure)
    return run.finish()


def _check_hosts(
    fabric: HostFabric, jobs: Sequence[RingJob], cross_traffic: Sequence[tuple[int, int]]
) -> None:
    for i, ends in enumerate(cross_traffic):
        if ends[0] == ends[1] or not all(0 <= end < fabric.hosts for end in ends):
            raise ValueError(
                f"cross_traffic[{i}]: {list(ends)} are not two of {fabric.hosts} hosts"
            )
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
    """A job, its hops ring by ring and those of its exchanges after them, the begin of its current
    messages or AllReduce, the unfinished transfers with their rings, and all of an AllReduce."""

    job: RingJob
    hops: list[tuple[tuple[int, int], ...]]
    began_s: float = 0.0
    exchange_s: float = 0.0
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
            _ReducingJob(
                job,
                [*map(hops_around, job.rings), *(ends for ends, _ in job.exchanges)],
            )
            for job in jobs
        ]
        self.control_s = 0.0
        self.paths: dict[Flow, tuple[int, ...]] = {}
        self.cross: list[tuple[int, tuple[int, int]]] = []
        self.transfers = _core.RingTransfers(fabric.capacity)
        self.dead: set[int] = set()
        self.known: dict[tuple[bool, tuple[Flow, ...]], dict[Flow, tuple[int, ...]]] = {}
        self.owner: dict[int, int] = {}  # transfer -> job
        self.events: list[tuple[float, int, SpineFailure | int | None]] = []
        self.count = itertools.count()
        self.scheme_s: list[float] = []
        self.scheme_flows: list[int] = []
        for i, job in enumerate(jobs):
            self.schedule(job.arrival_s + job.compute_s, i)

    def schedule(self, at_s: float, event: SpineFailure | int | None) -> None:
        """A failure, the end of a job's computing, or new paths from the controller (None)."""
        heapq.heappush(self.events, (at_s, next(self.count), event))

    def finish(self) -> SimulatedJobs:
        while any(len(one.done) < self.iterations for one in self.running):
            at_s = self.events[0][0] if self.events else math.inf
            ended = self.transfers.advance(at_s)
            changed = False
            for transfer in ended:
                changed |= self._end_ring(transfer)
            while self.events and self.events[0][0] <= self.transfers.now_s:
                changed |= self._handle(heapq.heappop(self.events)[2])
            if changed and self.control_s and not self.stays:
                self._fall_back()
                self.schedule(self.transfers.now_s + self.control_s, None)
            elif changed:
                self._assign()
        return SimulatedJobs(
            tuple(ReducedJob(tuple(one.done)) for one in self.running),
            tuple(self.scheme_s),
            tuple(self.scheme_flows),
        )

    def start_cross_traffic(self, cross_traffic: Sequence[tuple[int, int]]) -> None:
        for ends in cross_traffic:
            hops = [self.fabric.path(*ends, ())]  # until it has a path
            self.cross.append((self.transfers.start(hops, _ENDLESS_BYTES, 1), ends))
        self._route_cross_traffic()

    def _route_cross_traffic(self) -> None:
        tor_of, network = self.fabric.tor_of, self.fabric.without(self.dead)
        over = [(t, ends) for t, ends in self.cross if tor_of(ends[0]) != tor_of(ends[1])]
        flows = [SwitchedFlow(tor_of(a), tor_of(b)) for _, (a, b) in over]
        choice = SCHEMES[STAYS](RoutingProblem(network, flows), _SALT * self.seed + _CROSS)
        for (transfer, ends), flow, path in zip(over, flows, choice, strict=True):
            switches = network.paths(flow.source, flow.target)[path]
            self.transfers.reroute(transfer, [self.fabric.path(*ends, switches)])

    def _handle(self, event: SpineFailure | int | None) -> bool:
        """Whether flows have to get paths."""
        if event is None:
            self._assign()
            return False
        if isinstance(event, SpineFailure):
            self.dead.add(event.spine)
            self.known.clear()
            self._route_cross_traffic()
            return True
        one = self.running[event]
        one.began_s, one.exchange_s = self.transfers.now_s, 0.0
        exchanges = one.job.exchanges
        for number, (_, size_bytes) in enumerate(exchanges, len(one.hops) - len(exchanges)):
            self._start(event, number, size_bytes, 1)
        if not exchanges:
            self._reduce(event)
        return True

    def _reduce(self, index: int) -> None:
        """Begins the AllReduce of a job."""
        one = self.running[index]
        one.began_s = self.transfers.now_s
        rounds = one.job.rounds if self.in_rounds else 1
        size_bytes = one.job.round_bytes * one.job.rounds / rounds
        for number in range(one.job.model.parts):
            one.every.append(self._start(index, number, size_bytes, rounds))

    def _start(self, index: int, number: int, size_bytes: float, rounds: int) -> int:
        one = self.running[index]
        hops = [self.fabric.path(*ends, ()) for ends in one.hops[number]]  # until it has paths
        transfer = self.transfers.start(hops, size_bytes, rounds)
        one.rings[transfer] = number
        self.owner[transfer] = index
        return transfer

    def _end_ring(self, transfer: int) -> bool:
        """Whether it was the last transfer of its job, which then reduces or computes."""
        index = self.owner.pop(transfer)
        one = self.running[index]
        del one.rings[transfer]
        if one.rings:
            return False
        now_s = self.transfers.now_s
        if not one.every:  # these were the tensor and pipeline messages
            one.exchange_s = now_s - one.began_s
            self._reduce(index)
            return True
        sums = [self.transfers.ended_flows(ring) for ring in one.every]
        count, seconds, rates, sent_bytes = (math.fsum(of) for of in zip(*sums, strict=True))
        one.done.append(
            ReducedIteration(
                *(one.began_s, now_s - one.began_s, seconds / count, rates / count * 8e-9),
                *(int(count), sent_bytes, one.exchange_s),
            )
        )
        one.every.clear()
        if len(one.done) < self.iterations:
            self.schedule(now_s + one.job.compute_s, index)
        return True

    def _assign(self) -> None:
        """Assigns paths to all current flows."""
        if self.stays:
            for i, one in enumerate(self.running):
                if one.rings:
                    self.paths |= self._hashed(i)
        else:
            every = [self._flows(i, one.rings.values()) for i, one in enumerate(self.running)]
            self.paths |= self._choose(tuple(itertools.chain(*every)), self.seed)
        self._reroute()

    def _fall_back(self) -> None:
        """Flows without a live path take ECMP's."""
        for i, one in enumerate(self.running):
            for flow, path in self._hashed(i).items() if one.rings else ():
                known = self.paths.get(flow)
                if known is None or not self.dead.isdisjoint(s - self.fabric.tors for s in known):
                    self.paths[flow] = path
        self._reroute()

    def _reroute(self) -> None:
        for i, one in enumerate(self.running):
            for transfer, number in one.rings.items():
                hops = [
                    self.fabric.path(*ends, self.paths.get((i, number, hop), ()))
                    for hop, ends in enumerate(one.hops[number])
                ]
                self.transfers.reroute(transfer, hops)

    def _hashed(self, index: int) -> dict[Flow, tuple[int, ...]]:
        """ECMP's paths of all flows of a job."""
        flows = self._flows(index, range(len(self.running[index].hops)))
        return self._choose(tuple(flows), _SALT * self.seed + index, is_hashed=True)

    def _flows(self, index: int, rings: Iterable[int]) -> Iterable[Flow]:
        """The flows of a job's rings that leave their ToR."""
        hops = self.running[index].hops
        tor_of = self.fabric.tor_of
        for number in rings:
            for hop, (source, target) in enumerate(hops[number]):
                if tor_of(source) != tor_of(target):
                    yield index, number, hop

    def _choose(
        self, flows: tuple[Flow, ...], seed: int, *, is_hashed: bool = False
    ) -> dict[Flow, tuple[int, ...]]:
        """The switches on the path of every flow, by the scheme or hashed by ECMP."""
        key = is_hashed, flows
        if flows and key not in self.known:
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
            choice = (SCHEMES[STAYS] if is_hashed else self.scheme)(problem, seed)
            if self.stays or not is_hashed:
                self.scheme_s.append(self.clock() - began)
                self.scheme_flows.append(len(flows))
            self.known[key] = {
                flow: network.paths(one.source, one.target)[path]
                for flow, one, path in zip(flows, switched, choice, strict=True)
            }
        return self.known[key] if flows else {}
