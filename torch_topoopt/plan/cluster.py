"""The machines of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from torch_topoopt.data_model import DocumentError

BYTES_PER_GBPS = 1e9 / 8  # bytes per second of one Gb/s


@dataclass(frozen=True)
class Cluster:
    """The machines: `servers` with `degree` ports each, every port of `link_gbps` per direction.

    `ports` is "duplex" (a port carries both directions: NICs, copper cables) or "simplex" (separate
    transmit and receive fibres, each switched on its own; degree counts transmitters).
    `link_latency_s` is paid once per hop. `accelerator` names an entry of the accelerator table.
    """

    servers: int
    degree: int
    link_gbps: float
    ports: Literal["duplex", "simplex"] = "duplex"
    link_latency_s: float = 1e-6
    accelerators_per_server: int = 1
    accelerator: str = "cpu-core"

    def validate(self, *, any_degree: bool = False) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right.

        With `any_degree`, also a cluster that TopologyFinder could not wire.
        """
        if self.servers < 1:
            raise DocumentError(f"servers: {self.servers} is not at least 1")
        if self.degree < 1:
            raise DocumentError(f"degree: {self.degree} is not at least 1")
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
                f"accelerators_per_server: {self.accelerators_per_server} is not at least 1"
            )
        return self

    def _check_degree(self) -> None:
        if self.servers > 1 and self.degree > self.servers - 1:
            raise DocumentError(
                f"degree: {self.degree} ports per server cannot reach {self.servers - 1} other "
                f"servers once each; use a degree of at most {self.servers - 1}"
            )
        if self.ports == "duplex" and self.degree % 2 and self.servers > 2:
            near = (self.degree - 1, self.degree + 1)
            even = " or ".join(str(d) for d in near if 2 <= d <= self.servers - 1)
            raise DocumentError(
                f"degree: {self.degree} is odd; a duplex ring needs two ports per server, "
                f"so use {even}, or simplex ports"
            )

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gbps * BYTES_PER_GBPS
