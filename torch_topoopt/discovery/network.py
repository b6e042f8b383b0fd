"""From what was discovered to a Plan and its Wiring: links, rings and routes. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery.reach import best_pairs
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import (
    Cluster,
    Demand,
    GroupDemand,
    Link,
    Plan,
)
from torch_topoopt.topology.finder.fixed_network import UNKNOWN_GBPS, Cable, network_of_cables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.discovery.probe import Probe
    from torch_topoopt.discovery.reach import Server


def plan_network(servers: Sequence[Server], reached: Iterable[Probe]) -> tuple[Plan, Wiring]:
    """A Plan whose links are the connections found, and where they are.

    The servers must be connected. The ring takes links only, and the fastest, where there is such
    an order of the servers; links that leave over as much again carry further rings.
    """
    count = len(servers)
    ports: list[PortAddress] = []
    links: list[Link] = []
    cables: list[Cable] = []
    used = [0] * count
    for probe, near, far in best_pairs(servers, reached):
        pair = (probe.source, probe.target)
        ends = []
        for server, interface, tcp_port in (
            (probe.source, near, _tcp_port(servers, probe.source, probe.source_address)),
            (probe.target, far, probe.target_tcp_port),
        ):
            ports.append(
                PortAddress(
                    server,
                    used[server],
                    interface.address,
                    None,
                    tcp_port=tcp_port,
                    speed_gbps=interface.gbps,
                    interface=interface.name,
                )
            )
            ends += [server, used[server]]
            used[server] += 1
        link = Link(*ends)
        links += [link, link.reverse]
        speed = min(near.gbps or UNKNOWN_GBPS, far.gbps or UNKNOWN_GBPS)
        cables.append(Cable(pair, (near.name, far.name), speed))
    plan = _plan(count, max(used, default=0), tuple(links), cables)
    listening = [port.tcp_port for port in ports if port.tcp_port is not None]
    wiring = Wiring(
        Wiring.VERSION, "discovered", plan.digest(), min(listening, default=1), tuple(ports)
    )
    return plan, wiring.validate().check(plan)


def _tcp_port(servers: Sequence[Server], server: int, address: str) -> int:
    for interface, port in zip(servers[server].interfaces, servers[server].tcp_ports, strict=True):
        if interface.address == address:
            return port
    raise ValueError(f"address: server {server} does not listen at {address}")


def _plan(count: int, degree: int, links: tuple[Link, ...], cables: list[Cable]) -> Plan:
    everyone = tuple(range(count))
    return Plan.of_network(
        Cluster(
            servers=count,
            degree=max(1, degree),
            link_gbps=min((cable.gbps for cable in cables), default=UNKNOWN_GBPS),
        ),
        network_of_cables(count, links, cables),
        Demand((GroupDemand(everyone, 0),), ()),
        model="",
        mode="discovered",
    )
