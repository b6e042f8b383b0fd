"""Mode `released` against what is known of the paper's public artifact and the paper's figures."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import (
    AllToAll,
    Cluster,
    Demand,
    GroupDemand,
    PairTable,
    validate_network,
)
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.released import released_strides
from torch_topoopt.topology.routing.loads import bandwidth_tax, diameter, mean_hops


@pytest.mark.parametrize(
    ("size", "count", "strides"),
    [
        (128, 2, (1, 13)),
        (128, 3, (1, 7, 27)),
        (128, 4, (1, 5, 13, 39)),
        (16, 2, (1, 5)),
        (16, 4, (1, 3, 5, 9)),
        (12, 2, (1, 5)),
        (12, 3, (1, 5, 7)),  # 7 is the other direction of 5: the cable is there twice
    ],
)
def test_the_artifacts_strides_on_duplex_ports(
    size: int, count: int, strides: tuple[int, ...]
) -> None:
    assert released_strides(size, count, duplex=True) == strides


def test_on_simplex_ports_the_last_stride_is_the_largest_candidate() -> None:
    assert released_strides(128, 4, duplex=False) == (1, 7, 27, 127)
    assert released_strides(128, 1, duplex=False) == (1,)


def test_more_strides_than_candidates_are_an_error_and_not_memory_beyond_the_list() -> None:
    with refused(ValueError, 3, 6, 1, 5):
        find_network(Cluster(6, 3, 1.0, "simplex"), Demand((), ()), mode="released")
    assert released_strides(4, 2, duplex=True) == (1, 3)
    with refused(ValueError, 3, 6, 1, 5):
        released_strides(6, 3, duplex=True)


@pytest.mark.parametrize(
    ("degree", "offsets", "mean", "longest"),
    [(4, [1, 13, 115, 127], 5.62, 10), (8, [1, 5, 13, 39, 89, 115, 123, 127], 2.96, 5)],
)
def test_mean_hops_of_figure_14(degree: int, offsets: list[int], mean: float, longest: int) -> None:
    # section 5.4, Figure 14 (128 servers, mean path length 5.7 and 3)
    demand = Demand((GroupDemand(tuple(range(128)), 10**9),), ())
    network = find_network(Cluster(128, degree, 100.0), demand, mode="released")
    assert sorted({(x.target - x.source) % 128 for x in network.links}) == offsets
    assert mean_hops(network, 128) == pytest.approx(mean, abs=0.005)
    assert diameter(network, 128) == longest
    assert len(network.groups[0].rings) == degree


@pytest.mark.parametrize(
    ("degree", "batch", "tax"), [(4, 64, 1.113), (4, 2048, 3.054), (8, 64, 1.048)]
)
def test_bandwidth_tax_of_figure_13(degree: int, batch: int, tax: float) -> None:
    # section 5.4: all-to-all is 80 % of AllReduce traffic at batch size 2048, and grows with it
    everyone = tuple(range(128))
    allreduce = 10**9
    ratio = 0.8 * batch / 2048
    each = round(ratio * 2 * 127 * allreduce / (128 * 127))
    demand = Demand((GroupDemand(everyone, allreduce),), PairTable((AllToAll(everyone, each),)))
    network = find_network(Cluster(128, degree, 100.0), demand, mode="released")
    assert bandwidth_tax(demand, network) == pytest.approx(tax, abs=0.0006)


def groups_of(size: int, count: int) -> tuple[GroupDemand, ...]:
    step = count // size
    return tuple(GroupDemand(tuple(range(s, count, step)), 10**6) for s in range(step))


@pytest.mark.parametrize(("ports", "size"), [("duplex", 4), ("duplex", 2), ("simplex", 8)])
def test_the_heaviest_group_size_gets_all_ports_but_the_ring_over_all(
    ports: str, size: int
) -> None:
    cluster = Cluster(16, 4, 1.0, "duplex" if ports == "duplex" else "simplex")
    demand = Demand((GroupDemand(tuple(range(16)), 1), *groups_of(size, 16)[1:]), ())
    network = find_network(cluster, demand, mode="released")
    validate_network(cluster, network)
    assert len(network.links) == 16 * 4
    strides = {(x.target - x.source) % 16 for x in network.links}
    assert {1} < strides <= {1, 15, *range(0, 16, 16 // size)}
    whole, *others = network.groups
    assert {ring.servers[1] for ring in whole.rings} == ({1, 15} if ports == "duplex" else {1})
    adjacent = {(link.source, link.target) for link in network.links}
    for group in others:
        for ring in group.rings:
            assert set(zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True)) <= (
                adjacent
            )


def test_groups_without_links_take_the_regular_order_with_the_fewest_hops() -> None:
    everyone = GroupDemand(tuple(range(12)), 10**9)
    some, other = GroupDemand((1, 5, 9), 1), GroupDemand((0, 1, 2, 3), 1)
    network = find_network(
        Cluster(12, 4, 1.0), Demand((everyone, some, other), ()), mode="released"
    )
    assert {(x.target - x.source) % 12 for x in network.links} == {1, 5, 7, 11}
    orders = {group.servers: [r.servers for r in group.rings] for group in network.groups}
    assert orders[1, 5, 9] == [(1, 5, 9), (1, 9, 5)]
    assert len(orders[0, 1, 2, 3]) == 2, "not a group that the artifact knows, but it has a ring"


def test_a_group_size_that_the_artifact_does_not_know_is_an_error() -> None:
    demand = Demand((GroupDemand((0, 1, 2, 3, 4), 7),), ())
    with refused(ValueError, 5, "released"):
        find_network(Cluster(12, 4, 1.0), demand, mode="released")


def test_one_path_per_pair() -> None:
    demand = Demand((), PairTable((AllToAll(tuple(range(16)), 5),)))
    network = find_network(Cluster(16, 4, 1.0), demand, mode="released")
    assert {route.weight for route in network.routes} == {1.0}
    assert len(network.routes) == 16 * 11


def test_one_and_two_servers() -> None:
    assert find_network(Cluster(1, 1, 1.0), Demand((), ()), mode="released").links == ()
    assert len(find_network(Cluster(2, 1, 1.0), Demand((), ()), mode="released").links) == 2
