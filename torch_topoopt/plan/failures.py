"""The chosen part of a plan's repair after the loss of one link or one server.

For every cable (simplex ports: every link) and every server, a `Failure` lists the dropped rings
and the detours of the others. torch_topoopt.topology.failures.degraded derives the rest: shares of
the remaining rings grow in proportion; remaining routes carry the bytes of lost ones; a pair
without any gets one shortest route.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan.checks import unreachable
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.routes import Route  # noqa: TC001 - read with the fields of Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan.cluster import Cluster
    from torch_topoopt.plan.network import Link, Network


@dataclass(frozen=True)
class DroppedRings:
    """Indices of the rings that `network.groups[group]` drops; at least one other remains."""

    group: int
    rings: tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """The loss of `network.links[lost]` or of server `lost`, by the list that contains it.

    A duplex cable has one entry, under the lower index of its two links. Rings skip a lost server.
    `detours` are routes between neighbours on a ring that have no link left. If the remaining
    network is not `connected`, the job cannot continue and the other fields are empty.
    """

    lost: int
    connected: bool
    dropped: tuple[DroppedRings, ...]
    detours: tuple[Route, ...]


@dataclass(frozen=True)
class FailurePlan:
    """One entry for every cable or simplex link, ascending, and one for every server."""

    links: tuple[Failure, ...]
    servers: tuple[Failure, ...]


def links_lost_with(cluster: Cluster, network: Network, link: int) -> tuple[int, ...]:
    """The indices of the links that fail together: both directions of a duplex cable.

    Raises ValueError if there is no such link.
    """
    if not 0 <= link < len(network.links):
        raise ValueError(f"link: {link} is not in 0..{len(network.links) - 1}")
    if cluster.ports == "simplex":
        return (link,)
    return tuple(sorted((link, network.links.index(network.links[link].reverse))))


def cables(cluster: Cluster, network: Network) -> tuple[tuple[int, ...], ...]:
    """Indices of the links that fail together: one entry per duplex cable or simplex link."""
    if cluster.ports == "simplex":
        return tuple((i,) for i in range(len(network.links)))
    index = {link: i for i, link in enumerate(network.links)}
    pairs = ((i, index[link.reverse]) for link, i in index.items())
    return tuple((i, twin) for i, twin in pairs if i < twin)


def validate_failures(cluster: Cluster, network: Network, failures: FailurePlan) -> None:
    """Raises DocumentError for the first rule that is broken; `network` is valid by itself.

    Each cable and each server has one entry, with the right `connected`. Dropped rings exist, and
    one ring remains. Detours have different ends, use remaining links, visit no server twice, and
    their weights sum to 1 per pair.
    """
    together = cables(cluster, network)
    _check_lost("failures.links", failures.links, [lost[0] for lost in together])
    for i, (failure, lost) in enumerate(zip(failures.links, together, strict=True)):
        left = [link for j, link in enumerate(network.links) if j not in lost]
        _validate_failure(f"failures.links[{i}]", failure, network, left, range(cluster.servers))
    count = cluster.servers if cluster.servers > 1 else 0
    _check_lost("failures.servers", failures.servers, list(range(count)))
    for server, failure in enumerate(failures.servers):
        left = [link for link in network.links if server not in (link.source, link.target)]
        rest = [s for s in range(cluster.servers) if s != server]
        _validate_failure(f"failures.servers[{server}]", failure, network, left, rest)


def _check_lost(where: str, entries: Sequence[Failure], expected: list[int]) -> None:
    if len(entries) != len(expected):
        raise DocumentError(f"{where}: {len(entries)} entries for {len(expected)} possible losses")
    for i, (entry, lost) in enumerate(zip(entries, expected, strict=True)):
        if entry.lost != lost:
            raise DocumentError(f"{where}[{i}].lost: {entry.lost} is not {lost}, which comes next")


def _validate_failure(
    where: str, failure: Failure, network: Network, left: list[Link], servers: Sequence[int]
) -> None:
    adjacent = {(link.source, link.target) for link in left}
    connected = unreachable(servers, adjacent) is None
    if failure.connected != connected:
        said, true = ("connected", "not") if failure.connected else ("not connected", "they are")
        raise DocumentError(f"{where}.connected: says that servers are {said}, but {true}")
    if not connected and (failure.dropped or failure.detours):
        raise DocumentError(f"{where}: nothing can be dropped or detoured on a network in parts")
    named = set()
    for i, drop in enumerate(failure.dropped):
        at = f"{where}.dropped[{i}]"
        if not 0 <= drop.group < len(network.groups) or drop.group in named:
            raise DocumentError(f"{at}.group: {drop.group} is not another group of the network")
        named.add(drop.group)
        count = len(network.groups[drop.group].rings)
        rings = set(drop.rings)
        if not rings or len(rings) < len(drop.rings) or not rings <= set(range(count)):
            raise DocumentError(
                f"{at}.rings: {list(drop.rings)} are not different rings out of 0..{count - 1}"
            )
        if len(rings) == count:
            raise DocumentError(f"{at}.rings: none of the {count} rings of group {drop.group} left")
    _validate_detours(f"{where}.detours", failure.detours, adjacent)


def _validate_detours(where: str, detours: Sequence[Route], adjacent: set[tuple[int, int]]) -> None:
    weights: dict[tuple[int, int], float] = {}
    for i, route in enumerate(detours):
        if len(route.servers) < 2 or len(set(route.servers)) < len(route.servers):
            raise DocumentError(
                f"{where}[{i}].servers: {list(route.servers)} is not a way, or names a server twice"
            )
        for hop in zip(route.servers, route.servers[1:], strict=False):
            if hop not in adjacent:
                raise DocumentError(
                    f"{where}[{i}]: there is no link left from server {hop[0]} to {hop[1]}"
                )
        pair = (route.servers[0], route.servers[-1])
        if pair in adjacent:
            raise DocumentError(
                f"{where}[{i}]: a link from server {pair[0]} to {pair[1]} is left to use"
            )
        if not route.weight > 0:
            raise DocumentError(f"{where}[{i}].weight: {route.weight} is not above 0")
        weights[pair] = weights.get(pair, 0.0) + route.weight
    for pair, total in weights.items():
        if abs(total - 1) > 1e-9:
            raise DocumentError(
                f"{where}: weights from server {pair[0]} to {pair[1]} sum to {total}, not 1"
            )
