"""Options of a fabric of network namespaces: its links, and which hosts or ranks relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.links.errors import FabricError

_MAX_DELAY_S = 600.0
_MAX_SPARES = 8
_MIN_MTU, _MAX_MTU = 576, 65521  # bytes


@dataclass(frozen=True)
class NetnsOptions:
    """Checked by `validate`.

    - `gbps`: limit of every link per direction (None: no limit), enforced by `shaper` ("tbf",
      "htb"; None: the first that the kernel has). `mtu` is in bytes.
    - `forwarding`: relays recognise packets to forward by IP address ("routes") or by MAC address
      ("split", Appendix I). `relay`: the ranks relay ("user") or the hosts do ("kernel").
    - `switch_delay_s`: the cables run through an emulated optical switch with this settle time.
    - `spare_ports`: further ports of each server on that switch, without circuits.
    - `lossless`: queues never drop, as with flow control, so sockets need no pacing.
    - `keep`: the fabric outlives its process. `timeout_s` limits the verification of a link, and
      the switch beyond its delay.
    """

    gbps: float | None = None
    mtu: int = 1500
    shaper: str | None = None
    forwarding: Literal["routes", "split"] = "routes"
    relay: Literal["user", "kernel"] = "user"
    switch_delay_s: float | None = None
    spare_ports: int = 0
    lossless: bool = False
    keep: bool = False
    timeout_s: float = 5.0

    def validate(self) -> None:
        """Raises FabricError for a value out of range."""
        if not _MIN_MTU <= self.mtu <= _MAX_MTU:
            raise FabricError(f"mtu: {self.mtu} is not in {_MIN_MTU}..{_MAX_MTU}")
        if self.switch_delay_s is not None and not 0 <= self.switch_delay_s <= _MAX_DELAY_S:
            raise FabricError(
                f"switch-delay: {self.switch_delay_s:g} is not in 0..{_MAX_DELAY_S:g} seconds"
            )
        if not 0 <= self.spare_ports <= _MAX_SPARES:
            raise FabricError(f"spare-ports: {self.spare_ports} is not in 0..{_MAX_SPARES}")
        if self.spare_ports and self.switch_delay_s is None:
            raise FabricError(
                f"spare-ports: {self.spare_ports}: there is no switch that could give them "
                "circuits; use --fabric netns --switch-delay SECONDS"
            )
        if self.spare_ports and (self.relay != "user" or self.forwarding != "routes"):
            raise FabricError(
                f"spare-ports: {self.spare_ports}: the hosts' routes know the planned ports alone; "
                "use --relay user"
            )
        if self.gbps is not None:
            netns_shaper.check_rate(self.gbps)


DEFAULT_OPTIONS = NetnsOptions()
