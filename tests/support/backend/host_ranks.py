"""Runs a function on every server of a plan whose hosts are network namespaces, as root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.backend.ranks import run_bare_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.fabric.netns.fabric import NetnsFabric
    from torch_topoopt.plan import Plan


def run_on_hosts(
    fabric: NetnsFabric,
    plan: Plan,
    folder: Path,
    function: Callable[[int, int], Any],
    **environment: str,
) -> list[Any]:
    """What `function(rank, world)` returns on each server, once `fabric` is wired for `plan`."""
    servers = plan.cluster.servers
    plan.save(folder / "plan.json")
    fabric.connect(plan).save(folder / "wiring.json")
    return values(
        run_bare_ranks(
            servers,
            function,
            namespaces=[fabric.layout.namespace(server) for server in range(servers)],
            store_address=fabric.management_address,
            TOPOOPT_PLAN=str(folder / "plan.json"),
            TOPOOPT_WIRING=str(folder / "wiring.json"),
            **environment,
        )
    )
