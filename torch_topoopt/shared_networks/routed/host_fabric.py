"""A leaf-spine network with the hosts under its ToRs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from torch_topoopt.route_control.clos_network import ClosNetwork, leaf_spine

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class HostFabric:
    """`tors` ToRs with `hosts_per_tor` hosts each; a host is one network port, with one link up and
    one down. Every link carries `link_gbps`. Host h is under ToR h // hosts_per_tor.

    Raises ValueError for a number out of range. The defaults are those of the authors' code.
    """

    tors: int = 64
    spines: int = 32
    hosts_per_tor: int = 32
    link_gbps: float = 100.0

    def __post_init__(self) -> None:
        for name in ("tors", "spines", "hosts_per_tor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if not 0 < self.link_gbps < float("inf"):
            raise ValueError(f"link_gbps: {self.link_gbps} is not a number above 0")

    @property
    def hosts(self) -> int:
        return self.tors * self.hosts_per_tor

    @property
    def bytes_per_s(self) -> float:
        """Of a link."""
        return self.link_gbps * 1e9 / 8

    def tor_of(self, host: int) -> int:
        return host // self.hosts_per_tor

    @cached_property
    def whole(self) -> ClosNetwork:
        """Its switches, all alive."""
        return leaf_spine(self.tors, self.spines)

    def without(self, dead: Collection[int]) -> ClosNetwork:
        """Its switches without these spines; the others keep their numbers.

        Raises ValueError for an unknown spine, or if none is left.
        """
        for spine in dead:
            if not 0 <= spine < self.spines:
                raise ValueError(f"spine: {spine} is not one of {self.spines}")
        if len(set(dead)) == self.spines:
            raise ValueError(f"spine: all {self.spines} are dead")
        return _without(self.tors, self.spines, frozenset(dead)) if dead else self.whole

    @property
    def capacity(self) -> list[float]:
        """Bytes per second of all links: those of `whole` in order, then those up from the hosts,
        then those down to them."""
        return [self.bytes_per_s] * (len(self.whole.links) + 2 * self.hosts)

    def path(self, source: int, target: int, switches: tuple[int, ...]) -> list[int]:
        """The links from host to host over these switches; none under the same ToR."""
        first = len(self.whole.links)
        numbers = self.whole.link_numbers
        between = [numbers[hop] for hop in itertools.pairwise(switches)]
        return [first + source, *between, first + self.hosts + target]


@lru_cache(maxsize=32)
def _without(tors: int, spines: int, dead: frozenset[int]) -> ClosNetwork:
    gone = [(tor, spine) for tor in range(tors) for spine in sorted(dead)]
    return leaf_spine(tors, spines, dead_links=gone)
