"""Builds one fabric of namespaces: hosts, the management network, cables, rates and routes."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import routes as netns_routes
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import split as netns_split
from torch_topoopt.fabric.netns.layout import (
    BLOCKS,
    CABLE_PREFIX,
    LAUNCHER,
    SHARED_PREFIX,
    NetnsLayout,
    port_interface,
    socket_interface,
    socket_name,
    spare_socket_name,
)
from torch_topoopt.links import sockets
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.netns.state import FabricRecord
    from torch_topoopt.plan import Link, Plan

_EXISTS = 17  # EEXIST


class HostBuilder:
    """Makes the hosts of `record`, connected only by the management network."""

    def __init__(self, record: FabricRecord) -> None:
        self._record = record
        self._layout = record.layout
        self._servers = range(record.servers)
        self._routes: dict[int, Any] = {}  # an IPRoute per server

    def _hosts(self, stack: contextlib.ExitStack) -> None:
        """Connections to their kernels end with `stack`."""
        for server in self._servers:
            self._host(server)
            route = netns_kernel.open_route(self._layout.namespace(server))
            self._routes[server] = stack.enter_context(route)
        self._management()

    def _host(self, server: int) -> None:
        namespace = self._layout.namespace(server)
        netns_kernel.create(namespace)
        netns_kernel.inside(namespace, set_kernel_up)

    def _management(self) -> None:
        """Every server on one bridge, and an address of its own that the cables lead to."""
        layout = self._layout
        with netns_kernel.open_route(layout.management_namespace) as route:
            bridge = route.link_lookup(ifname="bridge")[0]
            for server in self._servers:
                inside = self._routes[server]
                here = f"host{server}"
                far = {"ifname": "management", "net_ns_fd": layout.namespace(server)}
                route.link("add", ifname=here, kind="veth", peer=far)
                route.link(
                    "set", index=route.link_lookup(ifname=here)[0], master=bridge, state="up"
                )
                address = layout.management_address(server)
                _up(inside, "management", address, 24)
                # A pair whose far end is unused: an interface with a name, for programs that
                # want one.
                inside.link("add", ifname="host", kind="veth", peer={"ifname": "host-end"})
                _up(inside, "host-end")
                _up(inside, "host", layout.server_address(server), 32)
                _up(inside, "lo")


class Builder(HostBuilder):
    """Makes the namespaces of `record` for `plan`; the caller removes them if it fails.

    A link with a rate has a queue of `queue_s`. The cables of links in `switches` run through the
    packet switch of that number, a bridge. Every server has `spare_ports` on the optical switch.
    """

    def __init__(
        self,
        plan: Plan,
        record: FabricRecord,
        queue_s: float = netns_shaper.QUEUE_S,
        switches: Mapping[Link, int] | None = None,
        spare_ports: int = 0,
    ) -> None:
        super().__init__(record)
        self._spare_ports = spare_ports
        self._plan = plan
        self._queue_s = queue_s
        self._switches = switches or {}
        cables = list(sockets.connections(plan))
        self._addresses = record.layout.port_addresses(cables)
        self._spares = record.layout.spare_addresses(
            len(cables), record.servers, record.degree, spare_ports
        )
        self._ports: dict[int, dict[int, int]] = {}  # server -> port -> index of its interface

    def build(self, progress: Callable[[str], None]) -> None:
        with contextlib.ExitStack() as stack:
            progress("hosts")
            self._hosts(stack)
            progress("cables")
            if self._record.switch_delay_s is None:
                for cable in sockets.connections(self._plan):
                    if cable not in self._switches:
                        self._cable(cable)
                for switch in sorted(set(self._switches.values())):
                    self._packet_switch(switch)
            else:
                self._plug_into_switch()
            for server in self._servers:
                progress(f"server {server}")
                self._set_up_ports(server)
            progress("routes")
            hops = netns_routes.hops_by_server(self._plan)
            split = self._record.forwarding == "split"
            for server in self._servers:
                route, ports = self._routes[server], self._ports[server]
                if split:
                    mtu, classifier = self._record.mtu, self._record.classifier
                    netns_split.divide(route, self._layout, server, ports, mtu, classifier)
                    netns_split.name_neighbours(route, self._layout, self._from(server), ports)
                netns_routes.add(
                    route, self._layout, server, hops[server], ports, self._addresses, split=split
                )

    def _cable(self, cable: Link) -> None:
        near = self._end(cable.source, cable.source_port)
        far = self._end(cable.target, cable.target_port)
        far["net_ns_fd"] = self._layout.namespace(cable.target)
        self._routes[cable.source].link("add", kind="veth", peer=far, **near)

    def _packet_switch(self, switch: int) -> None:
        """A bridge, and a port of it for each cable of its links."""
        namespace = self._layout.packet_switch_namespace(switch)
        netns_kernel.create(namespace)
        netns_kernel.inside(namespace, set_kernel_up)
        with netns_kernel.open_route(namespace) as route:
            route.link("add", ifname="bridge", kind="bridge")
            (bridge,) = route.link_lookup(ifname="bridge")
            route.link("set", index=bridge, state="up")
            plugged = [link for link, number in self._switches.items() if number == switch]
            for link in plugged:
                host = self._layout.namespace(link.source)
                netns_kernel.inside(host, _answer_for_own_port)
                here = f"host{link.source}port{link.source_port}"
                far = self._end(link.source, link.source_port)
                far["net_ns_fd"] = host
                route.link("add", ifname=here, kind="veth", mtu=self._record.mtu, peer=far)
                (index,) = route.link_lookup(ifname=here)
                route.link("set", index=index, master=bridge, state="up")

    def _plug_into_switch(self) -> None:
        namespace = self._layout.switch_namespace
        degree, servers = self._plan.cluster.degree, self._record.servers
        netns_kernel.create(namespace)
        netns_kernel.inside(namespace, set_kernel_up)
        with netns_kernel.open_route(namespace) as route:
            for link in self._plan.network.links:
                name = socket_name(link.source, link.source_port, degree)
                self._plug(route, link.source, link.source_port, socket_interface(name))
            for server, port in self._spares:
                name = spare_socket_name(server, port, degree, self._spare_ports, servers)
                self._plug(route, server, port, socket_interface(name))
        for server in self._servers if self._spares else ():
            netns_kernel.inside(self._layout.namespace(server), _answer_for_own_port)

    def _plug(self, route: Any, server: int, port: int, here: str) -> None:
        """Connects a port to the interface `here` of the switch, which `route` talks to."""
        far = self._end(server, port)
        far["net_ns_fd"] = self._layout.namespace(server)
        route.link("add", ifname=here, kind="veth", mtu=self._record.mtu, peer=far)
        (index,) = route.link_lookup(ifname=here)
        route.link("set", index=index, state="up")
        route.tc("add", "clsact", index=index)

    def _end(self, server: int, port: int) -> dict[str, Any]:
        return {
            "ifname": port_interface(port),
            "mtu": self._record.mtu,
            "address": self._layout.port_mac(server, port),
        }

    def _from(self, server: int) -> list[Link]:
        return [link for link in self._plan.network.links if link.source == server]

    def _set_up_ports(self, server: int) -> None:
        route, record = self._routes[server], self._record
        self._ports[server] = {}
        prefix = SHARED_PREFIX if self._spares else CABLE_PREFIX
        addresses = self._addresses | self._spares
        planned = [link.source_port for link in self._from(server)]
        for port in (*planned, *(port for owner, port in self._spares if owner == server)):
            (index,) = route.link_lookup(ifname=port_interface(port))
            self._ports[server][port] = index
            route.addr("add", index=index, address=addresses[server, port], prefixlen=prefix)
            route.link("set", index=index, state="up")
            if record.gbps is not None:
                netns_shaper.limit(
                    *(route, index, record.gbps, record.mtu, record.shaper), queue_s=self._queue_s
                )


def reserve_block(name: str) -> int:
    """Makes the management network of a fabric, and so reserves its block of addresses.

    This machine's interface on it reserves the block, since it is named after the block. Raises
    FabricError if all blocks are taken.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    management = NetnsLayout(name).management_namespace
    netns_kernel.create(management)
    netns_kernel.inside(management, set_kernel_up)
    with netns_kernel.open_route(management) as inside, netns_kernel.open_route() as outside:
        used = _used_networks(outside)
        for block in range(BLOCKS):
            layout = NetnsLayout(name, block)
            network = ipaddress.ip_network(layout.management_network)
            if any(network.overlaps(other) for other in used):
                continue
            peer = {"ifname": "launcher", "net_ns_fd": management}
            try:
                outside.link("add", ifname=layout.launcher_interface, kind="veth", peer=peer)
            except NetlinkError as error:
                if error.code == _EXISTS:
                    continue
                raise
            inside.link("add", ifname="bridge", kind="bridge")
            (bridge,) = inside.link_lookup(ifname="bridge")
            inside.link("set", index=bridge, state="up")
            (launcher,) = inside.link_lookup(ifname="launcher")
            inside.link("set", index=launcher, master=bridge, state="up")
            address = layout.management_address(LAUNCHER)
            _up(outside, layout.launcher_interface, address, network.prefixlen)
            return block
    raise FabricError(
        f"netns: all {BLOCKS} blocks of addresses are in use (198.18.0.0/24 to "
        f"198.18.{BLOCKS - 1}.0/24); `topoopt fabric list` shows the fabrics that there are"
    )


