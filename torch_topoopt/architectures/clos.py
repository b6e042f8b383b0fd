"""Two levels of switches over any ports, such as those of the boards of a HammingMesh row.

Appendix C of the HammingMesh paper: leaves of `radix` ports divide them between ports below and
uplinks, 32 and 32 of 64 without taper, 42 and 22 at 50 %, 51 and 13 at 75 %; spines take all
uplinks. Ports that fit into one switch need no tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.architectures.topology import Medium, Wires

RADIX = 64  # ports of the switch of the HammingMesh paper


def uplinks_of(radix: int, taper: float) -> int:
    """Uplinks of a leaf that carry the fraction `taper` of the traffic from below."""
    return math.ceil(radix * taper / (1 + taper) - 1e-9)


def check_switches(radix: int, taper: float, field: str = "taper") -> None:
    """Raises ValueError for a radix without ports both ways, or a taper outside (0, 1]."""
    if radix < 2:
        raise ValueError(f"radix: {radix} is not at least 2")
    if not 0 < taper <= 1:
        raise ValueError(f"{field}: {taper} is not above 0 and at most 1")


@dataclass(frozen=True)
class TwoLevels:
    """Switches of `radix` ports for `ports` ports below; `taper` is uplinks over ports below."""

    ports: int
    radix: int
    taper: float

    @property
    def single(self) -> bool:
        """Whether one switch is enough."""
        return self.ports <= self.radix

    @property
    def up(self) -> int:
        """Uplinks of a leaf; 0 if there is one switch only."""
        return 0 if self.single else uplinks_of(self.radix, self.taper)

    @property
    def down(self) -> int:
        """Ports of a leaf towards the nodes below."""
        return self.radix - self.up

    @property
    def leaves(self) -> int:
        return math.ceil(self.ports / self.down)

    @property
    def spines(self) -> int:
        return math.ceil(self.leaves * self.up / self.radix)

    @property
    def switches(self) -> int:
        return self.leaves + self.spines

    def validate(self) -> TwoLevels:
        """Returns self; raises ValueError for more ports than two levels have."""
        if self.leaves > self.radix:
            most = self.radix * (self.radix - uplinks_of(self.radix, self.taper))
            raise ValueError(
                f"radix: {self.radix} is not enough for two levels over {self.ports} ports; they "
                f"take {most}"
            )
        return self

    def wire(
        self, wires: Wires, below: Sequence[int], first: int, gbps: float, medium: Medium
    ) -> None:
        """Cables of `medium` from the nodes `below`, one for each port, to the leaves from `first`
        on, filled in order; optical ones from there to the spines after them, dealt out in turn."""
        up, leaves, spines = self.up, self.leaves, self.spines
        wires.to_leaves(below, first, self.down, gbps, medium)
        for i in range(leaves * up):
            wires.cable(first + i // up, first + leaves + i % spines, gbps, medium="aoc")
