"""The network file: names and addresses of switches and hosts, and the cables between switches.

The builder of a network writes it, and the controller reads it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError, brief
from torch_topoopt.route_control.clos_network import ClosNetwork

if TYPE_CHECKING:
    from collections.abc import Collection

LONGEST_NAME = 200


@dataclass(frozen=True)
class NamedSwitch:
    name: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedHost:
    """`switch` is its ToR."""

    name: str
    switch: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class SwitchCable:
    """Between two switches, `bits_per_s` in each direction."""

    ends: tuple[str, ...]
    bits_per_s: float


@dataclass(frozen=True)
class NetworkFile(Document):
    KIND: ClassVar[str] = "network file"
    VERSION: ClassVar[int] = 1

    version: int
    switches: tuple[NamedSwitch, ...]
    hosts: tuple[NamedHost, ...]
    links: tuple[SwitchCable, ...]

    def validate(self) -> Self:
        """Returns self; raises DocumentError for repeated or unknown names, and bad capacities."""
        for field, items in (("switches", self.switches), ("hosts", self.hosts)):
            seen: set[str] = set()
            for i, name in enumerate(item.name for item in items):
                where = f"{field}[{i}].name"
                check_name(where, name)
                if name in seen:
                    raise DocumentError(f"{where}: {brief(name)} is given twice")
                seen.add(name)
        switches = {switch.name for switch in self.switches}
        for i, host in enumerate(self.hosts):
            if host.switch not in switches:
                raise DocumentError(f"hosts[{i}].switch: {brief(host.switch)} is not a switch")
        joined: set[frozenset[str]] = set()
        for i, cable in enumerate(self.links):
            ends = frozenset(cable.ends)
            if len(cable.ends) != 2 or len(ends) != 2 or not ends <= switches:
                raise DocumentError(
                    f"links[{i}].ends: {brief(list(cable.ends))} are not two switches"
                )
            if ends in joined:
                raise DocumentError(f"links[{i}].ends: these two switches are joined already")
            joined.add(ends)
            if not 0 < cable.bits_per_s < math.inf:
                raise DocumentError(f"links[{i}].bits_per_s: {cable.bits_per_s} is not above 0")
        return self

    @cached_property
    def numbered(self) -> tuple[str, ...]:
        """Switches by their numbers in `network`: those with hosts first, in file order."""
        tors = {host.switch for host in self.hosts}
        names = [switch.name for switch in self.switches]
        return tuple(sorted(names, key=lambda name: name not in tors))

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.numbered)}

    @cached_property
    def tor_of(self) -> dict[str, int]:
        """The number of the ToR of each host."""
        return {host.name: self.numbers[host.switch] for host in self.hosts}

    @cached_property
    def cables(self) -> frozenset[frozenset[str]]:
        return frozenset(frozenset(cable.ends) for cable in self.links)

    def network(self, dead: Collection[frozenset[str]] = ()) -> ClosNetwork:
        """Without the cables in `dead`, which are pairs of names; capacities in bits/s."""
        tors = len(set(self.tor_of.values()))
        both: dict[tuple[int, int], float] = {}
        for cable in self.links:
            if frozenset(cable.ends) not in dead:
                a, b = (self.numbers[name] for name in cable.ends)
                both[a, b] = both[b, a] = cable.bits_per_s
        two_tiers = all((a < tors) != (b < tors) for a, b in both)
        return ClosNetwork(tors, both, len(self.switches) - tors if two_tiers else 0)

    def path_numbers(self, path: Collection[str]) -> tuple[int, ...] | None:
        """Switches of `path` by their numbers; None for an unknown or unconnected one."""
        if not path or not all(name in self.numbers for name in path):
            return None
        if any(frozenset(hop) not in self.cables for hop in itertools.pairwise(path)):
            return None
        return tuple(self.numbers[name] for name in path)


def check_name(where: str, name: str) -> None:
    """Raises DocumentError unless it is one printable line of bounded length."""
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
        raise DocumentError(
            f"{where}: {brief(name)} is not 1 to {LONGEST_NAME} printable characters"
        )
