"""--nnodes MIN:MAX of `topoopt run`: jobs that may continue with fewer servers, or more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan import planning

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.launcher.plan.planning import PlanningChoice
    from torch_topoopt.plan import Cluster, Plan


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--grow-interval",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --nnodes MIN:MAX: least time for which ranks train before they are stopped to "
        "take a server in (seconds, default: %(default)g)",
    )


def chooses_rendezvous(arguments: argparse.Namespace) -> bool:
    """Whether the user chose the rendezvous. It may be closed for ever once an agent has left it,
    so torch itself restarts ranks there, on the same servers."""
    chosen = arguments.rdzv_backend != "static" or arguments.rdzv_endpoint
    return bool(chosen and not arguments.standalone and not arguments.cluster)


def cluster_of(cluster: Cluster, servers: int) -> Cluster:
    """The same machines, but fewer; at most as many ports each as there are other machines."""
    degree = cluster.degree
    if not cluster.parallel_links and servers > 1:
        degree = min(degree, servers - 1)
    return replace(cluster, servers=servers, degree=degree).validate()


def node_range(arguments: argparse.Namespace, plan: Plan | None) -> tuple[int, int] | None:
    """MIN and MAX of --nnodes MIN:MAX, where emulated servers are the nodes; None: no such range.

    --servers may be fewer than MAX, where there is no plan. Raises InputError.
    """
    given = arguments.nnodes
    if given in ("1", "1:1"):
        return None
    least, colon, most = given.partition(":")
    if not (colon and least.isdecimal() and most.isdecimal()):
        raise InputError(
            f"nnodes: {given}: all emulated servers are on this machine; say how many with "
            "--servers, or MIN:MAX if the job may continue with fewer (for real machines: "
            "--cluster)"
        )
    if not 1 <= int(least) <= int(most):
        raise InputError(f"nnodes: {given}: MIN is not in 1..{most}")
    if plan is not None and plan.cluster.servers != int(most):
        raise InputError(
            f"nnodes: {given}: MAX is not {plan.cluster.servers}, the servers of {arguments.plan}"
        )
    if arguments.servers is not None and not int(least) <= arguments.servers <= int(most):
        raise InputError(f"servers: {arguments.servers} is not in {least}..{most} of --nnodes")
    return int(least), int(most)


def check(
    arguments: argparse.Namespace,
    plan: Plan | None,
    choice: PlanningChoice,
    cluster: Cluster,
    least: int | None,
) -> None:
    """Raises InputError for impossible restarts, or those that exclude fewer servers."""
    if arguments.max_restarts < 0:
        raise InputError(f"max-restarts: {arguments.max_restarts} is negative")
    if not 0 <= arguments.grow_interval < math.inf:
        raise InputError(f"grow-interval: {arguments.grow_interval:g} is not a number from 0 on")
    if least is None:
        return
    most = cluster.servers
    starts_with_all = not arguments.cluster and arguments.servers in (None, most)
    if least < most and starts_with_all and not arguments.max_restarts:
        raise InputError(
            f"nnodes: {least}:{most} is for restarts, or for servers that come later; say how "
            f"many, as --max-restarts 3 or --servers {least}"
        )
    if chooses_rendezvous(arguments):
        raise InputError(
            f"nnodes: {least}:{most} needs the launcher's own rendezvous; leave --rdzv-backend and "
            "--rdzv-endpoint out"
        )
    if least == most:
        return
    if plan is not None and arguments.cluster:
        raise InputError(
            f"nnodes: {least}:{most}: {arguments.plan} is for {most} servers; leave --plan out, so "
            "that it is planned again for fewer"
        )
    if plan is not None and not plan.is_data_parallel:
        raise InputError(
            f"nnodes: {least}:{most}: the strategy of {arguments.plan} is for {most} servers, and "
            "not for fewer; leave --plan out, so that it is planned again"
        )
    if choice.strategy is not None:
        raise InputError(
            f"nnodes: {least}:{most}: the strategy of {choice.strategy} is for {most} servers, and "
            "not for fewer; leave --strategy out"
        )
    for servers in range(least, most):
        planning.check_stages(choice, cluster_of(cluster, servers))
