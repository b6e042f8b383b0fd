"""The prospects of a job if it were submitted now: for `topoopt cluster submit --dry-run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.tools.queue import jobs as j
from torch_topoopt.tools.queue.mesh_places import MeshPlaces
from torch_topoopt.tools.queue.partition import lay_out, ports_needed, sides_of
from torch_topoopt.tools.queue.scheduler import Waiting, assign, holdings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.plan import Plan
    from torch_topoopt.tools.queue.jobs import JobLayout, QueuedJob

_NEW = 0  # no job of the database has this number


@dataclass(frozen=True)
class Foresight:
    """`layout` is None (unknown) while jobs before it in the queue have no servers either.

    `after`: the jobs that have to leave its servers first. `ahead`: jobs in the queue before it.
    """

    layout: JobLayout | None
    after: tuple[int, ...]
    ahead: int


def foresee(plan: Plan, cluster: ClusterFile, jobs: Sequence[QueuedJob]) -> Foresight:
    """The servers and the start of `plan`, given the jobs that are not over."""
    queue = [Waiting(job.id, job.servers, job.ports) for job in jobs if job.state == j.QUEUED]
    holdings = holdings_of(jobs)
    new = Waiting(_NEW, plan.cluster.servers, ports_needed(plan))
    mesh = MeshPlaces.of(cluster)
    choose = None if mesh is None else mesh.choose
    found = assign(sides_of(cluster), holdings, [*queue, new], choose)
    mine = next((a for a in found if a.job == _NEW), None)
    if mine is None:
        return Foresight(None, (), len(queue))
    servers = set(mine.servers)
    before = {h.job for h in holdings if not h.leaving and h.servers & servers}
    before |= {a.job for a in found if a.job != _NEW and servers & set(a.servers)}
    layout = lay_out(plan, cluster, mine.servers, mine.side)
    return Foresight(layout, tuple(sorted(before)), len(queue))
