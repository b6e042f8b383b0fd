"""Servers that come to a running job of --nnodes MIN:MAX.

As in torchrun, the ranks are stopped, and start again on all servers from their own checkpoint.
This needs no failure, so it uses up no restart. The plan for more servers is made while the ranks
still train. Servers are numbered as at MAX: those of the whole cluster file, or all emulated ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.rendezvous.cluster_site import difference
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.plan import Plan
    from torch_topoopt.supervision.job_files import JobFolder

_LOOK_S = 0.5


@dataclass(frozen=True)
class Growth:
    """Servers that `came` to a job, which then had `servers` and stopped for `stopped_s`.

    `error` is the reason why they were not taken in, or "".
    """

    came: tuple[int, ...]
    servers: int
    plan_digest: str
    stopped_s: float
    error: str = ""
    JSON_FIELDS: ClassVar = ("came_servers=came", "servers", "plan_digest", "stopped_s", "error")


@dataclass(frozen=True)
class PlannedGrowth:
    """The next attempt, on `members`, of which some `came`; made while the ranks train.

    On other hosts than server 0 there is no plan yet. `folder` has the documents of the plan.
    """

    members: tuple[int, ...]
    came: tuple[int, ...]
    options: RunOptions | None = None
    plan: Plan | None = None
    folder: Path | None = None


class Arrivals(Protocol):
    """The servers that have come and are not in the job."""

    def waiting(self) -> tuple[int, ...]:
        """Their numbers."""
        ...

    def confirmed(self, servers: Sequence[int]) -> tuple[int, ...]:
        """Those of `servers` that still wait."""
        ...

    def postpone(self, servers: Sequence[int], reason: str) -> None:
        """They are taken in later."""
        ...

    def refuse(self, servers: Sequence[int], reason: str) -> None:
        """The job cannot have them as it is."""
        ...

    def accept(self, servers: Sequence[int]) -> None:
        """They are in the next attempt."""
        ...


class EmulatedArrivals:
    """Each file in a folder of the run is an emulated server that came: the first of `absent`."""

    def __init__(self, job: JobFolder, absent: Sequence[int]) -> None:
        self._folder = job.arrivals
        self._absent = tuple(absent)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def waiting(self) -> tuple[int, ...]:
        """Servers without a place are turned away."""
        count = len(list(self._folder.iterdir()))
        if count > len(self._absent):
            self._remove(count - len(self._absent))
            console.warning(
                "a server has come, but all servers of --nnodes MIN:MAX are in the job; it goes on "
                "as it is"
            )
        return self._absent[:count]

    def confirmed(self, servers: Sequence[int]) -> tuple[int, ...]:
        """All: they do not go away."""
        return tuple(servers)

    def accept(self, servers: Sequence[int]) -> None:
        """Their files are not needed any longer."""
        self._remove(len(servers))

    def postpone(self, servers: Sequence[int], reason: str) -> None:
        """Their files stay."""

    def refuse(self, servers: Sequence[int], reason: str) -> None:
        """They have to come again."""
        self._remove(len(servers))

    def _remove(self, count: int) -> None:
        for file in sorted(self._folder.iterdir())[:count]:
            file.unlink(missing_ok=True)


class HostArrivals:
    """Hosts at the door of server 0's store; this is server 0."""

    def __init__(self, site: ClusterSite) -> None:
        assert site.door is not None
        self._site = site
        self._door = site.door

    def waiting(self) -> tuple[int, ...]:
        """Hosts with another cluster file or version are refused."""
        site, came = self._site, []
        for server, facts in self._door.waiting(site.absent).items():
            if problem := difference(site.facts(), facts):
                error = f"{site.whole.describe(server)} {problem}"
                console.warning(f"{error}; the job goes on without it")
                self._door.refuse([server], error)
            else:
                came.append(server)
        return tuple(came)

    def confirmed(self, servers: Sequence[int]) -> tuple[int, ...]:
        """Those whose launchers answer."""
        return tuple(self._door.still_waiting(servers))

    def postpone(self, servers: Sequence[int], reason: str) -> None:
        """They wait, until their --meet-timeout at most."""
        self._door.postpone(servers, reason)

    def refuse(self, servers: Sequence[int], reason: str) -> None:
        """They wait, too: another host may join them with the job."""
        self._door.postpone(servers, reason)

    def accept(self, servers: Sequence[int]) -> None:
        """`ClusterSite.regroup` answers them, once all ranks are stopped."""


class GrowthWatch:
    """Looks for servers that come while ranks train, from `interval_s` after their start on."""

    def __init__(
        self,
        arrivals: Arrivals,
        interval_s: float,
        prepare: Callable[[Sequence[int]], PlannedGrowth],
        refuse: Callable[[Sequence[int], str], None],
        names: Callable[[Sequence[int]], str],
    ) -> None:
        """`prepare` plans for the job with these servers, or raises why they cannot be taken in.
        `refuse` gets such a reason, `names` is for lines of output."""
        self._arrivals = arrivals
        self._interval_s = interval_s
        self._prepare = prepare
        self._refuse = refuse
        self._names = names
        self._begun_s = self._looked_s = time.monotonic()
        self._noted: tuple[int, ...] = ()
        self._turned_away: tuple[int, ...] = ()
        self.planned: PlannedGrowth | None = None

    def look(self) -> bool:
        """Whether the ranks are to be stopped now; then `planned` has the next attempt."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return False
        self._looked_s = now_s
        came = self._arrivals.waiting()
        if not came or came == self._turned_away:
            return False
        left_s = self._begun_s + self._interval_s - now_s
        if left_s > 0:
            self._note(came, left_s)
            return False
        came = self._arrivals.confirmed(came)
        if came:
            try:
                self.planned = self._prepare(came)
            except (InputError, FabricError, DocumentError) as error:
                self._arrivals.refuse(came, str(error))
                self._turned_away = came
                self._refuse(came, str(error))
            else:
                self._arrivals.accept(self.planned.came)
        return self.planned is not None

    def _note(self, came: tuple[int, ...], left_s: float) -> None:
        if came != self._noted:
            self._noted = came
            wait = f"taken in after {left_s:.0f} s more of training (--grow-interval)"
            console.warning(f"{self._names(came)} came: {wait}")
            self._arrivals.postpone(came, wait)


def fits(planned: PlannedGrowth, options: RunOptions) -> bool:
    """Whether its plan, made while the ranks trained, is one for `options`.

    Not if other rates of cables were measured since.
    """
    if planned.options is None or planned.options.cluster != options.cluster:
        return False
    before, now = planned.options.site, options.site
    return before is now or (before is not None and now is not None and before.file == now.file)


def announced(names: str, growth: Growth, of: int, plan: Plan) -> str:
    """The line of a growth: who came, what was planned, and how long the stop took."""
    return (
        f"{names} came: on {growth.servers} of {of} servers, plan {growth.plan_digest} with "
        f"{counted(len(plan.network.links), 'link')} wired and verified; the ranks were stopped "
        f"for {format_seconds(growth.stopped_s)}"
    )
