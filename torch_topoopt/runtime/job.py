"""The jobs of this process: their ranks, their network, and the links between them.

Usually there is one job, of all ranks. The default process group opens it; if that is another
backend's, the first "topoopt" group does. It ends with the last of its groups or with the default
one. After a failure, the remaining processes may open another. Members of a group that no other
rank takes part in (use_local_synchronization) have a job of their own.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import weakref
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.discovery.discover import discover
from torch_topoopt.links.cable_keeper import CableKeeper
from torch_topoopt.links.rank_layout import (
    grid_of,
    group_routes,
    leader_grid,
    leader_rings,
    rank_routes,
    rings_of,
)
from torch_topoopt.links.rank_links import Timeouts, open_rank_links
from torch_topoopt.plan import IterationTimes, RankTraffic, RouteTable
from torch_topoopt.plan.units import counted
from torch_topoopt.runtime import controlled_routes
from torch_topoopt.runtime.circuits import circuit_client
from torch_topoopt.runtime.job_network import (
    Place,
    StoreMeeting,
    given_network,
    link_specs,
    meet_versions,
    session_cables,
)
from torch_topoopt.runtime.link_options import (
    connections_per_link,
    of_links,
    over_all_connections,
    requested_links,
)
from torch_topoopt.runtime.measuring import cost_of
from torch_topoopt.runtime.meters.iteration_meter import IterationMeter
from torch_topoopt.runtime.meters.step_log import StepLog
from torch_topoopt.runtime.meters.timeline_recorder import TimelineRecorder
from torch_topoopt.runtime.meters.work_meter import WorkMeter
from torch_topoopt.runtime.metrics import METRICS_VARIABLE, log_event
from torch_topoopt.runtime.rank_errors import ERRORS_VARIABLE
from torch_topoopt.runtime.session_types import GroupConfig
from torch_topoopt.runtime.supervised import supervise
from torch_topoopt.supervision.dumps import dump_of
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.recorded_timeline import TIMELINE_VARIABLE, parse_range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.links.identity import Identity
    from torch_topoopt.links.rank_layout import RankLayout
    from torch_topoopt.links.rank_links import JobNetwork, RankLinks
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import CostModel, Link, LinkTraffic, Plan
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.route_control.host.agent import RouteAgent

_WINDOW_BYTES = 4 << 20  # per flow in the network; see csrc/transport/endpoint/endpoint.h
_CONNECT_TIMEOUT_S = 60.0
_LONGEST_SILENCE_S = 86400

log = logging.getLogger("torch_topoopt")


@dataclass(eq=False)
class Job:
    """The state shared by the process groups of this process.

    Its ranks are numbered by their places in `place.ranks`; in a job of all ranks, these are
    torch.distributed's numbers.
    """

    plan: Plan
    wiring: Wiring
    layout: RankLayout
    place: Place
    life: int  # 1 for the first job in its store, 2 after a reopening, ...
    timeout: timedelta
    extension: Any  # _backend
    session: Any  # _backend.Session
    identity: Identity  # what its ranks have proven to each other
    cost: CostModel | None = None  # set when the job is open
    groups: dict[int, Any] = field(default_factory=dict)  # by channel; at least the open ones
    held: bool = False
    meter: IterationMeter | None = None
    work_meter: WorkMeter | None = None
    end_meter: Callable[[], None] | None = None
    end_supervision: Callable[[], None] = lambda: None
    keeper: CableKeeper | None = None
    agent: RouteAgent | None = None

    @cached_property
    def number_of(self) -> dict[int, int]:
        """Rank of torch.distributed -> rank in this job."""
        return {rank: number for number, rank in enumerate(self.place.ranks)}

    def group(self, ranks: Sequence[int]) -> GroupConfig:
        """The members, rings and routes of those ranks of torch.distributed."""
        numbers = [self.number_of[rank] for rank in ranks]
        servers = [self.layout.server_of[number] for number in numbers]
        rings = rings_of(self.plan, sorted(set(servers)), self._link_rates)
        config = GroupConfig(
            rank=numbers.index(self.place.index),
            ranks=numbers,
            servers=servers,
            rings=leader_rings(rings, self.layout, numbers),
            hops=self._hops,
        )
        forwarded = bool(self.wiring.forwarded)
        config.routes = group_routes(self.plan, servers, forwarded=forwarded)
        config.grid = leader_grid(grid_of(self.plan, servers), self.layout, numbers)
        if len(set(servers)) > 1:
            config.circuits = self._circuits
        return config

    def cost_for(self, ranks: Sequence[int]) -> CostModel | None:
        """The cost model of a group; one measured by all ranks applies to all of them only."""
        if self.cost is None or list(ranks) == list(self.place.ranks):
            return self.cost
        return replace(self.cost, all_reduce=())

    def why_circuits_stay(self, config: GroupConfig) -> str:
        """During the all-to-alls of a group, though they move for others; "" if they may move."""
        if self._circuits is None or len(set(config.servers)) == len(config.servers):
            return ""
        return "they move for groups with one rank on each of their servers"

    @cached_property
    def _circuits(self) -> Any:
        """The _backend.CircuitClient that all groups share; None where circuits stay."""
        return circuit_client(self.session, self.layout, self.place.index, self.place.ranks)

    @cached_property
    def _link_rates(self) -> dict[tuple[int, int], float]:
        return self.wiring.link_rates(self.plan)

    @cached_property
    def _hops(self) -> Any:
        """The _backend.HopTable of the plan's network, which all groups share."""
        routes, servers = self.plan.network.routes, self.plan.cluster.servers
        if not isinstance(routes, RouteTable):
            routes = RouteTable(servers, listed=routes)
        return self.extension.HopTable(
            servers, self.plan.network.links, routes.by_offset, routes.next_hops, routes.listed
        )

    def hold(self) -> None:
        """Keeps the job open until leave(), regardless of its groups."""
        self.session.hold()
        self.held = True

    def let_go(self, *, aborted: bool) -> None:
        """Ends hold(); the job ends if it has no groups."""
        if self.held:
            self.held = False
            if aborted:
                self.session.release_aborted("the default process group was aborted")
            else:
                self.session.release(self.timeout)

    def leave(self) -> None:
        """Shuts all groups down, and waits until all ranks have done so."""
        for group in self.groups.values():
            group.shutdown()
        self.let_go(aborted=False)

    def calls_under_way(self) -> str:
        """This rank's operations in progress, for a warning; "" if there are none, or none are
        recorded."""
        recorded = bytes(self.session.recorded_operations())
        calls = dump_of(recorded).calls if recorded else ()
        pending = [call for call in calls if call.unfinished and not call.failed]
        if not pending:
            return ""
        return (
            f"while {counted(len(pending), 'operation')} of its own, {pending[0]} first, "
            f"{'is' if len(pending) == 1 else 'are'} under way; wait() for the work of each call "
            "before the script ends"
        )

    def links(self) -> list[LinkTraffic]:
        """The bytes that this rank has sent over its links so far."""
        return of_links(self.session.link_traffic())