def _used_networks(route: Any) -> list[ipaddress.IPv4Network]:
    """Networks that this machine has routes to, except the default route."""
    return [
        ipaddress.IPv4Network((message.get_attr("RTA_DST"), message["dst_len"]))
        for message in route.get_routes(family=2)
        if message.get_attr("RTA_DST")
    ]


def _up(route: Any, name: str, address: str | None = None, prefix: int = 32) -> None:
    (index,) = route.link_lookup(ifname=name)
    if address is not None:
        route.addr("add", index=index, address=address, prefixlen=prefix)
    route.link("set", index=index, state="up")


def _answer_for_own_port() -> None:
    """A switch floods ARP requests to all ports; only the interface with the address answers."""
    for name, value in (("arp_ignore", "1"), ("arp_announce", "2")):
        Path("/proc/sys/net/ipv4/conf/all", name).write_text(value)


def set_kernel_up() -> None:
    """Enables forwarding, without reverse-path filters: a relayed packet's way back may differ.

    Disables IPv6, because its own traffic would distort the counters. Replaces BBR: a cable's round
    trip is nearly nothing, so acknowledgements behind data of the other direction starve it. After
    a pause, TCP keeps its window: a slow start takes some round trips, and the queue of an emulated
    link makes each of them milliseconds long.
    """
    ipv4 = Path("/proc/sys/net/ipv4")
    (ipv4 / "ip_forward").write_text("1")
    (ipv4 / "tcp_slow_start_after_idle").write_text("0")
    for scope in ("all", "default"):
        (ipv4 / "conf" / scope / "rp_filter").write_text("0")
        (ipv4 / "conf" / scope / "send_redirects").write_text("0")
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            Path("/proc/sys/net/ipv6/conf", scope, "disable_ipv6").write_text("1")
    control = ipv4 / "tcp_congestion_control"
    for better in ("cubic", "reno"):  # namespaces may not be allowed to use the first (EPERM)
        if control.read_text().strip() != "bbr":
            break
        with contextlib.suppress(OSError):
            control.write_text(better)
