"""Chooses the probes to send, and tests whether they connect all servers: pure functions.

Addresses of one subnet come first, on all interfaces. Those of different subnets are tried only
between servers that are not yet connected: first on fast interfaces, then on those that are much
slower than the fastest (management, Wi-Fi).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from torch_topoopt.discovery.probe import Probe
from torch_topoopt.links.addresses import family_of, is_link_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch_topoopt.discovery.interfaces import Interface

MUCH_SLOWER = 5  # times


@dataclass(frozen=True)
class Server:
    """A host, or a part of one: its ranks, and its interfaces with the ports that listen there."""

    name: str
    machine: str
    ranks: tuple[int, ...]
    interfaces: tuple[Interface, ...]
    tcp_ports: tuple[int, ...]  # of each interface

    def describe(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        addresses = ", ".join(f"{i.address} on {i.name}" for i in self.interfaces)
        return f"host {self.name} (rank {ranks}; {addresses or 'no address'})"


def slow_interfaces(servers: Sequence[Server]) -> set[str]:
    """Addresses of interfaces that are wireless, or much slower than the fastest of the job."""
    everything = [i for server in servers for i in server.interfaces]
    fastest = max((i.gbps for i in everything if i.gbps and not i.wireless), default=0.0)
    return {
        i.address
        for i in everything
        if i.wireless or (i.gbps is not None and i.gbps * MUCH_SLOWER < fastest)
    }


def rounds(servers: Sequence[Server]) -> list[list[Probe]]:
    """The probes in rounds, the most promising first; each only once.

    The lower server sends the probe, because it will also connect.
    """
    slow = slow_interfaces(servers)
    stages: list[list[Probe]] = [[], [], []]
    for source, target in combinations(range(len(servers)), 2):
        for near in servers[source].interfaces:
            for far, tcp_port in zip(
                servers[target].interfaces, servers[target].tcp_ports, strict=True
            ):
                if (
                    near.address == far.address
                    and not is_link_local(near.address)
                    and servers[source].machine != servers[target].machine
                ):
                    continue  # such as a container bridge, which every host has
                if family_of(near.address) != family_of(far.address):
                    continue
                if is_link_local(near.address) is not is_link_local(far.address):
                    continue
                stage = 0
                if not near.shares_subnet(far):
                    stage = 2 if near.address in slow or far.address in slow else 1
                stages[stage].append(
                    Probe(source, near.address, target, far.address, tcp_port, near.name)
                )
    return [stage for stage in stages if stage]


def components(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The sets of servers that are connected with each other, each ascending, by lowest server."""
    leader = list(range(count))

    def find(server: int) -> int:
        while leader[server] != server:
            server = leader[server]
        return server

    for a, b in pairs:
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    sets: dict[int, list[int]] = {}
    for server in range(count):
        sets.setdefault(find(server), []).append(server)
    return list(sets.values())


def still_worth_sending(
    probes: list[Probe], servers: Sequence[Server], reached: Iterable[Probe]
) -> list[Probe]:
    """The probes of a round between servers that are not yet connected.

    A round of fast interfaces ignores connections over slow ones: cables between different subnets
    are tried, though a management network connects all hosts.
    """
    slow = slow_interfaces(servers)

    def is_slow(probe: Probe) -> bool:
        return probe.source_address in slow or probe.target_address in slow

    of_slow = any(map(is_slow, probes))
    pairs = [(p.source, p.target) for p in reached if of_slow or not is_slow(p)]
    parts = components(len(servers), pairs)
    part_of = {server: i for i, part in enumerate(parts) for server in part}
    return [probe for probe in probes if part_of[probe.source] != part_of[probe.target]]


def unreachable(servers: Sequence[Server], parts: list[list[int]]) -> str:
    """The reason for a failure with more than one component: the isolated servers."""
    largest = max(parts, key=len)
    lost = [servers[s].describe() for part in parts if part is not largest for s in part]
    return (
        f"{'; '.join(lost)}: reached by no other host, directly or through others; check its "
        "cables, addresses and firewall, and TOPOOPT_INTERFACES"
        if len(lost) == 1 or all(len(part) == 1 for part in parts if part is not largest)
        else f"two or more parts of the job cannot reach each other; cut off from "
        f"{servers[largest[0]].describe()}: {'; '.join(lost)}"
    )


def best_pairs(
    servers: Sequence[Server], reached: Iterable[Probe]
) -> Iterator[tuple[Probe, Interface, Interface]]:
    """One probe for each connection worth having: fastest first, no interface twice in a pair."""
    by_address = [{i.address: i for i in server.interfaces} for server in servers]
    candidates = [
        (
            probe,
            by_address[probe.source][probe.source_address],
            by_address[probe.target][probe.target_address],
        )
        for probe in reached
    ]
    candidates.sort(
        key=lambda c: (c[0].source, c[0].target, -min(c[1].gbps or 0, c[2].gbps or 0))
    )  # stable: the order of the interfaces decides among equals
    taken: set[tuple[int, int, int, str]] = set()
    for probe, near, far in candidates:
        pair = (probe.source, probe.target)
        ends = {(*pair, probe.source, near.name), (*pair, probe.target, far.name)}
        if not ends & taken:
            taken |= ends
            yield probe, near, far
