"""The testbed's three networks: planned, wired on emulated hosts, and predicted.

"TopoOpt" has d links of B to every host, wired by TopologyFinder through an emulated patch panel,
and hosts whose kernels forward; "Switch 100" one link of d x B through a switch, as the paper's
100 Gb/s, and "Switch 25" one of B.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.switch import INTERFACE, MTU, SwitchFabric
from torch_topoopt.architectures import ideal_switch
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.fabric.switches.circuits import Circuit, circuit_order
from torch_topoopt.plan import Cluster, Group, Link, Network, Plan, Ring, Route
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim.iteration import predict
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.workload import Workload
    from torch_topoopt.sim.iteration import IterationEstimate

NETWORKS = ("TopoOpt", "Switch 100", "Switch 25")
BACKENDS = ("topoopt", "gloo")
_PANEL_DELAY_S = 0.01
_BACKLOG_PACKETS = 20_000  # of a processor


@dataclass(frozen=True)
class Testbed:
    """Hosts that stand: how a rank enters its own, and the variables that it needs."""

    network: str
    plan: Plan
    namespaces: str
    environment: dict[str, str]
    folder: str


def plan_for(workload: Workload, network: str, degree: int, gbps: float) -> Plan:
    """TopologyFinder's plan for `workload`, or a switch's: a path from every host to every other,
    and one ring in the order of the hosts."""
    if network not in NETWORKS:
        raise ValueError(f"network: {network!r} is not one of {', '.join(NETWORKS)}")
    servers = workload.servers
    asked = demand(workload.graph(), workload.strategy(), servers)
    if network == "TopoOpt":
        cluster = Cluster(servers, degree, gbps)
        found = find_network(cluster, asked)
    else:
        cluster = Cluster(servers, servers - 1, host_gbps(network, degree, gbps))
        found = _through_switch(servers)
    return Plan.of_network(cluster, found, asked, model=workload.model)


def host_gbps(network: str, degree: int, gbps: float) -> float:
    """The rate of all links of a host together."""
    return gbps if network == "Switch 25" else degree * gbps


def _through_switch(servers: int) -> Network:
    links = [
        Link(a, b - (b > a), b, a - (a > b)) for a, b in itertools.permutations(range(servers), 2)
    ]
    everyone = tuple(range(servers))
    return Network(tuple(links), (Group(everyone, (Ring(everyone, 1.0),)),), ())


def predicted(
    workload: Workload, plan: Plan, network: str, backend: str, degree: int, gbps: float
) -> float:
    """Seconds of an iteration at flow level, links carrying the payload of TCP and the
    acknowledgements of what comes in.

    Packets between hosts without a cable take the one path that the kernels route. gloo sums along
    one ring in the order of the ranks.
    """
    payload = gbps * paced_share(MTU)
    graph, strategy = workload.graph(), workload.strategy()
    cluster = Cluster(workload.servers, degree, payload)
    if network != "TopoOpt":
        rate = host_gbps(network, degree, payload)
        switch = ideal_switch.build(cluster, server_gbps=rate)
        return predict_on(switch, graph, cluster, strategy).iteration_s
    routes = tuple(
        Route(path, 1.0) for path in plan.network.heaviest_routes().values() if len(path) > 2
    )
    forwarded = replace(plan.network, routes=routes)
    if backend == "gloo":
        forwarded = replace(forwarded, groups=_through_switch(workload.servers).groups)
    return predict(graph, cluster, forwarded, strategy).iteration_s


def predicted_bytes(workload: Workload, plan: Plan) -> IterationEstimate:
    """The bytes of every link in an iteration on TopoOpt's network."""
    return predict(workload.graph(), plan.cluster, plan.network, workload.strategy())


@contextlib.contextmanager
def _room_for_bursts() -> Iterator[None]:
    """While packets wait for a processor of this machine, none is dropped as one too many."""
    file = Path("/proc/sys/net/core/netdev_max_backlog")
    before = file.read_text()
    file.write_text(str(max(int(before), _BACKLOG_PACKETS)))
    try:
        yield
    finally:
        file.write_text(before)


@contextlib.contextmanager
def wired(plan: Plan, network: str, gbps: float) -> Iterator[Testbed]:
    """The hosts of `plan`, until the context ends. Raises FabricError."""
    name = f"testbed-{os.getpid()}"
    fabric: NetnsFabric | SwitchFabric
    if network == "TopoOpt":
        options = NetnsOptions(
            gbps=gbps, mtu=MTU, relay="kernel", switch_delay_s=_PANEL_DELAY_S, lossless=True
        )
        fabric, interface = NetnsFabric(name, options), "host"
    else:
        fabric, interface = SwitchFabric(name, plan.cluster.link_gbps), INTERFACE
    with (
        _room_for_bursts(),
        tempfile.TemporaryDirectory(prefix="topoopt-testbed-") as folder,
    ):
        try:
            wiring = fabric.connect(plan)
            plan.save(f"{folder}/plan.json")
            wiring.save(f"{folder}/wiring.json")
            layout = fabric.layout
            for server in range(plan.cluster.servers):
                netns_kernel.inside(layout.namespace(server), _retransmit_late)
            yield Testbed(
                network,
                plan,
                netns_kernel.path_of(layout.namespace(0)).removesuffix("0"),
                {
                    "MASTER_ADDR": layout.management_address(0),
                    "GLOO_SOCKET_IFNAME": interface,
                    "TOPOOPT_PLAN": f"{folder}/plan.json",
                    "TOPOOPT_WIRING": f"{folder}/wiring.json",
                },
                folder,
            )
        finally:
            fabric.close()


def _retransmit_late() -> None:
    """On a host: nothing is lost, so what is not acknowledged yet waits, for up to that long, in a
    queue. A kernel without the setting (before 6.11) sends some of it twice."""
    ipv4 = Path("/proc/sys/net/ipv4")
    for name, value in (("tcp_rto_min_us", "4000000"), ("tcp_early_retrans", "0")):
        with contextlib.suppress(FileNotFoundError):
            (ipv4 / name).write_text(value)


@contextlib.contextmanager
def panel(plan: Plan, gbps: float) -> Iterator[list[Circuit]]:
    """The circuits that the patch panel of a wired TopoOpt network says it has."""
    options = NetnsOptions(gbps=gbps, mtu=MTU, switch_delay_s=_PANEL_DELAY_S)
    fabric = NetnsFabric(f"testbed-{os.getpid()}", options)
    try:
        fabric.connect(plan)
        with contextlib.closing(fabric.switch()) as switch:
            yield sorted(switch.circuits(), key=circuit_order)
    finally:
        fabric.close()
