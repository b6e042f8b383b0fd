"""Servers as a discovery finds them, with cables and a switch, and the probes that they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery.interfaces import Interface
from torch_topoopt.discovery.reach import Server, rounds, still_worth_sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.discovery.probe import Probe

SWITCH = "switch"


def make_servers(
    count: int,
    cables: Sequence[tuple[int, int, float | None]],
    *,
    switch_gbps: float | None = None,
    is_card: bool = True,
) -> list[Server]:
    """Hosts with an interface for each of their cables, and one to a switch if there is one.

    Without `is_card` the rates are what virtual interfaces say.
    """
    interfaces: list[list[Interface]] = [[] for _ in range(count)]

    def add(host: int, name: str, address: str, length: int, gbps: float | None) -> None:
        of = Interface(name, address, length, gbps, False, False, None, is_card)
        interfaces[host].append(of)

    if switch_gbps is not None:
        for host in range(count):
            add(host, SWITCH, f"10.0.0.{host + 1}", 24, switch_gbps)
    for number, (*ends, gbps) in enumerate(cables, start=1):
        for last, host in enumerate(ends, start=1):
            add(host, f"nic{number}", f"10.1.{number}.{last}", 30, gbps)
    return [
        Server(f"node{i}", f"machine{i}", (i,), tuple(own), tuple(range(5000, 5000 + len(own))))
        for i, own in enumerate(interfaces)
    ]


def answer(servers: list[Server]) -> list[Probe]:
    """The probes that succeed if addresses of one subnet reach each other, and no others."""
    by_address = {i.address: i for server in servers for i in server.interfaces}
    reached: list[Probe] = []
    for probes in rounds(servers):
        for probe in still_worth_sending(probes, servers, reached):
            near, far = by_address[probe.source_address], by_address[probe.target_address]
            if near.shares_subnet(far):
                reached.append(probe)
    return reached
