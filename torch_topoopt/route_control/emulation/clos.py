"""An emulated Clos network, built from a network file, as root.

Every switch is a namespace that forwards, with a route over all shortest paths to every host; every
cable a veth pair, shaped to its rate in both directions; every host a namespace like those of a
`NetnsFabric`, found and removed by the same commands. Queues drop nothing, like links with flow
control.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Self

from torch_topoopt.fabric.netns import build as netns_build
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.fabric.netns.layout import MAX_SERVERS
from torch_topoopt.links.errors import FabricError
from torch_topoopt.processes.scratch import process_start
from torch_topoopt.route_control.emulation.build import MTU, ClosBuilder, set_neighbour
from torch_topoopt.route_control.emulation.names import ClosNames
from torch_topoopt.route_control.emulation.next_hops import next_hops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch_topoopt.route_control.network_file import NetworkFile

_NO_SUCH_ROUTE = 3  # ESRCH
_MAX_SWITCHES = 65_000


class EmulatedClos:
    """The network of `network`, as the fabric `name`; every host's cable carries `host_gbps`.

    It exists from `build()`, or while used in a `with`, until `close()`; with `keep` it outlives
    this process. Each switch has its own hash, which depends on `seed`. Raises FabricError where
    this machine cannot emulate it, or the network has addresses of its own.
    """

    def __init__(
        self,
        name: str,
        network: NetworkFile,
        host_gbps: float,
        *,
        seed: int = 0,
        keep: bool = False,
    ) -> None:
        netns_kernel.require()
        network.validate()
        netns_shaper.check_rate(max([host_gbps, *(c.bits_per_s / 1e9 for c in network.links)]))
        _check(network)
        self._name = name
        self._network = network
        self._host_gbps = host_gbps
        self._seed = seed
        self._keep = keep
        self._reserved: netns_state.Reservation | None = None
        self._names: ClosNames | None = None
        self._dead: frozenset[frozenset[str]] = frozenset()
        self._routes: dict[str, dict[str, tuple[str, ...]]] = {}  # installed on switches

    def __enter__(self) -> Self:
        self.build()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def build(self, progress: Callable[[str], None] = lambda step: None) -> None:
        """Builds everything; on failure raises FabricError and removes it again."""
        from pyroute2.netlink.exceptions import NetlinkError

        if self._reserved is not None:
            raise FabricError("emulated network: it is built already; close() it first")
        self._reserved = netns_state.reserve(self._name)
        try:
            record = self._record()
            self._names = ClosNames(self._network, record.layout)
            ClosBuilder(record, self._names, self._seed).build(progress)
            progress("routes")
            self._converge()
            record.validate().save(self._reserved.path / netns_state.RECORD)
            self.network.save(self.file)
            self._reserved.release()
        except NetlinkError as error:
            self.close()
            raise FabricError(f"emulated network: the kernel refused: {error}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kills the processes in the namespaces and removes them; harmless if there are none."""
        if self._reserved is not None:
            netns_state.take_down(self._name)
            self._reserved.release()
            self._reserved = self._names = None
            self._dead, self._routes = frozenset(), {}

    @property
    def names(self) -> ClosNames:
        """Names and addresses; raises FabricError unless it is built."""
        if self._names is None:
            raise FabricError("emulated network: it is not built")
        return self._names

    @property
    def network(self) -> NetworkFile:
        """The network file with the addresses of hosts and switches."""
        return self.names.addressed()

    @property
    def file(self) -> Path:
        """The path of that file, until `close()`."""
        return netns_state.folder() / self._name / netns_state.NETWORK

    @property
    def host_gbps(self) -> float:
        return self._host_gbps

    def cables_of(self, switch: str) -> list[tuple[str, str]]:
        """All cables from `switch` to other switches; without them it is isolated."""
        self.names.namespace(switch)
        pairs = [(cable.ends[0], cable.ends[1]) for cable in self._network.links]
        return [pair for pair in pairs if switch in pair]

    def cut(self, cables: Iterable[tuple[str, str]]) -> float:
        """Cuts cables, at once; switches then withdraw dead ends.

        Returns the seconds until no route leads to a dead end. Ignores cables that are cut already.
        """
        begun = time.perf_counter()
        ends = self._known(cables)
        self._dead |= ends
        for cable in sorted(ends, key=sorted):
            for near, far in self._both_ways(cable):
                with self._at(near) as route:
                    (index,) = route.link_lookup(ifname=self.names.interface(near, far))
                    route.link("set", index=index, state="down")
        self._converge()
        return time.perf_counter() - begun

    def restore(self, cables: Iterable[tuple[str, str]]) -> float:
        """Restores cables; returns the seconds until all routes use them."""
        begun = time.perf_counter()
        ends = self._known(cables)
        self._dead -= ends
        for cable in sorted(ends, key=sorted):
            for near, far in self._both_ways(cable):
                with self._at(near) as route:
                    (index,) = route.link_lookup(ifname=self.names.interface(near, far))
                    route.link("set", index=index, state="up")
                    set_neighbour(route, self.names, near, far)
        self._converge()
        return time.perf_counter() - begun

    def _known(self, cables: Iterable[tuple[str, str]]) -> frozenset[frozenset[str]]:
        ends = frozenset(map(frozenset, cables))
        for cable in ends - self.names.cables.keys():
            raise FabricError(f"emulated network: there is no cable {' - '.join(sorted(cable))}")
        return ends

    def _both_ways(self, cable: frozenset[str]) -> Iterator[tuple[str, str]]:
        a, b = sorted(cable)
        return iter(((a, b), (b, a)))

    @contextlib.contextmanager
    def _at(self, switch: str) -> Iterator[Any]:
        with netns_kernel.open_route(self.names.namespace(switch)) as route:
            yield route

    def _converge(self) -> None:
        """Installs the expected routes on switches where they differ."""
        wanted = next_hops(self._network, self._dead)
        hosts: dict[str, list[str]] = {}
        for entry in self._network.hosts:
            hosts.setdefault(entry.switch, []).append(entry.name)
        for switch, tables in wanted.items():
            before = self._routes.get(switch, {})
            if tables == before:
                continue
            with self._at(switch) as route:
                links = {link.get_attr("IFLA_IFNAME"): link["index"] for link in route.get_links()}
                for tor in sorted(before.keys() | tables.keys()):
                    if before.get(tor) != tables.get(tor):
                        for host in hosts[tor]:
                            self._write(route, switch, host, tables.get(tor, ()), links)
        self._routes = wanted

    def _write(
        self, route: Any, switch: str, host: str, nearer: tuple[str, ...], links: dict[str, int]
    ) -> None:
        """The route of `switch` to a host, over all switches that are `nearer` to it."""
        from pyroute2.netlink.exceptions import NetlinkError

        names = self.names
        target = f"{names.host_address(host)}/32"
        entries = [
            {
                "gateway": names.switch_address(near),
                "oif": links[names.interface(switch, near)],
                "flags": ["onlink"],
            }
            for near in nearer
        ]
        if len(entries) > 1:
            route.route("replace", dst=target, multipath=entries)
        elif entries:
            route.route("replace", dst=target, **entries[0])
        else:
            try:
                route.route("del", dst=target)
            except NetlinkError as error:
                if error.code != _NO_SUCH_ROUTE:  # else it vanished with the last cable
                    raise

    def _record(self) -> netns_state.FabricRecord:
        owner = 0 if self._keep else os.getpid()
        return netns_state.FabricRecord(
            version=netns_state.FabricRecord.VERSION,
            name=self._name,
            servers=len(self._network.hosts),
            degree=1,
            gbps=self._host_gbps,
            mtu=MTU,
            shaper=netns_shaper.choose(),
            forwarding="routes",
            classifier="",
            switch_delay_s=None,
            owner=owner,
            owner_start=process_start(owner) if owner else 0,
            block=netns_build.reserve_block(self._name),
        )


def _check(network: NetworkFile) -> None:
    for field, count, most in (
        ("hosts", len(network.hosts), MAX_SERVERS),
        ("switches", len(network.switches), _MAX_SWITCHES),
    ):
        if not 1 <= count <= most:
            raise FabricError(f"{field}: {count} is not in 1..{most}, what can be emulated")
    given = [(f"switches[{i}]", s.name, s.addresses) for i, s in enumerate(network.switches)]
    given += [(f"hosts[{i}]", h.name, h.addresses) for i, h in enumerate(network.hosts)]
    for where, name, addresses in given:
        if addresses:
            raise FabricError(
                f"{where}.addresses: {name} gets an address of the emulated network; leave them out"
            )
    for name in sorted({h.name for h in network.hosts} & {s.name for s in network.switches}):
        raise FabricError(f"hosts: {name!r} is a switch as well; names have to differ")
