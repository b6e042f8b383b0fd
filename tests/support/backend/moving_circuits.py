"""A job on emulated hosts whose circuits move during its collectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from support.backend.ranks import Outcome, make_plan, run_bare_ranks
from support.fabric.netns_fixtures import a_name
from support.limits import limit_s

from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.reconfiguration.circuit_service import CircuitService

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.fabric.switches.circuits import Circuit
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.plan import Link
    from torch_topoopt.reconfiguration.choice import Choice
    from torch_topoopt.reconfiguration.circuit_service import CollectiveChoices

SWITCH_VARIABLE = "TOPOOPT_TEST_SWITCH"  # its namespace


class MovingBench:
    """A fabric whose circuits move as `choose` decides, and the collectives that have ended."""

    def __init__(
        self,
        folder: Path,
        stack: contextlib.ExitStack,
        servers: int,
        gbps: float | None,
        choose: Callable[[NDArray[np.int64], tuple[int, ...]], Choice] | None,
        choose_collective: CollectiveChoices | None = None,
        open_switch: Callable[[NetnsFabric], CircuitSwitch] | None = None,
        per_server: int = 1,
        ahead: bool = False,
    ) -> None:
        self.servers = servers
        self.ranks = servers * per_server
        self.plan = make_plan(servers, 2)
        options = NetnsOptions(
            gbps=gbps, relay="kernel", switch_delay_s=0.005, timeout_s=limit_s(0.5)
        )
        self.fabric = NetnsFabric(a_name(), options)
        stack.callback(self.fabric.close)
        self.plan.save(folder / "plan.json")
        self.fabric.connect(self.plan).save(folder / "wiring.json")
        self.folder = folder
        switch = None if open_switch is None else open_switch(self.fabric)
        limit = None if switch is None else limit_s(1.0)
        self.mover = self.fabric.circuit_mover(self.plan, switch, limit_s=limit)
        if switch is not None:
            self.mover.restore()
        self.ended: list[Any] = []  # MovedExchange, and MovedCollective with `choose_collective`
        self.service = stack.enter_context(
            CircuitService(
                self.ranks, self.mover, choose, self.ended.append, choose_collective, ahead=ahead
            )
        )

    def circuits_of(self, links: Iterable[Link]) -> set[Circuit]:
        """Those of the switch for these links."""
        (circuits,) = self.mover._circuits(links).values()
        return set(circuits)

    def run(self, function: Any) -> list[Outcome]:
        """Consecutive ranks are on one server."""
        per_server = self.ranks // self.servers
        return run_bare_ranks(
            self.ranks,
            function,
            namespaces=[
                self.fabric.layout.namespace(rank // per_server) for rank in range(self.ranks)
            ],
            store_address=self.fabric.management_address,
            GLOO_SOCKET_IFNAME="management",  # host names lead nowhere in a namespace
            TOPOOPT_PLAN=str(self.folder / "plan.json"),
            TOPOOPT_WIRING=str(self.folder / "wiring.json"),
            **{
                CIRCUITS_VARIABLE: self.service.path,
                SWITCH_VARIABLE: self.fabric.layout.switch_namespace,
            },
        )


def compared(rank: int, world: int, calls: Callable[[int, int], list[torch.Tensor]]) -> list[bool]:
    """Whether topoopt's results are those of gloo, bit for bit."""
    dist.init_process_group("topoopt")
    ours = calls(rank, world)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    theirs = calls(rank, world)
    dist.destroy_process_group()
    return [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]


def sent_bytes(interface: str) -> int:
    """Of this process's namespace."""
    (line,) = (
        line
        for line in Path("/proc/self/net/dev").read_text().splitlines()
        if line.strip().startswith(f"{interface}:")
    )
    return int(line.split()[9])
