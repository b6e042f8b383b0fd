"""The routes of emulated hosts whose circuits move while a job runs.

Routes name ports by addresses that no interface has. Another device than the emulated switch must
steer the light between the hosts' ports (tests/backend/links/test_moving_switches.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.kernel_tables import RETRANSMIT_SOON, CircuitRoute, KernelTables
from torch_topoopt.fabric.netns.layout import port_interface
from torch_topoopt.links import sockets as fabric_links

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Link, Plan


def retransmit_soon() -> None:
    """Limits the time between retransmissions of connections that are opened afterwards."""
    for name, value in RETRANSMIT_SOON.items():
        path = Path("/proc/sys/net/ipv4", name)
        if path.exists():
            path.write_text(value)


class NetnsRoutes:
    """The tables of all namespaces of the wired `plan`; one thread at a time."""

    def __init__(self, plan: Plan, layout: NetnsLayout) -> None:
        self._layout = layout
        self._addresses = layout.port_addresses(fabric_links.connections(plan))
        self._tables = [
            KernelTables(f"netns: server {server}", layout.namespace(server))
            for server in range(plan.cluster.servers)
        ]
        for server in range(plan.cluster.servers):
            netns_kernel.inside(layout.namespace(server), retransmit_soon)

    def write(self, number: int, firsts: Mapping[int, Mapping[int, Link]]) -> None:
        for server, links in firsts.items():
            self._tables[server].write(number, self._routes(server, links))

    def select(self, numbers: Mapping[int, int]) -> None:
        for server, tables in enumerate(self._tables):
            tables.select(numbers.get(server))

    def forget(self) -> None:
        for tables in self._tables:
            tables.forget_neighbours()

    def release(self) -> None:
        for tables in self._tables:
            tables.close()

    def _routes(self, server: int, firsts: Mapping[int, Link]) -> Iterator[CircuitRoute]:
        layout = self._layout
        own = layout.server_address(server)
        for other, link in firsts.items():
            over = (
                port_interface(link.source_port),
                layout.circuit_address(link.target, link.target_port),
                layout.port_mac(link.target, link.target_port),
            )
            yield CircuitRoute(layout.server_address(other), *over, source=own)
            for (of, _), address in self._addresses.items():
                if of == other:
                    yield CircuitRoute(address, *over)
