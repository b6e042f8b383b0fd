"""Impossible networks are refused in every mode, by one line that names the field and the value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.refusals import refused

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
    ("changes", "tokens"),
    [
        ({"servers": 0}, ("servers", 1)),
        ({"servers": -3}, ("servers", 1)),
        ({"degree": 0}, ("degree", 1)),
        ({"degree": -2}, ("degree", 1)),
        ({"degree": 6}, ("degree", 6, 3)),
        ({"degree": 1}, ("degree", 1, 4, 2)),
        ({"link_gbps": NAN}, ("link_gbps", 0, "nan")),
        ({"link_gbps": 0.0}, ("link_gbps", 0.0, 0)),
    ],
)
def test_clusters(mode: Mode, changes: dict[str, Any], tokens: tuple[object, ...]) -> None:
    cluster = replace(Cluster(4, 2, 10.0), **changes)
    with refused(DocumentError, *tokens):
        find_network(cluster, group((0, 1), 5), mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("demand", "tokens"),
    [
        (group((0, 4), 5), ("groups[0].servers", "server 4", "0..3")),
        (group((-1, 2), 5), ("groups[0].servers", "server -1", "0..3")),
        (group((), 5), ("groups[0].servers", "empty")),
        (group((1, 1), 5), ("groups[0].servers", "[1, 1]", "twice")),
        (group((0, 1), -5), ("groups[0].size_bytes", -5, 0)),
        (group((0, 1), NAN), ("groups[0].size_bytes", 0, "nan")),
        (pair(0, 4, 5), ("pairs[0]", "server 4", "0..3")),
        (pair(2, 2, 5), ("pairs[0]", "[2, 2]", "twice")),
        (pair(0, 1, -5), ("pairs[0].size_bytes", -5, 0)),
        (pair(0, 1, NAN), ("pairs[0].size_bytes", 0, "nan")),
        (pair(0, 1, INFINITE), ("pairs[0].size_bytes", 0, "inf")),
        (all_to_all((0, 7), 5), ("all_to_all[0].servers", "server 7", "0..3")),
        (all_to_all((0, 1), NAN), ("all_to_all[0].size_bytes", 0, "nan")),
    ],
)
def test_demands(mode: Mode, demand: Demand, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        find_network(Cluster(4, 2, 10.0), demand, mode=mode)
