"""The machines of a plan."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch_topoopt.plan import limits
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.plan.network import Link

BYTES_PER_GBPS = 1e9 / 8  # bytes per second of one Gb/s


@dataclass(frozen=True)
class Cluster:
    """The machines: `servers` with `degree` ports each, every port of `link_gbps` per direction.

    `ports` is "duplex" (a port carries both directions: NICs, copper cables) or "simplex" (separate
    transmit and receive fibres, each switched on its own; degree counts transmitters).
    `link_latency_s` is the signal's latency per hop; CostModel adds the relay's software.
    `accelerator` names an entry of the accelerator table; unless `memory_limited`, strategies may
    exceed its memory, as in the simulations that the paper released. The accelerators of a server
    exchange `inside_gbps` each, in each direction, with `inside_latency_s` a step. A server's host
    has `host_memory_gb` of memory. None: as in the accelerator's usual box.

    If rates differ, `port_gbps[server][port]` has them and `link_gbps` is the lowest; a link has
    the rate of its slower port. With given cables, servers may have different numbers of ports;
    `degree` is the largest. With `parallel_links`, TopologyFinder may connect two servers more than
    once, so it accepts any degree. An odd total of duplex ports leaves one unused (`dark_ports`).
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset(
        {"memory_limited", "inside_gbps", "inside_latency_s", "host_memory_gb"}
    )

    servers: int
    degree: int
    link_gbps: float
    ports: Literal["duplex", "simplex"] = "duplex"
    link_latency_s: float = 1e-6
    accelerators_per_server: int = 1
    accelerator: str = "cpu-core"
    parallel_links: bool = False
    port_gbps: tuple[tuple[float, ...], ...] | None = None
    memory_limited: bool = True
    inside_gbps: float | None = None
    inside_latency_s: float | None = None
    host_memory_gb: float | None = None

    def __post_init__(self) -> None:
        if self.inside_gbps is not None:
            object.__setattr__(self, "inside_gbps", float(self.inside_gbps))
        if self.host_memory_gb is not None:
            object.__setattr__(self, "host_memory_gb", float(self.host_memory_gb))
        if self.port_gbps is not None:  # 100 and 100.0 must serialise alike
            rates = tuple(tuple(map(float, row)) for row in self.port_gbps)
            object.__setattr__(self, "port_gbps", rates)

    def validate(self, *, any_degree: bool = False, pair_tables: bool = True) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right.

        `any_degree` admits clusters that TopologyFinder could not wire. `pair_tables=False` admits
        more servers than tables over all pairs can hold.
        """
        if self.servers < 1:
            raise DocumentError(f"servers: must be at least 1 (got {self.servers})")
        if pair_tables:
            limits.check_servers(self.servers)
        if self.degree < 1:
            raise DocumentError(f"degree: must be at least 1 (got {self.degree})")
        limits.check_items(self.servers * self.degree, "degree", self.degree, "ports")
        if not any_degree:
            self._check_degree()
        if not 0 < self.link_gbps < math.inf:
            raise DocumentError(f"link_gbps: {self.link_gbps} is not a finite number above 0")
        if not 0 <= self.link_latency_s < math.inf:
            raise DocumentError(
                f"link_latency_s: {self.link_latency_s} is not a finite number from 0 on"
            )
        if self.accelerators_per_server < 1:
            raise DocumentError(
                f"accelerators_per_server: must be at least 1 (got {self.accelerators_per_server})"
            )
        if self.inside_gbps is not None and not 0 < self.inside_gbps < math.inf:
            raise DocumentError(f"inside_gbps: {self.inside_gbps} is not a finite number above 0")
        if self.inside_latency_s is not None and not 0 <= self.inside_latency_s < math.inf:
            raise DocumentError(
                f"inside_latency_s: {self.inside_latency_s} is not a finite number from 0 on"
            )
        if self.host_memory_gb is not None and not 0 < self.host_memory_gb < math.inf:
            raise DocumentError(
                f"host_memory_gb: {self.host_memory_gb} is not a finite number above 0"
            )
        limits.check_items(
            self.servers * self.accelerators_per_server,
            "accelerators_per_server",
            self.accelerators_per_server,
            "accelerators",
        )
        if self.port_gbps is not None:
            self._check_port_rates(self.port_gbps, any_degree=any_degree)
        return self

    def _check_degree(self) -> None:
        most = math.inf if self.parallel_links or self.servers == 1 else self.servers - 1
        if self.degree > most:
            raise DocumentError(
                f"degree: {self.degree} ports per server cannot reach {self.servers - 1} other "
                f"servers once each; use a degree of at most {self.servers - 1}, or ask for "
                "parallel links (--parallel-links)"
            )
        if self.ports == "duplex" and self.degree == 1 and self.servers > 2:
            raise DocumentError(
                f"degree: 1 port per server cannot connect {self.servers} servers, for a duplex "
                "ring needs two; use at least 2, or simplex ports"
            )

    def _check_port_rates(self, rates: tuple[tuple[float, ...], ...], *, any_degree: bool) -> None:
        if len(rates) != self.servers:
            raise DocumentError(f"port_gbps: {len(rates)} rows for {self.servers} servers")
        for server, row in enumerate(rates):
            if len(row) > self.degree or (len(row) < self.degree and not any_degree):
                raise DocumentError(
                    f"port_gbps[{server}]: {len(row)} rates for {self.degree} ports"
                )
            for port, gbps in enumerate(row):
                if not 0 < gbps < math.inf:
                    raise DocumentError(
                        f"port_gbps[{server}][{port}]: {gbps} is not a finite number above 0"
                    )
        least = min((gbps for row in rates for gbps in row), default=self.link_gbps)
        if self.link_gbps != least:
            raise DocumentError(
                f"link_gbps: {self.link_gbps} is not {least}, the least rate of port_gbps"
            )

    def dark_ports(self, links: Sequence[Link]) -> int:
        """The number of ports, over all servers, from which no link of the network starts."""
        ports = sum(map(self.ports_of, range(self.servers)))
        return ports - len({(link.source, link.source_port) for link in links})

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gbps * BYTES_PER_GBPS

    def ports_of(self, server: int) -> int:
        """The number of ports of `server`."""
        return self.degree if self.port_gbps is None else len(self.port_gbps[server])

    def port_rate(self, server: int, port: int) -> float:
        """Gb/s of a port, per direction."""
        return self.link_gbps if self.port_gbps is None else self.port_gbps[server][port]

    def server_gbps(self, server: int) -> float:
        """Gb/s of all ports of `server`, per direction."""
        if self.port_gbps is None:
            return self.degree * self.link_gbps
        return sum(self.port_gbps[server])

    def gbps_of(self, link: Link) -> float:
        """Gb/s of a link: that of the slower of its two ports."""
        return min(
            self.port_rate(link.source, link.source_port),
            self.port_rate(link.target, link.target_port),
        )

    def pair_gbps(self, links: Iterable[Link]) -> dict[tuple[int, int], float]:
        """(source, target) of every link -> Gb/s of all links between the two.

        Parallel links share bytes evenly, so their sum is the slowest rate times their number.
        """
        if self.port_gbps is None:
            counts = Counter((link.source, link.target) for link in links)
            return {pair: count * self.link_gbps for pair, count in counts.items()}
        rates: dict[tuple[int, int], list[float]] = {}
        for link in links:
            rates.setdefault((link.source, link.target), []).append(self.gbps_of(link))
        return {pair: len(of_pair) * min(of_pair) for pair, of_pair in rates.items()}
