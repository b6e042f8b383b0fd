"""TopoOpt: when each job's shard is wired, and when the job starts (TopoOpt paper, Appendix C).

Jobs get servers in the order of arrival, each the first free ones; none overtakes another. With
look-ahead a server has two sides of ports: the current job uses one, and the next shard is wired
behind the other, as soon as that side is unused. So a job waits for its servers and for a flip, and
for the robots only where they could not begin early enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.shared_networks.jobs_file import ClusterJob, PatchPanels


@dataclass(frozen=True)
class ShardTimes:
    """A job's servers are all free at `servers_s`; it runs from `start_s` to `end_s` (infinity: it
    never gets servers, or never ends)."""

    servers: tuple[int, ...]
    servers_s: float
    start_s: float
    end_s: float

    @property
    def reconfiguration_s(self) -> float:
        """How long the job's servers wait for its links."""
        return self.start_s - self.servers_s if self.start_s < math.inf else 0.0


def shard_schedule(
    jobs: Sequence[ClusterJob], iteration_s: Sequence[float], servers: int, panels: PatchPanels
) -> tuple[ShardTimes, ...]:
    """The times of `jobs`, which are in the order of arrival; an iteration of job j takes
    `iteration_s[j]`."""
    free_s = [0.0] * servers
    # when the side of a server's ports that its current job does not use becomes free
    side_free_s = [-math.inf] * servers
    used = [False] * servers
    schedule = []
    before_s = 0.0
    for job, seconds in zip(jobs, iteration_s, strict=True):
        chosen = sorted(range(servers), key=lambda server: (free_s[server], server))[: job.servers]
        servers_s = max(job.arrival_s, before_s, *(free_s[server] for server in chosen))
        before_s = servers_s
        start_s = servers_s + panels.patch_panel_s
        if panels.look_ahead and servers_s < math.inf:
            announced_s = (
                -math.inf if panels.announced_s is None else job.arrival_s - panels.announced_s
            )
            wiring_s = max(announced_s, *(side_free_s[server] for server in chosen))
            start_s = max(servers_s, wiring_s + panels.patch_panel_s) + panels.flip_s
        end_s = math.inf if job.iterations is None else start_s + job.iterations * seconds
        if start_s < math.inf:
            for server in chosen:
                if used[server]:
                    side_free_s[server] = start_s
                used[server] = True
                free_s[server] = end_s
        schedule.append(ShardTimes(tuple(sorted(chosen)), servers_s, start_s, end_s))
    return tuple(schedule)
