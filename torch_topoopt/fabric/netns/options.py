"""Options of a fabric of network namespaces: its links, and which hosts or ranks relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.links.errors import FabricError

_MAX_DELAY_S = 600.0
_MIN_MTU, _MAX_MTU = 576, 65521  # bytes


@dataclass(frozen=True)
class NetnsOptions:
    """Checked by `validate`.

    `gbps` limits every link per direction (None: as fast as the machine is); `shaper` does that
    ("tbf", "htb"; None: the first that there is). `mtu` is in bytes. `forwarding`: how relays
    recognise packets to forward, "routes" (by IP address) or "split" (by MAC address, Appendix I).
    `relay`: whether the ranks relay ("user") or leave it to the hosts ("kernel"). With
    `switch_delay_s` the cables run through an emulated optical switch whose mirrors take that many
    seconds to move. `lossless` links are as those with flow control: what waits for a link is never
    dropped, so that sockets need no pace. With `keep` the fabric outlives the process that made it.
    Verifying a link may take `timeout_s`, and so may the switch, beyond its delay.
    """

    gbps: float | None = None
    mtu: int = 1500
    shaper: str | None = None
    forwarding: Literal["routes", "split"] = "routes"
    relay: Literal["user", "kernel"] = "user"
    switch_delay_s: float | None = None
    lossless: bool = False
    keep: bool = False
    timeout_s: float = 5.0

    def validate(self) -> None:
        """Raises FabricError for what is out of range."""
        if not _MIN_MTU <= self.mtu <= _MAX_MTU:
            raise FabricError(f"mtu: {self.mtu} is not in {_MIN_MTU}..{_MAX_MTU}")
        if self.switch_delay_s is not None and not 0 <= self.switch_delay_s <= _MAX_DELAY_S:
            raise FabricError(
                f"switch-delay-s: {self.switch_delay_s:g} is not in 0..{_MAX_DELAY_S:g} seconds"
            )
        if self.gbps is not None:
            netns_shaper.check_rate(self.gbps)


DEFAULT_OPTIONS = NetnsOptions()
