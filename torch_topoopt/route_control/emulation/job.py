"""The wiring of one job on an emulated Clos network, which it may share with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.fabric.netns.verify import verify_between
from torch_topoopt.links import sockets
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.route_control.emulation.build import MTU
from torch_topoopt.route_control.emulation.names import UPLINK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Plan
    from torch_topoopt.route_control.emulation.clos import EmulatedClos

TCP_PORT = 20000


class JobOnClos:
    """Driver for a plan whose server S is the host `hosts[S]` of `clos`.

    All ports of a server share the host's one interface; the hash of each connection selects its
    cables between switches. Ports have to be simplex: each link is a connection of its own, over
    which its source sends. Jobs that share hosts need different `tcp_port`s. Raises FabricError.
    """

    name = "emulated-clos"

    def __init__(
        self,
        clos: EmulatedClos,
        hosts: Sequence[str],
        *,
        tcp_port: int = TCP_PORT,
        ways_back: int | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._clos = clos
        self._hosts = tuple(hosts)
        self._tcp_port = tcp_port
        self._ways_back = ways_back
        self._timeout_s = timeout_s
        for host in self._hosts:
            if host not in clos.names.hosts:
                raise FabricError(f"hosts: {host!r} is not a host of the emulated network")
        if len(set(self._hosts)) != len(self._hosts):
            raise FabricError("hosts: one is given twice; a host is one server of a job")

    def connect(self, plan: Plan) -> Wiring:
        """The addresses of the plan's ports; each link is verified from both ends."""
        cluster = plan.cluster
        if cluster.servers != len(self._hosts):
            raise FabricError(f"servers: {cluster.servers} for {len(self._hosts)} hosts")
        if cluster.ports != "simplex":
            raise FabricError(
                f"ports: {cluster.ports!r} share a connection for both directions, which has one "
                "path for both; use 'simplex'"
            )
        names, gbps = self._clos.names, self._clos.host_gbps
        paced = None if self._ways_back is None else gbps * paced_share(MTU, self._ways_back)
        ends = {(link.source, link.source_port) for link in plan.network.links}
        ends |= {(link.target, link.target_port) for link in plan.network.links}
        ports = tuple(
            PortAddress(
                *(server, port, names.host_address(self._hosts[server]), paced),
                speed_gbps=gbps,
                interface=UPLINK,
            )
            for server, port in sorted(ends)
        )
        wiring = Wiring(Wiring.VERSION, self.name, plan.digest(), self._tcp_port, ports)
        wiring.validate().check(plan)
        for link in sockets.connections(plan):
            near, far = (self._hosts[end] for end in (link.source, link.target))
            namespaces = self._clos.names.namespace(near), self._clos.names.namespace(far)
            verify_between(link, wiring, namespaces, self._timeout_s)
        return wiring

    def close(self) -> None:
        """Leaves the network and its hosts."""

    def namespace(self, server: int) -> str:
        """The namespace path for a rank of `server`."""
        return netns_kernel.path_of(self._clos.names.namespace(self._hosts[server]))

    def management_address(self, server: int) -> str:
        """The address of `server` outside the network."""
        names = self._clos.names
        return names.layout.management_address(names.hosts[self._hosts[server]])