jobs: list[Job] = []  # the open ones, and the last one that was open
_server: int | None = None  # of this process under the plan, once known


def job_of(ranks: Sequence[int]) -> Job | None:
    """The open job for a group of those ranks: the same one on all of them.

    It is the job of all ranks, or of exactly these, whose members do not know each other's groups.
    """
    for job in jobs:
        if job.place.separate:
            continue
        everybody = len(job.place.ranks) == job.place.world_size
        if not job.session.closed and (everybody or set(job.place.ranks) == set(ranks)):
            return job
    return None


def job_with(group: Any) -> Job:
    """The job that `group` was opened in."""
    return next(job for job in jobs if any(other is group for other in job.groups.values()))


def let_go(aborted: bool) -> None:
    """Ends the jobs that were held for the default process group, which has ended."""
    for job in jobs:
        job.let_go(aborted=aborted)


def end_past_jobs(why: str) -> None:
    """Fails jobs that are still open, because their default group has ended."""
    for job in jobs:
        if not (job.place.separate or job.session.closed or job.session.inherited):
            job.session.fail(why)


def open_job(extension: Any, place: Place, store: Any, timeout: timedelta) -> Job:
    """Meets the other ranks in `store`, finds the network and opens this rank's links.

    Raises FabricError or DocumentError, and then leaves nothing open.
    """
    limit, requested = silence_limit(), requested_links(extension)
    meet_s = timeout.total_seconds()
    deadline, meeting = time.monotonic() + meet_s, StoreMeeting(store, place.index)
    place = replace(place, server=_server)
    version = meet_versions(meeting, place, deadline, requested=requested)
    network = _network_of(meeting, place, deadline)
    per_link = connections_per_link(requested, network.wiring)
    agent = controlled_routes.started_agent(network, place, meeting.life)
    with controlled_routes.closed_on_failure(agent):
        timeouts = Timeouts(meet_s, min(meet_s, _CONNECT_TIMEOUT_S))
        links = open_rank_links(network, place.index, meeting, timeouts, version, agent, per_link)
    opened: list[weakref.ref[Job]] = []  # weak, since the session is part of its job
    plan, layout = network.plan, network.layout
    server, relayed = layout.server_of[place.index], bool(network.wiring.forwarded)
    recorder, supervision, end_supervision = supervise(extension, place, server)
    routes = rank_routes(plan.network, layout, place.index, forwarded=relayed)
    session = extension.Session(
        rank=place.index,
        size=len(place.ranks),
        links=link_specs(extension, links, network, place.index, requested),
        routes=over_all_connections(routes, per_link),
        window_bytes=_WINDOW_BYTES,
        closed=lambda why: _on_closed(opened[0]() if opened else None, why),
        recorder=recorder,
        supervision=supervision,
        cables=session_cables(network, per_link),
        servers=list(layout.server_of),
        silence_limit=limit,
        workers=requested.reduce_threads,
    )
    job = Job(
        plan=plan,
        wiring=network.wiring,
        layout=layout,
        place=place,
        life=meeting.life,
        timeout=timeout,
        extension=extension,
        session=session,
        identity=links.identity,
        agent=agent,
        end_supervision=end_supervision,
    )
    job.keeper = _keeper_of(job, links, encrypted=requested.encrypted)
    controlled_routes.follow(agent, network, session, job.keeper)
    opened.append(weakref.ref(job))
    try:
        job.cost = cost_of(plan, session, job.group(place.ranks), timeout, meeting)
    except BaseException as error:
        session.fail(f"{type(error).__name__}: {error}")
        raise
    jobs[:] = [*(other for other in jobs if not other.session.closed), job]
    if "TOPOOPT_RUN_DIR" in os.environ:
        _install_meter(job)
    return job


