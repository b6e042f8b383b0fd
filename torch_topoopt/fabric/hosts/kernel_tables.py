"""Routing tables of one host for topologies of circuits, beside the host's own routes.

Each topology has a table, written in advance, with fixed neighbour entries. One rule selects the
current one. All entries have a protocol number of their own, by which they are found again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROTOCOL = 84  # not in iproute2's rt_protos
_TABLE = 2000  # of the first topology
_PRIORITY = 500  # of the rule: before those of relays and of the plan's routes


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

    def write(self, number: int, routes: Iterable[CircuitRoute]) -> None:
        """Adds routes to the table of a topology."""
        indexes: dict[str, int] = {}
        with self._kernel() as kernel:
            for route in routes:
                if route.interface not in indexes:
                    (indexes[route.interface],) = kernel.link_lookup(ifname=route.interface)
                self._add(kernel, _TABLE + number, route, indexes[route.interface])

    def select(self, number: int | None) -> None:
        """Selects the table of a topology, or none. Adds the new rule first, so that there is
        always a route."""
        before = self._selected
        if number == before:
            return
        with self._kernel() as kernel:
            if number is not None:
                self._rule(kernel, "add", number)
                self._selected = number
            if before is not None:
                self._rule(kernel, "del", before)
            if number is None:
                self._selected = None

    def forget_neighbours(self) -> None:
        """Call when a port may have been down: the kernel has removed its entries."""
        self._named.clear()

    def close(self) -> None:
        """Closes the connection to the kernel, which opens again on demand; routes stay."""
        self._opened.close()
        self._route = None

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
    def _rule(kernel: Any, what: str, number: int) -> None:
        kernel.rule(what, table=_TABLE + number, priority=_PRIORITY, protocol=PROTOCOL)

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
