"""Ports of unequal rates: the number of ports for a share of the bandwidth, and link costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from torch_topoopt.plan import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from torch_topoopt.plan import Cluster


def ports_for(cluster: Cluster, share: Fraction) -> int:
    """The least number of ports that have `share` (0 to 1) of the bandwidth, the fastest first.

    All servers give as many; bandwidths are added over all servers.
    """
    totals = [0.0] * cluster.degree
    for server in range(cluster.servers):
        rates = sorted((cluster.port_rate(server, p) for p in range(cluster.degree)), reverse=True)
        totals = [total + rate for total, rate in zip(totals, rates, strict=True)]
    return _least(totals, share)


def ring_ports_for(
    cluster: Cluster, servers: Sequence[int], left: Sequence[int], degree: int, share: Fraction
) -> int:
    """The least number of further ports that carry `share` of what `degree` ports of rings over
    `servers` do; `left[server]` of these ports are not taken yet.

    A ring is as fast as the slowest of its ports, and ports are handed out fastest first.
    """
    rates = [
        sorted((cluster.port_rate(server, p) for p in range(cluster.degree)), reverse=True)[:degree]
        for server in servers
    ]
    whole = sum(min(rate[i] for rate in rates) for i in range(degree))
    first = max(degree - left[server] for server in servers)
    open_rates = [min(rate[i] for rate in rates) for i in range(first, degree)]
    return _least(open_rates, share, whole=whole)


def _least(rates: Sequence[float], share: Fraction, *, whole: float | None = None) -> int:
    """The number of `rates`, from the first on, that add up to `share` of `whole`; or all."""
    wanted = float(share) * (sum(rates) if whole is None else whole) * (1 - 1e-12)
    for count, total in enumerate(accumulate(rates), 1):
        if total >= wanted:
            return count
    return len(rates)


class LoadWithBytes(Mapping[Pair, float]):
    """Seconds (in units of a byte over a Gb/s) that links are busy, with `size_bytes` more on each.

    A view of `load`; so a fast link costs less than a slow one even where neither carries anything.
    """

    def __init__(
        self, load: Mapping[Pair, float], rates: Mapping[Pair, float], size_bytes: float
    ) -> None:
        self._load = load
        self._rates = rates
        self._size_bytes = size_bytes

    def __getitem__(self, pair: Pair) -> float:
        return self._load[pair] + self._size_bytes / self._rates[pair]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._load)

    def __len__(self) -> int:
        return len(self._load)


def path_weights(paths: Sequence[Sequence[int]], rates: Mapping[Pair, float] | None) -> list[float]:
    """Parts of a pair's bytes for each of its paths, in proportion to the slowest link on each.

    All the same without `rates`.
    """
    if rates is None:
        return [1 / len(paths)] * len(paths)
    slowest = [min(rates[hop] for hop in pairwise(path)) for path in paths]
    total = sum(slowest)
    return [rate / total for rate in slowest]