def _network_of(meeting: StoreMeeting, place: Place, deadline: float) -> JobNetwork:
    """The planned network, else the one that the ranks discover."""
    global _server
    network = given_network(meeting, place, deadline)
    if network is None:
        return discover(meeting, place.index, len(place.ranks), deadline)
    _server = network.layout.server_of[place.index]
    return network


def _install_meter(job: Job) -> None:
    known = weakref.ref(job)  # weak, so that the meter does not keep a past job's links open
    steps = StepLog(log_event) if _logs_steps(job.place) else None
    timeline = _timeline_recorder(job, known)
    work = job.work_meter = _work_meter(job)

    def ended(number: int) -> None:
        work.ended(number)
        if steps is not None:
            steps.ended(number)
        if timeline is not None:
            timeline.ended(number)

    job.meter = IterationMeter(
        lambda: _begin_iteration(known()),
        lambda first, count: _iteration_bytes(known(), first, count),
        ended=ended,
    )
    end_meter = job.meter.install()
    end_steps = steps.watch_backward() if steps is not None else lambda: None

    def end() -> None:
        if timeline is not None:
            timeline.close()
        work.close()
        end_steps()
        end_meter()

    job.end_meter = end


def _work_meter(job: Job) -> WorkMeter:
    """The meter of a job of all ranks, with a file for observers."""
    index, everybody = job.place.index, len(job.place.ranks) == job.place.world_size
    rank = job.place.ranks[index]
    folder = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"]).absolute())
    return WorkMeter(rank, job.layout.server_of[index], folder.pace(rank) if everybody else None)


def _timeline_recorder(job: Job, known: weakref.ReferenceType[Job]) -> TimelineRecorder | None:
    """If `topoopt run --timeline` asks for it; raises ValueError."""
    text = os.environ.get(TIMELINE_VARIABLE)
    if not text or len(job.place.ranks) < job.place.world_size:
        return None

    def links() -> list[LinkTraffic]:
        now = known()
        return now.links() if now is not None else []

    def operations() -> bytes:
        now = known()
        return bytes(now.session.recorded_operations()) if now is not None else b""

    rank = job.place.index
    return TimelineRecorder(
        job.place.ranks[rank],
        job.layout.server_of[rank],
        parse_range(text),
        links,
        operations,
        os.environ["TOPOOPT_RUN_DIR"],
    )


