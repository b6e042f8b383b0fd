"""A directed graph of links with rates, and its file."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from torch_topoopt.plan import limits
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch_topoopt.plan import Pair

_MOST_RATIO = 10_000  # of two rates; the bound of more unequal ones is not exact


class GraphLink(NamedTuple):
    """A link from one server to another."""

    source: int
    target: int
    gbps: float


@dataclass(frozen=True, kw_only=True)
class GraphFile(Document):
    """A graph as `topoopt topology --links` reads it. The rates of repeated links add up."""

    KIND: ClassVar[str] = "graph of links"
    VERSION: ClassVar[int] = 1
    MAY_OMIT_VERSION: ClassVar[bool] = True

    version: int = VERSION
    servers: int
    links: tuple[GraphLink, ...]

    def validate(self) -> Self:
        check_graph(self.servers, self.links)
        return self


def check_graph(servers: int, links: Sequence[GraphLink]) -> None:
    """Raises DocumentError unless links join two servers each, at rates that are not too unequal,
    and all servers reach each other."""
    if servers < 2:
        raise DocumentError(f"servers: a collective needs at least 2 (got {servers})")
    limits.check_servers(servers)
    for i, link in enumerate(links):
        for name, server in (("source", link.source), ("target", link.target)):
            if not 0 <= server < servers:
                raise DocumentError(f"links[{i}].{name}: {server} is not in 0..{servers - 1}")
        if link.source == link.target:
            raise DocumentError(f"links[{i}]: connects server {link.source} to itself")
        if not 0 < link.gbps < math.inf:
            raise DocumentError(f"links[{i}].gbps: {link.gbps:g} is not above 0")
    rates = [link.gbps for link in links]
    if rates and max(rates) > _MOST_RATIO * min(rates):
        raise DocumentError(
            f"links[{rates.index(min(rates))}].gbps: {min(rates):g} is less than a "
            f"{_MOST_RATIO}th of {max(rates):g}, the rate of links[{rates.index(max(rates))}]"
        )
    lost = unreachable(range(servers), {(link.source, link.target) for link in links})
    if lost is not None:
        raise DocumentError(
            f"links: server {lost} and server 0 cannot reach each other in both directions"
        )


def pair_rates(links: Iterable[GraphLink]) -> Mapping[Pair, float]:
    """(source, target) -> Gb/s of all links from one to the other."""
    rates: dict[Pair, float] = defaultdict(float)
    for link in links:
        rates[link.source, link.target] += link.gbps
    return rates


def graph_links(rates: Mapping[Pair, float]) -> tuple[GraphLink, ...]:
    """One link for every pair."""
    return tuple(GraphLink(*pair, float(gbps)) for pair, gbps in sorted(rates.items()))
