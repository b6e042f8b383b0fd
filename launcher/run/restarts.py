"""Restarts of a job: the servers lost with the failed ranks, and the options for the others.

Emulated servers have no launchers of their own to lose. There a rank killed by SIGKILL, as the
kernel does when memory is short, counts as a lost server if --nnodes MIN:MAX allows to continue
without it. Any other failure restarts the same servers.
"""

from __future__ import annotations

import argparse
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import input_errors
from torch_topoopt.launcher.run.elastic_options import chooses_rendezvous, cluster_of
from torch_topoopt.launcher.run.ranks import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice
    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.launcher.run.ranks import RankFailure
    from torch_topoopt.plan import Cluster, Plan


@dataclass(frozen=True)
class Restart:
    """Restart `number` of at most `most`, after `failures` on `servers` servers.

    `lost` are the lost servers, by their old numbers.
    """

    number: int
    most: int
    failures: tuple[RankFailure, ...]
    servers: int
    lost: tuple[int, ...] = ()
    JSON_FIELDS: ClassVar = (
        "number", "most", "failed=failures", "lost_servers=lost", "servers=remaining"
    )  # fmt: skip

    def remaining(self) -> int:
        return len(self.left)

    @property
    def left(self) -> tuple[int, ...]:
        """The remaining servers, by their old numbers."""
        return tuple(server for server in range(self.servers) if server not in self.lost)

    def announce(self, script: str, least: int | None) -> None:
        """Prints the failed ranks and causes, the restart's number, and its servers."""
        for line in describe(self.failures, script):
            console.warning(line)
        all_of = {1: "the one server", 2: "both servers"}
        where = f"on {all_of.get(self.servers, f'all {self.servers} servers')}"
        if self.lost:
            gone = ", ".join(map(str, self.lost))
            moved = ", ".join(map(str, self.left))
            where = (
                f"without {_servers(self.lost)} {gone}: on {len(self.left)} of {self.servers} "
                f"servers (--nnodes needs at least {least}), planned and wired again; "
                f"{_servers(self.left)} {moved} become 0 to {len(self.left) - 1}"
            )
        console.warning(f"restart {self.number} of {self.most}, {where}")


def _servers(numbers: Sequence[int]) -> str:
    return "server" if len(numbers) == 1 else "servers"


def after(
    failures: Sequence[RankFailure], options: RunOptions, restarts: int, gone: Sequence[int] = ()
) -> Restart | None:
    """The restart after `failures`, given the number of earlier ones; None, and the reason in one
    line, if none is allowed. `gone` are servers of a cluster whose launchers are lost."""
    most = options.max_restarts
    if not (failures or gone) or not most or chooses_rendezvous(options.torchrun):
        return None
    if restarts >= most:
        console.warning(f"no restart is left of the {most} of --max-restarts")
        return None
    servers, least = options.cluster.servers, options.least_servers
    lost = tuple(gone) if options.site is not None else _killed(failures, options)
    if gone and least is None:
        least = servers
    restart = Restart(restarts + 1, most, tuple(failures), servers, lost)
    if least is not None and len(restart.left) < least:
        names = ", ".join(map(str, lost))
        console.warning(
            f"no restart: without {_servers(lost)} {names} there are {len(restart.left)} of "
            f"{servers} left, and --nnodes needs at least {least}"
        )
        return None
    return restart


def _killed(failures: Sequence[RankFailure], options: RunOptions) -> tuple[int, ...]:
    if options.least_servers is None:
        return ()
    per_server = options.cluster.accelerators_per_server
    killed = {f.rank // per_server for f in failures if f.exit_code == -signal.SIGKILL}
    return tuple(sorted(killed))


def options_at(options: RunOptions, choice: ClusterChoice) -> RunOptions:
    """The options of a job on the machines of `choice`."""
    from torch_topoopt.fabric.cluster import static_plan, switched_plan

    file = choice.file
    of_file = switched_plan.cluster_on_switches if file.switches else static_plan.cluster_of
    cluster = replace(of_file(file), accelerator=options.cluster.accelerator)
    torchrun = argparse.Namespace(**vars(options.torchrun))
    torchrun.nnodes, torchrun.node_rank = str(cluster.servers), choice.server
    return replace(options, cluster=cluster, site=choice, torchrun=torchrun)


def options_for(options: RunOptions, left: Sequence[int]) -> RunOptions:
    """The options of a job on the servers `left` alone. Steps of the script are not measured again.

    A supplied plan for more servers is replaced by a new one for its demand among those. Raises
    InputError.
    """
    cluster = cluster_of(options.cluster, len(left))
    torchrun = argparse.Namespace(**vars(options.torchrun))
    torchrun.nproc_per_node = str(cluster.servers * cluster.accelerators_per_server)
    plan = options.plan
    if plan is not None and len(left) < plan.cluster.servers:
        plan = _plan_among(plan, cluster, left)
    return replace(options, cluster=cluster, plan=plan, measure_steps=False, torchrun=torchrun)


def _plan_among(plan: Plan, cluster: Cluster, left: Sequence[int]) -> Plan:
    from torch_topoopt.planner.demand_plan import plan_for_remaining

    with input_errors():
        return plan_for_remaining(plan, cluster, left)
