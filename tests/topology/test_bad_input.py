"""Impossible networks are refused in every mode, by one line that names the field and the value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torch_topoopt.plan import AllToAll, Cluster, Demand, GroupDemand, PairDemand, PairTable
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.find_network import MODES, Mode, find_network

NAN, INFINITE = float("nan"), float("inf")


def group(servers: tuple[int, ...], size_bytes: Any) -> Demand:
    return Demand((GroupDemand(servers, size_bytes),), ())


def pair(source: int, target: int, size_bytes: Any) -> Demand:
    return Demand((), (PairDemand(source, target, size_bytes),))


def all_to_all(servers: tuple[int, ...], size_bytes: Any) -> Demand:
    return Demand((), PairTable((AllToAll(servers, size_bytes),)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"servers": 0}, "servers: must be at least 1"),
        ({"servers": -3}, "servers: must be at least 1"),
        ({"degree": 0}, "degree: must be at least 1"),
        ({"degree": -2}, "degree: must be at least 1"),
        ({"degree": 6}, "degree: 6 ports per server .* at most 3, or ask for parallel links"),
        ({"degree": 1}, "degree: 1 port per server cannot connect 4 servers.* at least 2, or"),
        ({"link_gbps": NAN}, "link_gbps: nan is not a finite number above 0"),
        ({"link_gbps": 0.0}, "link_gbps: 0.0 is not a finite number above 0"),
    ],
)
def test_clusters(mode: Mode, changes: dict[str, Any], message: str) -> None:
    cluster = replace(Cluster(4, 2, 10.0), **changes)
    with pytest.raises(DocumentError, match=message):
        find_network(cluster, group((0, 1), 5), mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (group((0, 4), 5), r"groups\[0\]\.servers: server 4 is not in 0..3"),
        (group((-1, 2), 5), r"groups\[0\]\.servers: server -1 is not in 0..3"),
        (group((), 5), r"groups\[0\]\.servers: empty"),
        (group((1, 1), 5), r"groups\[0\]\.servers: \[1, 1\] names a server twice"),
        (group((0, 1), -5), r"groups\[0\]\.size_bytes: -5 is not at least 0"),
        (group((0, 1), NAN), r"groups\[0\]\.size_bytes: nan is not at least 0"),
        (pair(0, 4, 5), r"pairs\[0\]: server 4 is not in 0..3"),
        (pair(2, 2, 5), r"pairs\[0\]: \[2, 2\] names a server twice"),
        (pair(0, 1, -5), r"pairs\[0\]\.size_bytes: -5 is not at least 0"),
        (pair(0, 1, NAN), r"pairs\[0\]\.size_bytes: nan is not at least 0"),
        (pair(0, 1, INFINITE), r"pairs\[0\]\.size_bytes: inf is not at least 0"),
        (all_to_all((0, 7), 5), r"all_to_all\[0\]\.servers: server 7 is not in 0..3"),
        (all_to_all((0, 1), NAN), r"all_to_all\[0\]\.size_bytes: nan is not at least 0"),
    ],
)
def test_demands(mode: Mode, demand: Demand, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        find_network(Cluster(4, 2, 10.0), demand, mode=mode)
