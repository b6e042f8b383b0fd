"""The settings of one real host for a Plan: addresses, routes, neighbours, relay rules.

Pure functions. This is the host-based forwarding of the TopoOpt paper (Appendix I): every port has
a second interface, whose MAC address marks traffic to relay. A sender addresses the frame to the
second interface of the first relay, and each relay sends it out of the planned port. If it can, the
last relay addresses it to the first interface of the receiver, so that a NIC with RDMA accepts it.

Unlike in the paper, second interfaces share one MAC address (FORWARD_MAC). No Ethernet switch is
in the way that this could confuse. Hosts need not know others' second addresses, and a relay that
can redirect frames but not rewrite them suffices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.links.addresses import is_link_local
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.fabric.cluster.static_plan import PortNames
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry
    from torch_topoopt.plan import Link, Plan

FORWARD_MAC = "02:54:4f:50:4f:46"  # locally administered


@dataclass(frozen=True)
class PortSetup:
    """A port that the plan uses; `second` is the interface for traffic that passes through."""

    name: str
    interface: str
    second: str
    address: str
    ip: str
    mtu: int | None
    mac: str | None
    gbps: float | None


@dataclass(frozen=True)
class RouteSetup:
    """The route of this host to one address; if `mac` is None, the kernel resolves it."""

    destination: str
    interface: str
    source: str
    mac: str | None
    path: tuple[str, ...]


@dataclass(frozen=True)
class RelaySetup:
    """A relay rule of this host: a frame that enters at `entry` (from `source`; None: any) leaves
    at `interface`, with the new destination address `mac` (None: unchanged).
    """

    entry: str
    source: str | None
    destination: str
    interface: str
    mac: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True)
class HostSetup:
    cluster: str
    host: str
    plan_digest: str
    ports: tuple[PortSetup, ...]
    routes: tuple[RouteSetup, ...]
    relays: tuple[RelaySetup, ...]


@dataclass(frozen=True)
class _Way:
    """The links by which `source` reaches one address of the servers' last."""

    links: tuple[Link, ...]
    address: str


def host_setup(plan: Plan, file: ClusterFile, host: str) -> HostSetup:
    """The setup of server `host`.

    Raises FabricError if the plan does not fit the cluster, or if the file lacks what a host needs
    (the interface of a port); DocumentError for an unknown host.
    """
    number = file.server_number(host)
    entry = file.servers[number]
    shared = [s.name for s in file.servers if s.machine == entry.machine and s.name != host]
    if shared:
        raise FabricError(
            f"{host} shares the machine {entry.machine} with {', '.join(shared)}; a script sets up "
            "one network stack for one server, so give each a network namespace and a host of its "
            "own in the cluster file"
        )
    if any(port.switch for _, port in file.ports.values()):
        file = place_on_switches(plan, file).file  # with the circuits that `fabric apply` makes
    network = _Network(plan, file, place(plan, file))
    return HostSetup(
        cluster=file.name,
        host=host,
        plan_digest=plan.digest(),
        ports=tuple(network.ports(number)),
        routes=tuple(network.routes(number)),
        relays=tuple(network.relays(number)),
    )


