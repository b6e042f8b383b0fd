"""Builds the namespaces of an emulated Clos network: hosts, switches, and shaped cables."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import build as netns_build
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.emulation.names import UPLINK

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.fabric.netns.state import FabricRecord
    from torch_topoopt.route_control.emulation.names import ClosNames

MTU = 1500
_IPV4 = Path("/proc/sys/net/ipv4")
_CUSTOM_HASH = "3"  # fib_multipath_hash_policy: the fields below, of every packet anew
_HASH_FIELDS = "0x37"  # addresses, protocol and ports
_WINDOW_BYTES = 256 << 10


class ClosBuilder(netns_build.HostBuilder):
    """Makes the namespaces of `record` for the network of `names`; the caller removes them if it
    fails. `seed` is that of the switches' hashes."""

    def __init__(self, record: FabricRecord, names: ClosNames, seed: int) -> None:
        super().__init__(record)
        self._names = names
        self._seed = seed
        self._switches: dict[str, Any] = {}  # an IPRoute per switch

    def build(self, progress: Callable[[str], None]) -> None:
        """All but the routes between switches."""
        names = self._names
        with contextlib.ExitStack() as stack:
            progress("hosts")
            self._hosts(stack)
            for server in self._servers:
                netns_kernel.inside(self._layout.namespace(server), _keep_windows_small)
            progress("switches")
            for switch in names.switches:
                self._switches[switch] = stack.enter_context(self._switch(switch))
            progress("cables")
            for host in names.network.hosts:
                self._plug_in(host.name, host.switch)
            for cable in names.network.links:
                self._join(cable.ends[0], cable.ends[1], cable.bits_per_s / 1e9)

    @contextlib.contextmanager
    def _switch(self, switch: str) -> Any:
        namespace = self._names.namespace(switch)
        seed = self._names.hash_seed(switch, self._seed)
        netns_kernel.create(namespace)
        netns_kernel.inside(namespace, netns_build.set_kernel_up)
        netns_kernel.inside(namespace, lambda: _set_switch_up(seed))
        with netns_kernel.open_route(namespace) as route:
            (index,) = route.link_lookup(ifname="lo")
            address = self._names.switch_address(switch)
            route.addr("add", index=index, address=address, prefixlen=32)
            route.link("set", index=index, state="up")
            yield route

    def _join(self, near: str, far: str, gbps: float) -> None:
        names = self._names
        name = names.interface(near, far)
        peer = {
            "ifname": name,
            "mtu": MTU,
            "address": names.mac(far, near),
            "net_ns_fd": names.namespace(far),
        }
        here = {"ifname": name, "mtu": MTU, "address": names.mac(near, far)}
        self._switches[near].link("add", kind="veth", peer=peer, **here)
        for one, other in ((near, far), (far, near)):
            self._set_up(self._switches[one], name, gbps)
            set_neighbour(self._switches[one], names, one, other)

    def _plug_in(self, host: str, tor: str) -> None:
        """Gives the uplink the host's own address, as the end of the plan's cables."""
        names, gbps = self._names, self._record.gbps
        assert gbps is not None
        inside, switch = self._routes[names.hosts[host]], self._switches[tor]
        peer = {
            "ifname": UPLINK,
            "mtu": MTU,
            "address": names.mac(host, tor),
            "net_ns_fd": names.namespace(host),
        }
        socket = names.interface(tor, host)
        switch.link(
            "add", ifname=socket, kind="veth", mtu=MTU, address=names.mac(tor, host), peer=peer
        )
        own = names.host_address(host)
        # the host's own address, as the end of the plan's cables
        (unused,) = inside.link_lookup(ifname="host")
        inside.addr("delete", index=unused, address=own, prefixlen=32)
        uplink = self._set_up(inside, UPLINK, gbps)
        inside.addr("add", index=uplink, address=own, prefixlen=32)
        down = self._set_up(switch, socket, gbps)
        set_neighbour(inside, names, host, tor)
        set_neighbour(switch, names, tor, host)
        entry = {"gateway": names.switch_address(tor), "oif": uplink, "flags": ["onlink"]}
        inside.route("add", dst=self._layout.server_network, prefsrc=own, **entry)
        switch.route("add", dst=f"{own}/32", oif=down, scope="link")

    def _set_up(self, route: Any, name: str, gbps: float) -> int:
        """Brings an interface up, at its rate; returns its index."""
        (index,) = route.link_lookup(ifname=name)
        route.link("set", index=index, state="up")
        queue_s = netns_shaper.LOSSLESS_QUEUE_S
        netns_shaper.limit(route, index, gbps, MTU, self._record.shaper, queue_s=queue_s)
        return int(index)


def set_neighbour(route: Any, names: ClosNames, near: str, far: str) -> None:
    """At `near`, by its `route` socket: the address of `far` is behind the cable between them.

    Looking up the neighbour would delay everything that waits for the cable.
    """
    interface = UPLINK if near in names.hosts else names.interface(near, far)
    (index,) = route.link_lookup(ifname=interface)
    address = names.host_address(far) if far in names.hosts else names.switch_address(far)
    route.neigh(
        "replace",
        dst=address,
        lladdr=names.mac(far, near),
        ifindex=index,
        state=netns_kernel.NUD_PERMANENT,
    )


def _set_switch_up(seed: int) -> None:
    """Packets are spread by addresses, protocol and ports, each switch with a hash of its own.

    Policy 1 (layer 4) hashes the same fields. But for a sender on this machine the kernel then uses
    the hash drawn for its connection, equal at every switch and unpredictable from the port. Policy
    3 computes it from the packet. Answers to expired packets are not rate-limited.
    """
    try:
        (_IPV4 / "fib_multipath_hash_policy").write_text(_CUSTOM_HASH)
        (_IPV4 / "fib_multipath_hash_fields").write_text(_HASH_FIELDS)
        (_IPV4 / "fib_multipath_hash_seed").write_text(str(seed))
    except OSError as error:
        raise FabricError(
            f"emulated network: this kernel lets no switch hash in its own way "
            f"(net.ipv4.fib_multipath_hash_seed: {error.strerror}); Linux 6.11 does, with "
            "CONFIG_IP_ROUTE_MULTIPATH"
        ) from None
    (_IPV4 / "icmp_ratelimit").write_text("0")
    with contextlib.suppress(FileNotFoundError):  # older kernels: once for all namespaces
        (_IPV4 / "icmp_msgs_per_sec").write_text("1000000")
        (_IPV4 / "icmp_msgs_burst").write_text("100000")


def _keep_windows_small() -> None:
    """Limits the bytes in flight of one connection, since queues drop nothing: connections on a
    link get equal shares, and none waits longer than retransmissions do."""
    for name in ("tcp_rmem", "tcp_wmem"):
        least, usual, most = map(int, (_IPV4 / name).read_text().split())
        most = min(most, _WINDOW_BYTES)
        (_IPV4 / name).write_text(f"{least} {min(usual, most)} {most}")
