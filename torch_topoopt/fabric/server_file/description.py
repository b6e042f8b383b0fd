"""What another program's file says of a server: accelerators, what joins them, and ports."""

from __future__ import annotations

from dataclasses import dataclass

from torch_topoopt.plan.units import counted, format_gbps


@dataclass(frozen=True)
class DescribedPort:
    """A port of a network card. `pcie_gbps`: its share of the PCIe link (None: unknown)."""

    name: str
    speed_gbps: float | None = None
    pcie_gbps: float | None = None

    @property
    def gbps(self) -> float | None:
        """The slower of port and PCIe."""
        known = [rate for rate in (self.speed_gbps, self.pcie_gbps) if rate is not None]
        return None if self.speed_gbps is None else min(known)

    def __str__(self) -> str:
        if self.speed_gbps is None:
            return self.name
        text = f"{self.name} {format_gbps(self.speed_gbps)}"
        limited = self.pcie_gbps is not None and self.pcie_gbps < self.speed_gbps
        return f"{text} (PCIe allows {format_gbps(self.pcie_gbps or 0)})" if limited else text


@dataclass(frozen=True)
class ServerDescription:
    """`accelerators` that `joined_by` ("NVLink") joins with `inside_gbps` each (None: unknown)."""

    accelerators: int
    joined_by: str
    inside_gbps: float | None
    ports: tuple[DescribedPort, ...]

    @property
    def data_ports(self) -> tuple[DescribedPort, ...]:
        """The fastest ports: slower ones are for management and storage."""
        fastest = max((port.gbps or 0 for port in self.ports), default=0)
        return tuple(port for port in self.ports if (port.gbps or 0) == fastest)

    def __str__(self) -> str:
        text = counted(self.accelerators, "accelerator")
        if self.accelerators > 1 and self.joined_by:
            rate = f", {format_gbps(self.inside_gbps)} each" if self.inside_gbps else ""
            text += f" joined by {self.joined_by}{rate}"
        used = self.data_ports
        text += f"; {counted(len(used), 'port')}: {', '.join(map(str, used))}" if used else ""
        left = [str(port) for port in self.ports if port not in used]
        return f"{text}; without the slower {', '.join(left)}" if left else text
