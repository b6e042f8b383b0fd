"""Routing tables of one host for topologies of circuits, in addition to the host's own routes.

Each topology has a table, written in advance, with fixed neighbour entries. One rule selects the
current one. On real hosts, other tables have the plan's routes: one for the host's own packets, and
one for the relayed packets of each source. All entries have a protocol number of their own, by
which they are found again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROTOCOL = 84  # not in iproute2's rt_protos
_IPV4 = 2  # AF_INET
_PLAN_TABLE = 84_000  # of the host's own packets; the sources of relayed ones follow
_TABLE = 85_000  # of the first topology
_PRIORITY = 500  # of the rule: before those of relays and of the plan's routes
_RELAY_PRIORITY, _PLAN_PRIORITY = 501, 502
# Settings of net/ipv4 for connections that are opened afterwards. While circuits of a group move,
# packets to other servers are lost. TCP would double the time after each loss, and wait on when the
# circuits are back.
RETRANSMIT_SOON = {
    "tcp_thin_linear_timeouts": "1",
    "tcp_rto_max_ms": "1000",  # the least that Linux allows; since 6.15
}


@dataclass(frozen=True)
class CircuitRoute:
    """Packets for `destination` leave from `interface`, in frames to `mac`.

    `gateway` names that neighbour; no interface needs to have the address. `source` is the address
    of new connections (None: the kernel chooses).
    """

    destination: str
    interface: str
    gateway: str
    mac: str
    source: str | None = None


class KernelTables:
    """The tables of the host in `namespace` (None: that of this process), called `name` in errors.

    Methods raise FabricError. One thread at a time; after close(), another one may go on.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self._name = name
        self._namespace = namespace
        self._opened = contextlib.ExitStack()
        self._route: Any = None  # an IPRoute
        self._named: set[tuple[str, int]] = set()  # gateways with an entry, by interface
        self._selected: int | None = None
        self._has_plan = False

    def write(self, number: int, routes: Iterable[CircuitRoute]) -> None:
        """Adds routes to the table of a topology."""
        with self._kernel() as kernel:
            self._write(kernel, _TABLE + number, routes)

    def write_plan(
        self, own: Iterable[CircuitRoute], relayed: Mapping[str, Iterable[CircuitRoute]]
    ) -> None:
        """Writes the plan's routes: of the host's `own` packets, and of those that it relays, by
        source address. They apply where no topology is selected; call it again to renew them."""
        with self._kernel() as kernel:
            self._write(kernel, _PLAN_TABLE, own)
            for number, (source, routes) in enumerate(relayed.items(), start=1):
                self._write(kernel, _PLAN_TABLE + number, routes)
                if not self._has_plan:
                    self._rule(
                        *(kernel, "add", _PLAN_TABLE + number, _RELAY_PRIORITY),
                        src=source,
                        src_len=32,
                    )
            if not self._has_plan:
                self._rule(kernel, "add", _PLAN_TABLE, _PLAN_PRIORITY)
                self._has_plan = True

    def select(self, number: int | None) -> None:
        """Selects the table of a topology, or none. Adds the new rule first, so that there is
        always a route."""
        before = self._selected
        if number == before:
            return
        with self._kernel() as kernel:
            if number is not None:
                self._rule(kernel, "add", _TABLE + number, _PRIORITY)
                self._selected = number
            if before is not None:
                self._rule(kernel, "del", _TABLE + before, _PRIORITY)
            if number is None:
                self._selected = None

    def forget_neighbours(self) -> None:
        """Call when a port may have been down: the kernel has removed its entries."""
        self._named.clear()

    def clear(self) -> None:
        """Removes all rules, routes and neighbours of PROTOCOL, also those of earlier processes."""
        with self._kernel() as kernel:
            for rule in kernel.get_rules(family=_IPV4):
                if rule.get_attr("FRA_PROTOCOL") == PROTOCOL:
                    source = rule.get_attr("FRA_SRC")
                    of = {} if source is None else {"src": source, "src_len": 32}
                    table, priority = rule.get_attr("FRA_TABLE"), rule.get_attr("FRA_PRIORITY")
                    self._rule(kernel, "del", table, priority, **of)
            for route in kernel.get_routes(family=_IPV4):
                if route["proto"] == PROTOCOL:
                    table, address = route.get_attr("RTA_TABLE"), route.get_attr("RTA_DST")
                    kernel.route("del", dst=f"{address}/32", table=table, proto=PROTOCOL)
            for entry in kernel.get_neighbours(family=_IPV4):
                if entry.get_attr("NDA_PROTOCOL") == PROTOCOL:
                    kernel.neigh("del", dst=entry.get_attr("NDA_DST"), ifindex=entry["ifindex"])
        self._named.clear()
        self._selected, self._has_plan = None, False

    def close(self) -> None:
        """Closes the connection to the kernel, which opens again on demand; routes stay."""
        self._opened.close()
        self._route = None

    def _write(self, kernel: Any, table: int, routes: Iterable[CircuitRoute]) -> None:
        indexes: dict[str, int] = {}
        for route in routes:
            if route.interface not in indexes:
                found = kernel.link_lookup(ifname=route.interface)
                if not found:
                    raise FabricError(f"{self._name}: there is no interface {route.interface}")
                indexes[route.interface] = found[0]
            self._add(kernel, table, route, indexes[route.interface])

    def _add(self, kernel: Any, table: int, route: CircuitRoute, index: int) -> None:
        if (route.gateway, index) not in self._named:
            self._named.add((route.gateway, index))
            kernel.neigh(
                "replace",
                dst=route.gateway,
                lladdr=route.mac,
                ifindex=index,
                state=netns_kernel.NUD_PERMANENT,
                protocol=PROTOCOL,
            )
        source = {} if route.source is None else {"prefsrc": route.source}
        kernel.route(
            "replace",
            dst=f"{route.destination}/32",
            table=table,
            gateway=route.gateway,
            oif=index,
            flags=["onlink"],
            proto=PROTOCOL,
            **source,
        )

    @staticmethod
    def _rule(kernel: Any, what: str, table: int, priority: int, **of: Any) -> None:
        kernel.rule(what, table=table, priority=priority, protocol=PROTOCOL, **of)

    @contextlib.contextmanager
    def _kernel(self) -> Iterator[Any]:
        """The IPRoute; turns its errors into FabricError."""
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            if self._route is None:
                opened = netns_kernel.open_route(self._namespace)
                self._route = self._opened.enter_context(opened)
            yield self._route
        except (NetlinkError, OSError) as error:
            raise FabricError(f"{self._name}: {error}") from None
