"""The settings of the benchmarks: one machine's shared memory, its loopback, or a direct fabric.

A Setting says how to become rank r there: which namespace to enter, which environment to have.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.direct_fabric import make_plan, sampled_links
from harness.long_cables import LongCables
from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.fabric.netns import goodput as netns_goodput
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import BYTES_PER_GBPS
from torch_topoopt.processes.rank_main import enter_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

_STORE_PORT = 29500
_SAMPLED_LINKS = 3
_FABRIC_AGENT = """#!/bin/sh
# Starts a command on a host of the fabric, as mpirun would over ssh: AGENT HOST COMMAND...
host=$1; shift
exec nsenter --net="$(cat "{folder}/$host")" unshare --uts sh -c "hostname $host; $*"
"""


@dataclass
class Setting:
    """One place to run `ranks` ranks. `link_bytes_per_s`: goodput of a link, if it has a limit."""

    description: str
    ranks: int
    environment: dict[str, str]
    plan: Plan | None = None
    link_bytes_per_s: float | None = None
    fabric: NetnsFabric | None = None
    mpi_options: list[str] = field(default_factory=list)

    def become(self, rank: int) -> None:
        """Turns this process into one of the ranks; torch.distributed finds it in its variables."""
        os.environ.update(
            self.environment,
            RANK=str(rank),
            LOCAL_RANK="0" if self.plan is not None else str(rank),
            WORLD_SIZE=str(self.ranks),
        )
        if self.fabric is not None:
            path = netns_kernel.path_of(self.fabric.layout.namespace(0))
            enter_namespace("1:" + path.removesuffix("0"))


@contextlib.contextmanager
def shared_memory(ranks: int) -> Iterator[Setting]:
    """All ranks are accelerators of one server: no plan, no network."""
    with _local_store() as environment:
        yield Setting(
            f"shared memory, {ranks} ranks on one server",
            ranks,
            environment,
            mpi_options=_oversubscribe(ranks),
        )


@contextlib.contextmanager
def loopback(ranks: int, degree: int, gbps: float | None) -> Iterator[Setting]:
    """Every rank is a server of its own, linked by TCP over the loopback device."""
    plan = make_plan(ranks, degree, 10.0 if gbps is None else gbps)
    driver = LoopbackFabric(job=os.getpid(), gbps=gbps)
    with (
        tempfile.TemporaryDirectory(prefix="topoopt-bench-") as folder,
        _local_store() as environment,
    ):
        try:
            environment |= _documents(plan, driver.connect(plan), folder)
            yield Setting(
                f"loopback TCP, {ranks} servers x {degree} links"
                + (f" of {gbps * 1000:g} Mb/s" if gbps else ""),
                ranks,
                environment | {"GLOO_SOCKET_IFNAME": "lo"},
                plan,
                None if gbps is None else plan.cluster.link_bytes_per_s,
                mpi_options=[
                    *_oversubscribe(ranks),
                    *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"),
                ],
            )
        finally:
            driver.close()


@contextlib.contextmanager
def direct_fabric(
    ranks: int, degree: int, gbps: float, mtu: int, *, switch_delay_s: float | None = None
) -> Iterator[Setting]:
    """Every rank is a host of a direct-connect fabric of network namespaces.

    With a switch of that delay between them hosts forward for each other, and circuits may move.
    """
    options = NetnsOptions(
        gbps=gbps,
        mtu=mtu,
        relay="user" if switch_delay_s is None else "kernel",
        switch_delay_s=switch_delay_s,
    )
    with planned_fabric(make_plan(ranks, degree, gbps), options) as setting:
        yield setting


@contextlib.contextmanager
def planned_fabric(
    plan: Plan,
    options: NetnsOptions,
    boards: tuple[int, int] | None = None,
    *,
    cable_delay_s: float = 0.0,
) -> Iterator[Setting]:
    """Every server of the plan is a host of network namespaces; `boards` as in NetnsFabric.

    Cables with a delay are those of LongCables. Raises FabricError where this machine cannot do it.
    """
    name = f"bench-{os.getpid()}"
    if cable_delay_s:
        fabric: NetnsFabric = LongCables(
            name, replace(options, switch_delay_s=0.0), delay_s=cable_delay_s
        )
    else:
        fabric = NetnsFabric(name, options, boards=boards)
    cluster = plan.cluster
    with tempfile.TemporaryDirectory(prefix="topoopt-bench-") as folder:
        try:
            wiring = fabric.connect(plan)
            goodput = _goodput_bytes_per_s(fabric, plan, wiring)
            environment = {
                "MASTER_ADDR": fabric.layout.management_address(0),
                "MASTER_PORT": str(_STORE_PORT),
                "GLOO_SOCKET_IFNAME": "host",
            }
            yield Setting(
                f"direct fabric, {cluster.servers} hosts x {cluster.degree} links of "
                f"{cluster.link_gbps * 1000:g} Mb/s, MTU {options.mtu}, "
                f"goodput of a link {goodput / 1e6:.4f} MB/s",
                cluster.servers,
                environment | _documents(plan, wiring, folder),
                plan,
                goodput,
                fabric,
                _fabric_mpi_options(fabric, cluster.servers, folder),
            )
        finally:
            fabric.close()


def _goodput_bytes_per_s(fabric: NetnsFabric, plan: Plan, wiring: Wiring) -> float:
    """Of a link: the median of some."""
    record, _, _ = netns_state.load(fabric.layout.name)
    measured = netns_goodput.measure(record, wiring, sampled_links(plan, _SAMPLED_LINKS))
    for goodput in measured:
        if goodput.error:
            raise FabricError(f"{goodput.link}: {goodput.error}")
    return statistics.median(goodput.gbps for goodput in measured) * BYTES_PER_GBPS


@contextlib.contextmanager
def _local_store() -> Iterator[dict[str, str]]:
    """Where rank 0 may listen: nobody else is given the port, for it stays bound here."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}


def _documents(plan: Plan, wiring: Wiring, folder: str) -> dict[str, str]:
    plan.save(f"{folder}/plan.json")
    wiring.save(f"{folder}/wiring.json")
    return {
        "TOPOOPT_PLAN": f"{folder}/plan.json",
        "TOPOOPT_WIRING": f"{folder}/wiring.json",
        "TOPOOPT_RUN_DIR": folder,
    }


def _oversubscribe(ranks: int) -> list[str]:
    return ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []


def _fabric_mpi_options(fabric: NetnsFabric, ranks: int, folder: str) -> list[str]:
    """mpirun starts one rank per host, with the script below in the place of ssh."""
    layout = fabric.layout
    hosts = [f"host{server}" for server in range(ranks)]
    for server, host in enumerate(hosts):
        Path(folder, host).write_text(netns_kernel.path_of(layout.namespace(server)))
    agent = Path(folder, "agent")
    agent.write_text(_FABRIC_AGENT.format(folder=folder))
    agent.chmod(0o700)
    parameters = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "oob_tcp_if_include": layout.management_network,
        "btl": "tcp,self",
        "btl_tcp_if_include": layout.server_network,
        "hwloc_base_binding_policy": "none",  # each orted sees all cores as its own
        "mpi_yield_when_idle": "1",
    }
    options = [part for item in parameters.items() for part in ("--mca", *item)]
    return [*options, "--host", ",".join(f"{host}:1" for host in hosts)]
