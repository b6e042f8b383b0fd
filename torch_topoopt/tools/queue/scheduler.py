"""Assigns servers to jobs: pure functions from (servers, jobs that hold some, queue).

A server with 1x2 switches has two sides, and each can hold one job: the one that runs (or is about
to) on one side, the next one on the other, prepared while the first runs (paper, Appendix C). All
servers of a job use the same side, since the two sides may be on different switches.

Jobs get their servers, even busy ones, strictly in the order of submission; a job that does not fit
yet blocks all later ones. After that each waits only for earlier jobs on its own servers, so a
small job on idle servers starts while a large one ahead waits for busy ones. There is no other
backfilling: run times are unknown, so an overtaking job could delay another for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.switches.selector import SIDES
from torch_topoopt.tools.queue.jobs import CLEARING, FINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch_topoopt.fabric.switches.selector import Side
    from torch_topoopt.tools.queue.jobs import QueuedJob


if TYPE_CHECKING:
    Choose = Callable[[Collection[str], int], Collection[str] | None]


@dataclass(frozen=True)
class ServerSides:
    """A server, and how many of its ports have a socket on each side."""

    name: str
    ports: Mapping[Side, int]


@dataclass(frozen=True)
class Waiting:
    """A job of the queue: how many servers, with how many ports each."""

    job: int
    servers: int
    ports: int


@dataclass(frozen=True)
class Holding:
    """A job that has servers. `leaving`: only its circuits remain to be removed."""

    job: int
    order: int
    servers: frozenset[str]
    side: Side
    leaving: bool


@dataclass(frozen=True)
class Assignment:
    """Servers in the order of the cluster."""

    job: int
    servers: tuple[str, ...]
    side: Side


def holdings_of(jobs: Iterable[QueuedJob]) -> list[Holding]:
    """The jobs that have servers."""
    return [
        Holding(
            job.id,
            job.order or 0,
            frozenset(job.layout.servers),
            job.layout.side,
            job.state == CLEARING,
        )
        for job in jobs
        if job.layout is not None and job.state not in FINAL
    ]


def assign(
    servers: Sequence[ServerSides],
    holding: Iterable[Holding],
    queue: Iterable[Waiting],
    choose: Choose | None = None,
) -> list[Assignment]:
    """The assignments that can be made now, in the order of `queue`.

    `choose` picks a number of servers from the candidates if not every set is valid.
    """
    held = {(server, h.side): h for h in holding for server in h.servers}
    assignments = []
    order = max((h.order for h in held.values()), default=0)
    for waiting in queue:
        found = _place(servers, held, waiting, choose)
        if found is None:
            break
        order += 1
        assignments.append(found)
        taken = Holding(waiting.job, order, frozenset(found.servers), found.side, False)
        held.update({(server, found.side): taken for server in found.servers})
    return assignments


def may_start(job: Holding, holding: Iterable[Holding]) -> bool:
    """Whether no earlier job still needs one of its servers."""
    return not any(
        other.order < job.order and not other.leaving and other.servers & job.servers
        for other in holding
        if other.job != job.job
    )


def fits(
    servers: Sequence[ServerSides], waiting: Waiting, choose: Choose | None = None
) -> Assignment | None:
    """Its servers on an empty cluster; None: it can never run."""
    return _place(servers, {}, waiting, choose)


def _place(
    servers: Sequence[ServerSides],
    held: Mapping[tuple[str, Side], Holding],
    waiting: Waiting,
    choose: Choose | None,
) -> Assignment | None:
    """The side and servers with the fewest and oldest jobs to wait for."""
    best: tuple[tuple[int, int], Assignment] | None = None
    for side in SIDES:
        ahead: dict[str, int] = {}  # server -> order of the job to wait for; 0: idle
        for server in servers:
            if (server.name, side) in held or server.ports.get(side, 0) < max(1, waiting.ports):
                continue
            other = held.get((server.name, SIDES[1 - SIDES.index(side)]))
            ahead[server.name] = 0 if other is None or other.leaving else other.order
        if len(ahead) < waiting.servers:
            continue
        chosen: Collection[str] | None = sorted(ahead, key=ahead.__getitem__)[: waiting.servers]
        if choose is not None:
            chosen = choose(ahead, waiting.servers)
        if chosen is None:
            continue
        busy = {ahead[name] for name in chosen} - {0}
        cost = (len(busy), max(busy, default=0))
        if best is None or cost < best[0]:
            inside = tuple(s.name for s in servers if s.name in chosen)
            best = (cost, Assignment(waiting.job, inside, side))
    return best[1] if best else None
