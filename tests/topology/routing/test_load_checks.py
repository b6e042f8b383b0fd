"""Matchings are matchings, and bytes on links add up: valid ones pass, each corruption is named."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, GroupDemand, PairDemand
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.matching import (
    maximum_weight_assignment,
    maximum_weight_matching,
)
from torch_topoopt.topology.routing.load_checks import validate_link_bytes, validate_matching
from torch_topoopt.topology.routing.loads import link_load_bytes


@settings(max_examples=10, deadline=None)
@given(servers=st.integers(2, 9), seed=st.integers(0, 99))
def test_what_the_matchings_return_is_a_matching(servers: int, seed: int) -> None:
    weights = {
        (a, b): 1 + (a * 7 + b * 3 + seed) % 5
        for a in range(servers)
        for b in range(servers)
        if a != b
    }
    validate_matching(maximum_weight_assignment(weights, seed=seed), directed=True)
    up = {pair: weight for pair, weight in weights.items() if pair[0] < pair[1]}
    matched = maximum_weight_matching(up, seed=seed)
    validate_matching(matched, directed=False)
    with refused(ValueError, f"server {matched[0][0]}"):
        validate_matching((*matched, (matched[0][0], servers)), directed=False)


def test_a_directed_matching_uses_each_end_of_a_server_once() -> None:
    validate_matching([(0, 1), (1, 0)], directed=True)
    with refused(ValueError, "server 1", "(0, 1)", "(1, 0)"):
        validate_matching([(0, 1), (1, 0)], directed=False)
    with refused(ValueError, "server 1", "(0, 1)", "(2, 1)"):
        validate_matching([(0, 1), (2, 1)], directed=True)
    with refused(ValueError, "server 3", "itself"):
        validate_matching([(3, 3)], directed=True)


@settings(max_examples=8, deadline=None)
@given(servers=st.integers(4, 9), size=st.integers(10**6, 10**9), data=st.data())
def test_bytes_on_links_are_those_of_the_demand(
    servers: int, size: int, data: st.DataObject
) -> None:
    far = PairDemand(0, servers // 2, size)
    demand = Demand((GroupDemand(tuple(range(servers)), size),), (far,))
    network = find_network(Cluster(servers, 2, 10.0), demand)
    load = list(link_load_bytes(network, demand))
    validate_link_bytes(servers, network, demand, load)
    i = data.draw(st.integers(0, len(load) - 1))
    lost = [*load[:i], load[i] - size // 4, *load[i + 1 :]]
    with refused(DocumentError, "prediction.link_bytes"):
        validate_link_bytes(servers, network, demand, lost)
    # the same on every link: conserved, but more than is asked for
    more = [size_bytes + size for size_bytes in load]
    with refused(DocumentError, "prediction.link_bytes[0]"):
        validate_link_bytes(servers, network, demand, more)
    with refused(DocumentError, len(load) - 1, len(load)):
        validate_link_bytes(servers, network, demand, load[1:])