def _logs_steps(place: Place) -> bool:
    """One rank for all: the first, in a job of all ranks under `topoopt run`."""
    everybody = len(place.ranks) == place.world_size
    return everybody and place.index == 0 and METRICS_VARIABLE in os.environ


def _keeper_of(job: Job, links: RankLinks, *, encrypted: bool) -> CableKeeper | None:
    """Reopens this rank's lost cables, if it has any."""
    if not links.planned:
        links.ports.close()
        return None
    return CableKeeper(
        links.identity,
        links.ports,
        job.plan,
        job.session,
        encrypted=encrypted,
        watcher=job.agent,
    )


def silence_limit() -> timedelta:
    """How long a rank may be silent (TOPOOPT_SILENCE_LIMIT_S); raises ValueError."""
    text = os.environ.get("TOPOOPT_SILENCE_LIMIT_S", "20")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= _LONGEST_SILENCE_S:
        raise ValueError(
            f"TOPOOPT_SILENCE_LIMIT_S: {text!r} is not a number of seconds in "
            f"1..{_LONGEST_SILENCE_S}"
        )
    return timedelta(seconds=seconds)


def _begin_iteration(job: Job | None) -> int:
    return int(job.session.begin_iteration()) if job is not None else 0


def _iteration_bytes(job: Job | None, first: int, count: int) -> tuple[list[int], list[list[int]]]:
    """Bytes of this rank's own messages, and of the planned links, in order."""
    if job is None:
        return [0] * count, []
    own, of_connections = job.session.iteration_bytes(first, count)
    sums: dict[Link, list[int]] = {}
    for traffic, sent in zip(job.session.link_traffic(), of_connections, strict=True):
        if traffic.source_port >= 0:
            before = sums.get(traffic.link, [0] * count)
            sums[traffic.link] = [a + b for a, b in zip(before, sent, strict=True)]
    return own, list(sums.values())


# ---- files at the end ----------------------------------------------------------------------------


class _Record:
    """The file with this process's bytes on the planned links, in all its jobs."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._links: dict[Link, LinkTraffic] = {}
        self._iterations: IterationTimes | None = None
        self._work: RankWork | None = None
        self._ended = 0

    def add(self, job: Job, run_dir: str) -> None:
        if self._rank is None:  # keep the first, since a later job may renumber ranks
            self._rank = job.place.ranks[job.place.index]
        planned = [traffic for traffic in job.links() if traffic.source_port >= 0]
        for traffic in planned:
            before = self._links.get(traffic.link)
            self._links[traffic.link] = traffic if before is None else before + traffic
        seen = job.meter.result() if job.meter is not None else None
        if seen is not None and job.meter is not None:
            self._iterations = IterationTimes(seen.count, seen.seconds, job.meter.first_ended_s)
            sizes = dict(zip((t.link for t in planned), seen.link_bytes, strict=True))
            for link, traffic in self._links.items():
                self._links[link] = replace(traffic, iteration_bytes=sizes.get(link))
        if job.meter is not None:
            self._ended += job.meter.ended_count
        if job.work_meter is not None:
            recorded = bytes(job.session.recorded_operations())
            self._work = job.work_meter.result(dump_of(recorded) if recorded else None)
        server = job.layout.server_of[job.place.index]
        links = tuple(self._links.values())
        document = RankTraffic(
            RankTraffic.VERSION,
            self._rank,
            server,
            links,
            self._iterations,
            self._work,
            self._ended,
        )
        document.save(Path(run_dir) / f"links-rank{self._rank}.json")


_record = _Record()


def _on_closed(job: Job | None, why: str) -> None:
    if job is None:
        return
    if why:
        # `topoopt run` and the traceback report it, too
        said = ERRORS_VARIABLE in os.environ or getattr(sys, "last_value", None) is not None
        level = logging.INFO if said else logging.WARNING
        log.log(level, "rank %d: aborted: %s", job.place.index, why)
    try:
        if run_dir := os.environ.get("TOPOOPT_RUN_DIR"):
            _record.add(job, run_dir)
    except OSError as error:  # training is over; the launcher warns where its folder is broken
        log.info("the bytes of the links cannot be noted: %s", error)
    finally:
        if job.agent is not None:
            job.agent.close()
        if job.keeper is not None:
            job.keeper.close()
        if job.end_meter is not None:
            job.end_meter()
        job.end_supervision()
