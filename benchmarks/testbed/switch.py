"""An emulated electrical switch: every host has one link to a bridge, shaped in both directions.

The hosts are namespaces as those of a `NetnsFabric`, which are found and taken down by the same
commands. As the testbed's switches have flow control, the switch has room for all that waits at a
port, and drops nothing.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import build as netns_build
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.processes.scratch import process_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Plan

INTERFACE = "port0"  # of a host, to the switch
MTU = 1500
_TCP_PORT = 20000


class SwitchFabric:
    """Driver for a plan all of whose links are paths through one switch; `gbps` is a host's rate.

    It belongs to this process, and `close()` removes it. Raises FabricError where this machine
    cannot do it.
    """

    name = "switch"

    def __init__(self, fabric: str, gbps: float) -> None:
        netns_kernel.require()
        netns_shaper.check_rate(gbps)
        self._fabric = fabric
        self._gbps = gbps
        self._reserved: netns_state.Reservation | None = None
        self._layout: NetnsLayout | None = None

    @property
    def layout(self) -> NetnsLayout:
        """Names and addresses; raises FabricError unless a plan is wired."""
        if self._layout is None:
            raise FabricError("switch: no plan is wired")
        return self._layout

    def connect(self, plan: Plan) -> Wiring:
        """Builds hosts and switch; raises FabricError, and leaves then nothing of them."""
        from pyroute2.netlink.exceptions import NetlinkError

        if self._reserved is not None:
            raise FabricError("switch: this driver has wired a plan already; close() it first")
        self._reserved = netns_state.reserve(self._fabric)
        try:
            record = self._record(plan)
            self._layout = record.layout
            builder = _StarBuilder(plan, record, netns_shaper.LOSSLESS_QUEUE_S)
            builder.build(lambda step: None)
            wiring = self._wiring(plan)
            netns_state.save(self._reserved.path, record, plan, wiring)
            self._reserved.release()
        except NetlinkError as error:
            self.close()
            raise FabricError(f"switch: the kernel refused: {error}") from None
        except BaseException:
            self.close()
            raise
        return wiring

    def close(self) -> None:
        """Kills what runs on the hosts and removes them; harmless if there are none."""
        if self._reserved is not None:
            netns_state.take_down(self._fabric)
            self._reserved.release()
            self._reserved = self._layout = None

    def _record(self, plan: Plan) -> netns_state.FabricRecord:
        return netns_state.FabricRecord(
            version=netns_state.FabricRecord.VERSION,
            name=self._fabric,
            servers=plan.cluster.servers,
            degree=1,
            gbps=self._gbps,
            mtu=MTU,
            shaper=netns_shaper.choose(),
            forwarding="routes",
            classifier="",
            switch_delay_s=None,
            owner=os.getpid(),
            owner_start=process_start(os.getpid()),
            block=netns_build.reserve_block(self._fabric),
        )

    def _wiring(self, plan: Plan) -> Wiring:
        """All ports of a server are its one interface. Nothing is dropped, so nothing is paced."""
        ends = {(link.source, link.source_port) for link in plan.network.links}
        return (
            Wiring(
                version=Wiring.VERSION,
                fabric=self.name,
                plan_digest=plan.digest(),
                tcp_port=_TCP_PORT,
                ports=tuple(
                    PortAddress(
                        *(server, port, self.layout.server_address(server), None),
                        speed_gbps=self._gbps,
                        interface=INTERFACE,
                    )
                    for server, port in sorted(ends)
                ),
            )
            .validate()
            .check(plan)
        )


class _StarBuilder(netns_build.Builder):
    """Hosts and the management network as ever; in the place of cables, a link to the switch."""

    def build(self, progress: Callable[[str], None]) -> None:
        with contextlib.ExitStack() as stack:
            progress("hosts")
            self._hosts(stack)
            progress("switch")
            self._plug_into_bridge()

    def _plug_into_bridge(self) -> None:
        namespace, record = self._layout.switch_namespace, self._record
        assert record.gbps is not None
        netns_kernel.create(namespace)
        with netns_kernel.open_route(namespace) as switch:
            switch.link("add", ifname="bridge", kind="bridge")
            (bridge,) = switch.link_lookup(ifname="bridge")
            switch.link("set", index=bridge, state="up")
            for server in self._servers:
                host, there = self._routes[server], f"socket{server}"
                peer = {
                    "ifname": INTERFACE,
                    "net_ns_fd": self._layout.namespace(server),
                    "address": self._layout.port_mac(server, 0),
                }
                switch.link("add", ifname=there, kind="veth", peer=peer)
                (socket,) = switch.link_lookup(ifname=there)
                switch.link("set", index=socket, master=bridge, state="up")
                # The address of the host itself, which cables would lead to.
                (own,) = host.link_lookup(ifname="host")
                address = self._layout.server_address(server)
                host.addr("delete", index=own, address=address, prefixlen=32)
                (index,) = host.link_lookup(ifname=INTERFACE)
                host.addr("add", index=index, address=address, prefixlen=24)
                host.link("set", index=index, state="up")
                for route, port in ((host, index), (switch, socket)):
                    netns_shaper.limit(
                        route, port, record.gbps, MTU, record.shaper, queue_s=self._queue_s
                    )