class _Network:
    """The plan on the ports of the file."""

    def __init__(self, plan: Plan, file: ClusterFile, placed: PortNames) -> None:
        self._plan = plan
        self._file = file
        self._placed = placed
        for end in sorted(placed.values()):
            if is_link_local(file.ports[end][1].ip):
                raise FabricError(
                    f"{end}: {file.ports[end][1].ip} is of one cable, and no host forwards it; "
                    "give the ports addresses of subnets, such as 10.201.0.1/30 (ranks relay "
                    "without any)"
                )
        self._links: dict[tuple[int, int], list[Link]] = {}
        for link in plan.network.links:
            self._links.setdefault((link.source, link.target), []).append(link)
        self._by_server: dict[int, list[int]] = {}
        for server, port in sorted(placed):
            self._by_server.setdefault(server, []).append(port)

    def ports(self, server: int) -> Iterator[PortSetup]:
        for number in self._by_server.get(server, ()):
            port = self._entry(server, number)
            yield PortSetup(
                name=port.name,
                interface=self._interface(server, number),
                second=_second(number),
                address=port.address,
                ip=port.ip,
                mtu=port.mtu,
                mac=port.mac,
                gbps=port.gbps,
            )

    def routes(self, server: int) -> Iterator[RouteSetup]:
        """One for every address of every other server."""
        for (source, target), ways in self._ways():
            if source != server:
                continue
            for way in ways:
                first = way.links[0]
                arrives = self._entry(first.target, first.target_port)
                mac: str | None = FORWARD_MAC
                if len(way.links) == 1 and arrives.mac is not None:
                    mac = arrives.mac
                elif len(way.links) == 1 and arrives.ip == way.address:
                    mac = None  # the kernel asks for it over the cable
                yield RouteSetup(
                    destination=way.address,
                    interface=self._interface(source, first.source_port),
                    source=self._entry(source, first.source_port).ip,
                    mac=mac,
                    path=self._names((*(k.source for k in way.links), target)),
                )

    def relays(self, server: int) -> Iterator[RelaySetup]:
        """Relay rules by destination if all sources at a port share a way, else by source, too."""
        passing: dict[tuple[int, str], list[tuple[Link, tuple[int, ...]]]] = {}
        for (_, target), ways in self._ways():
            for way in ways:
                path = (*(link.source for link in way.links), target)
                for enters, leaves in zip(way.links, way.links[1:], strict=False):
                    if leaves.source == server:
                        key = (enters.target_port, way.address)
                        passing.setdefault(key, []).append((leaves, path))
        for (port, address), found in sorted(passing.items()):
            exits = {leaves for leaves, _ in found}
            if len(exits) == 1:
                paths = tuple(sorted({path for _, path in found}))
                yield self._relay(port, None, address, found[0][0], paths)
                continue
            for leaves, path in sorted(found, key=lambda one: one[1]):
                for number in self._by_server[path[0]]:
                    source = self._entry(path[0], number).ip
                    yield self._relay(port, source, address, leaves, (path,))

    def _relay(
        self,
        port: int,
        source: str | None,
        address: str,
        leaves: Link,
        paths: tuple[tuple[int, ...], ...],
    ) -> RelaySetup:
        last = all(path[-1] == leaves.target for path in paths)
        return RelaySetup(
            entry=_second(port),
            source=source,
            destination=address,
            interface=self._interface(leaves.source, leaves.source_port),
            mac=self._entry(leaves.target, leaves.target_port).mac if last else None,
            paths=tuple(" -> ".join(self._names(path)) for path in paths),
        )

    def _ways(self) -> Iterator[tuple[tuple[int, int], list[_Way]]]:
        """For every ordered pair: the way from the first server to each address of the second.

        The addresses of a server are spread over the pair's routes by weight, so that several
        connections use several routes.
        """
        for pair, routes in sorted(self._plan.network.routes_by_pair().items()):
            ports = self._by_server.get(pair[1], [])
            given = [0] * len(routes)
            ways = []
            for turn, number in enumerate(ports):
                route = self._direct(pair, number, routes)
                if route is None:
                    chosen = max(
                        range(len(routes)),
                        key=lambda i: (routes[i].weight * (sum(given) + 1) - given[i], -i),
                    )
                    given[chosen] += 1
                    route = routes[chosen]
                hops = zip(route.servers, route.servers[1:], strict=False)
                links = tuple(self._link(hop, pair[1], number, turn) for hop in hops)
                ways.append(_Way(links, self._entry(pair[1], number).ip))
            yield pair, ways

    def _direct(
        self, pair: tuple[int, int], number: int, routes: tuple[Route, ...]
    ) -> Route | None:
        """The cable itself, for the address at its other end."""
        if any(link.target_port == number for link in self._links.get(pair, ())):
            return next((route for route in routes if len(route.servers) == 2), Route(pair, 1.0))
        return None

    def _link(self, hop: tuple[int, int], target: int, number: int, turn: int) -> Link:
        links = self._links[hop]
        if hop[1] == target:
            for link in links:
                if link.target_port == number:
                    return link
        return links[turn % len(links)]

    def _entry(self, server: int, number: int) -> PortEntry:
        return self._file.ports[self._placed[server, number]][1]

    def _interface(self, server: int, number: int) -> str:
        interface = self._entry(server, number).interface
        if interface is None:
            raise FabricError(
                f"{self._placed[server, number]}: the cluster file does not say its interface; add "
                "`interface: eth1` (the name on that host) to the port"
            )
        return interface

    def _names(self, servers: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._file.servers[server].name for server in servers)


def _second(number: int) -> str:
    """The second interface's name; short, since names have at most 15 characters."""
    return f"topofwd{number}"
