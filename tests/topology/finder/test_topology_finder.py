"""TopologyFinder: the paper's figures, and every rule on random clusters and demands."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Network,
    PairDemand,
    validate_network,
)
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.group_rings import merge_groups
from torch_topoopt.topology.finder.port_allocator import ports_per_ring
from torch_topoopt.topology.routing.loads import bandwidth_tax, diameter, link_load_bytes, mean_hops

Ports = Literal["duplex", "simplex"]


def data_parallel(servers: int, size_bytes: int = 10**9) -> Demand:
    return Demand((GroupDemand(tuple(range(servers)), size_bytes),), ())


def uniform_pairs(servers: int, size_bytes: int) -> tuple[PairDemand, ...]:
    pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
    return tuple(PairDemand(a, b, size_bytes) for a, b in pairs)


def legal_degrees(servers: int, ports: Ports) -> list[int]:
    if servers <= 2:
        return [1]
    return list(range(2 if ports == "duplex" else 1, servers))


def group_of(network: Network, servers: tuple[int, ...]) -> Group:
    (group,) = [g for g in network.groups if g.servers == servers]
    return group


def offsets(network: Network, servers: int) -> list[int]:
    return sorted({(link.target - link.source) % servers for link in network.links})


@pytest.mark.parametrize(
    ("ports", "degree", "strides", "mean", "longest"),
    [
        ("simplex", 4, [1, 3, 11, 37], 4.5197, 8),
        ("simplex", 8, [1, 3, 5, 9, 17, 31, 57, 105], 3.0551, 5),
        ("duplex", 4, [1, 11, 117, 127], 5.4803, 9),
        ("duplex", 8, [1, 3, 11, 37, 91, 117, 125, 127], 2.9291, 5),
    ],
)
def test_a_hundred_and_twenty_eight_servers_have_the_strides_and_hops_of_the_papers_rule(
    ports: Ports, degree: int, strides: list[int], mean: float, longest: int
) -> None:
    network = find_network(Cluster(128, degree, 100.0, ports), data_parallel(128))
    assert offsets(network, 128) == strides
    assert mean_hops(network, 128) == pytest.approx(mean, abs=5e-5)
    assert diameter(network, 128) == longest
    assert len(network.groups[0].rings) == degree


def test_twelve_servers_have_strides_1_5_7_11_as_in_section_4_3() -> None:
    assert offsets(find_network(Cluster(12, 4, 1.0), data_parallel(12)), 12) == [1, 5, 7, 11]
    network = find_network(Cluster(12, 4, 1.0, "simplex"), data_parallel(12))
    assert offsets(network, 12) == [1, 5, 7, 11]


def test_five_servers_of_four_ports_are_a_complete_graph() -> None:
    network = find_network(Cluster(5, 4, 1.0), data_parallel(5))
    assert offsets(network, 5) == [1, 2, 3, 4]
    assert network.routes == ()
    assert len(network.groups[0].rings) == 4


def test_two_servers_share_one_cable_as_a_ring() -> None:
    network = find_network(Cluster(2, 1, 1.0), data_parallel(2))
    assert [(link.source, link.target) for link in network.links] == [(0, 1), (1, 0)]
    assert [ring.servers for ring in network.groups[0].rings] == [(0, 1)]


def test_one_server_needs_no_network() -> None:
    assert find_network(Cluster(1, 1, 1.0), data_parallel(1)) == Network((), (Group((0,), ()),), ())


def test_six_servers_of_four_ports_add_two_triangles_to_the_hexagon() -> None:
    network = find_network(Cluster(6, 4, 1.0), data_parallel(6))
    assert offsets(network, 6) == [1, 2, 4, 5]
    assert diameter(network, 6) == 2
    assert len(network.groups[0].rings) == 2


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_every_small_cluster_gets_a_valid_network_without_dark_ports(ports: Ports) -> None:
    for servers in range(2, 17):
        for degree in legal_degrees(servers, ports):
            check_data_parallel(Cluster(servers, degree, 10.0, ports))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), servers=st.integers(17, 64), ports=st.sampled_from(["duplex", "simplex"]))
def test_every_larger_cluster_gets_a_valid_network_without_dark_ports(
    data: st.DataObject, servers: int, ports: Ports
) -> None:
    degree = data.draw(st.sampled_from(legal_degrees(servers, ports)))
    check_data_parallel(Cluster(servers, degree, 10.0, ports))


def test_what_strides_leave_to_an_odd_port_is_joined() -> None:
    """Strides 3 and 7 of 21 servers would leave 6 and 9: three groups of seven servers."""
    check_data_parallel(Cluster(21, 15, 10.0, "duplex"))


def unjoined_groups(cluster: Cluster) -> int:
    """At most into how many groups of an odd number of servers fall the pairs that are left for an
    odd port once every coprime stride is used; 1 where they can be chosen to join all servers.

    A matching leaves one server of each group, and those are joined by cables once more. Nine
    servers with seven ports: stride 3 is left, three triangles.
    """
    count = cluster.servers
    shares = {s: math.gcd(count, s) for s in range(1, (count - 1) // 2 + 1)}
    common = [factor for factor in shares.values() if factor > 1]
    left = (count - cluster.degree) // 2
    if left > len(common) or (left > 1 and math.gcd(*common) == 1):
        return 1
    return max(common)


def check_data_parallel(cluster: Cluster) -> None:
    demand = data_parallel(cluster.servers)
    network = find_network(cluster, demand)
    ends = {(link.source, link.target) for link in network.links}
    odd = cluster.servers * cluster.degree % 2 if cluster.ports == "duplex" else 0
    assert len(network.links) == cluster.servers * cluster.degree - odd, "a dark port"
    parallel = len(network.links) - len(ends)
    assert parallel <= (unjoined_groups(cluster) - 1 if odd else 0)
    if not parallel:  # which share a ring's bytes
        assert set(link_load_bytes(network, demand)) <= {0, *link_load_bytes(network, demand)[:1]}
    check_network(cluster, demand, network)


def check_network(cluster: Cluster, demand: Demand, network: Network) -> None:
    """Everything that holds for any network: the rules of a Plan, and what this module promises."""
    validate_network(cluster, network)
    hops = [[0] * cluster.servers for _ in range(cluster.servers)]
    for (source, target), routes in network.routes_by_pair().items():
        lengths = {len(route.servers) - 1 for route in routes}
        assert len(lengths) == 1, "only paths of the least number of hops"
        assert len({route.servers for route in routes}) == len(routes) <= 4
        assert len({route.weight for route in routes}) == 1
        hops[source][target] = lengths.pop()
    if cluster.servers > 1:
        pairs = cluster.servers * (cluster.servers - 1)
        assert sum(map(sum, hops)) / pairs == pytest.approx(mean_hops(network, cluster.servers))
    adjacent = {(link.source, link.target) for link in network.links}
    assert not any((r.servers[0], r.servers[-1]) in adjacent for r in network.routes)
    listed = [group.servers for group in network.groups]
    demanded = [group.servers for group in merge_groups(cluster, demand)]
    everyone = tuple(range(cluster.servers))
    assert listed == [everyone, *(servers for servers in demanded if servers != everyone)]
    for group in network.groups:
        orders = {ring.servers for ring in group.rings}
        assert len(orders) == len(group.rings)
        shares = {round(ring.share * 1e9) for ring in group.rings}
        whole_ones = max(shares, default=0)  # rings that cross each other have one half
        assert all(share == whole_ones or abs(2 * share - whole_ones) < 3 for share in shares)
        if cluster.ports == "duplex" and len(group.servers) > 2:
            assert {(order[0], *order[:0:-1]) for order in orders} == orders
    check_loads(demand, network, hops)


def check_loads(demand: Demand, network: Network, hops: list[list[int]]) -> None:
    """The bytes on all links are the bytes of each pair times its hops, pair by pair."""
    expected = 0.0
    asked = 0.0
    for group in demand.groups:
        k = len(group.servers)
        for ring in group_of(network, tuple(sorted(group.servers))).rings:
            for i in range(k):
                size_bytes = 2 * (k - 1) / k * ring.share * group.size_bytes
                expected += size_bytes * hops[ring.servers[i]][ring.servers[(i + 1) % k]]
                asked += size_bytes
    for pair in demand.pairs:
        expected += pair.size_bytes * hops[pair.source][pair.target]
        asked += pair.size_bytes
    loads = link_load_bytes(network, demand)
    assert len(loads) == len(network.links)
    assert abs(sum(loads) - expected) <= 0.5 * len(loads) + 1e-9 * expected
    assert bandwidth_tax(demand, network) == pytest.approx(expected / asked if asked else 1.0)
    assert bandwidth_tax(demand, network) >= 1 - 1e-12


@st.composite
def clusters_and_demands(draw: st.DrawFn) -> tuple[Cluster, Demand]:
    ports: Ports = draw(st.sampled_from(["duplex", "simplex"]))
    servers = draw(st.integers(1, 13))
    degree = draw(st.sampled_from(legal_degrees(servers, ports)))
    ids = st.integers(0, servers - 1)
    sizes = st.sampled_from([0, 1, 7, 1000, 10**6, 3 * 10**9])
    members = st.lists(ids, min_size=1, unique=True).map(tuple)
    groups = draw(st.lists(st.builds(GroupDemand, members, sizes), max_size=5))
    pair = st.builds(PairDemand, ids, ids, sizes).filter(lambda p: p.source != p.target)
    pairs = draw(st.lists(pair, max_size=12)) if servers > 1 else []
    return Cluster(servers, degree, 10.0, ports), Demand(tuple(groups), tuple(pairs))


@settings(max_examples=250, deadline=None)
@given(case=clusters_and_demands())
def test_any_cluster_and_demand_get_a_network_that_keeps_every_rule(
    case: tuple[Cluster, Demand],
) -> None:
    cluster, demand = case
    network = find_network(cluster, demand)
    check_network(cluster, demand, network)
    assert find_network(cluster, demand) == network
    sent = Counter(link.source for link in network.links)
    received = Counter(link.target for link in network.links)
    dark = [s for s in range(cluster.servers) if sent[s] < cluster.degree]
    deaf = [s for s in range(cluster.servers) if received[s] < cluster.degree]
    # a free transmitter and a free receiver are never left at two different servers
    assert all(a == b for a in dark for b in deaf) or cluster.servers == 1


@settings(max_examples=60, deadline=None)
@given(case=clusters_and_demands())
def test_the_order_of_the_demand_does_not_matter(case: tuple[Cluster, Demand]) -> None:
    cluster, demand = case
    shuffled = Demand(
        tuple(GroupDemand(g.servers[::-1], g.size_bytes) for g in demand.groups[::-1]),
        demand.pairs[::-1],
    )
    assert find_network(cluster, shuffled) == find_network(cluster, demand)


def test_the_same_servers_in_several_groups_are_one_group() -> None:
    demand = Demand((GroupDemand((0, 1, 2, 3), 5), GroupDemand((3, 2, 1, 0), 7)), ())
    network = find_network(Cluster(4, 2, 1.0), demand)
    assert [group.servers for group in network.groups] == [(0, 1, 2, 3)]
    # 12 bytes over two rings of 4: 2 * 3/4 * 12 / 2 = 9 bytes per link and direction
    assert link_load_bytes(network, demand) == (9,) * 8


def test_disjoint_groups_are_joined_by_a_ring_over_all_servers_first() -> None:
    demand = Demand((GroupDemand((0, 1, 2, 3), 10**9), GroupDemand((4, 5, 6, 7), 10**9)), ())
    network = find_network(Cluster(8, 4, 1.0), demand)
    assert len(group_of(network, tuple(range(8))).rings) == 2
    adjacent = {(link.source, link.target) for link in network.links}
    for servers in ((0, 1, 2, 3), (4, 5, 6, 7)):
        for ring in group_of(network, servers).rings:
            hops = zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True)
            assert set(hops) <= adjacent


def test_groups_without_ports_of_their_own_get_rings_over_routes() -> None:
    halves = (GroupDemand((0, 2, 4, 6), 10**6), GroupDemand((1, 3, 5, 7), 10**6))
    demand = Demand((GroupDemand(tuple(range(8)), 10**9), *halves), ())
    network = find_network(Cluster(8, 2, 1.0), demand)
    for half in halves:
        rings = group_of(network, half.servers).rings
        assert len(rings) == 2
        assert rings[0].servers == half.servers  # neighbours two hops apart on the one ring
    # the halves are two hops apart everywhere, so they pay each of their bytes twice
    whole, part = 2 * 7 * 10**9, 2 * 3 * 10**6
    tax = (whole + 2 * 2 * part) / (whole + 2 * part)
    assert bandwidth_tax(demand, network) == pytest.approx(tax)


def test_overlapping_groups_that_connect_the_cluster_need_no_further_ring() -> None:
    demand = Demand((GroupDemand((0, 1, 2), 10**6), GroupDemand((2, 3, 4), 10**6)), ())
    network = find_network(Cluster(5, 4, 1.0), demand)
    adjacent = {(link.source, link.target) for link in network.links}
    assert {(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)} <= adjacent
    assert len(group_of(network, (0, 1, 2)).rings) == 2


def test_ports_that_mp_demand_leaves_go_to_further_rings() -> None:
    # almost all bytes go from 0 to 1, so the group of the others has to wait for what is left
    rest = (2, 3, 4, 5, 6, 7)
    demand = Demand((GroupDemand(rest, 10),), (PairDemand(0, 1, 10**9),))
    network = find_network(Cluster(8, 4, 1.0), demand)
    adjacent = {(link.source, link.target) for link in network.links}
    for ring in group_of(network, rest).rings:
        assert set(zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True)) <= adjacent


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_without_allreduce_demand_one_ring_still_connects_all_servers(ports: Ports) -> None:
    demand = Demand((), (PairDemand(0, 4, 10**9), PairDemand(4, 0, 10**9)))
    cluster = Cluster(8, 4, 1.0, ports)
    network = find_network(cluster, demand)
    count = Counter((link.source, link.target) for link in network.links)
    assert all(count[s, (s + 1) % 8] for s in range(8))
    spent = ports_per_ring(cluster, 8)
    assert count[0, 4] == cluster.degree - spent, "all other ports of the hot pair serve it"
    assert len(network.groups[0].rings) == spent


def test_a_share_of_the_degree_goes_to_each_kind_of_traffic() -> None:
    servers = 16
    ring_bytes = 2 * 15 * 10**6
    pairs = uniform_pairs(servers, ring_bytes // (servers * (servers - 1)))
    network = find_network(
        Cluster(servers, 4, 1.0), Demand((GroupDemand(tuple(range(servers)), 10**6),), pairs)
    )
    assert len(network.groups[0].rings) == 2  # half the traffic: one stride, both directions
    assert mean_hops(network, servers) < 2.2  # the two matchings are not beside the ring


def test_uniform_demand_at_128_servers_is_spread_over_equal_paths() -> None:
    demand = Demand((GroupDemand(tuple(range(128)), 10**9),), uniform_pairs(128, 10**5))
    network = find_network(Cluster(128, 4, 100.0), demand)
    loads = link_load_bytes(network, demand)
    assert max(loads) / (sum(loads) / len(loads)) < 1.2
    weights = Counter(round(1 / route.weight) for route in network.routes)
    assert max(weights) == 4


def test_the_golden_network_of_eight_servers_has_not_changed() -> None:
    demand = Demand(
        (GroupDemand(tuple(range(8)), 4_000_000), GroupDemand((0, 2, 5), 100_000)),
        (PairDemand(0, 7, 1_000_000), PairDemand(3, 6, 2_000_000)),
    )
    network = find_network(Cluster(8, 4, 10.0), demand)
    lines = [f"link {x.source}.{x.source_port} {x.target}.{x.target_port}" for x in network.links]
    for group in network.groups:
        lines += [f"ring {' '.join(map(str, r.servers))} {r.share}" for r in group.rings]
    lines += [f"route {' '.join(map(str, r.servers))} {r.weight}" for r in network.routes]
    golden = Path(__file__).parents[2] / "golden" / "network_8_servers_4_ports.txt"
    assert "\n".join(lines) + "\n" == golden.read_text()


@pytest.mark.parametrize(
    ("cluster", "demand", "tokens"),
    [
        (Cluster(4, 4, 1.0), Demand((), ()), ("degree", 4, 3)),
        (Cluster(4, 1, 1.0), Demand((), ()), ("degree", 1, 4)),
        (
            Cluster(4, 2, 1.0),
            Demand((GroupDemand((0, 4), 1),), ()),
            ("demand.groups[0].servers", "server 4", "0..3"),
        ),
        (
            Cluster(4, 2, 1.0),
            Demand((), (PairDemand(1, 2, -5),)),
            ("demand.pairs[0].size_bytes", -5, 0),
        ),
    ],
)
def test_bad_input_is_named(cluster: Cluster, demand: Demand, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        find_network(cluster, demand)


@pytest.mark.parametrize(("servers", "degree", "ports"), [(4, 6, "duplex"), (3, 5, "simplex")])
def test_parallel_links_that_are_asked_for_carry_rings_too(
    servers: int, degree: int, ports: Ports
) -> None:
    cluster = Cluster(servers, degree, 1.0, ports, parallel_links=True)
    network = find_network(cluster, data_parallel(servers))
    validate_network(cluster, network)
    assert len(network.links) == servers * degree
    crossed = 3 if ports == "duplex" and degree % 2 else 0  # the odd port: four rings for one
    assert len(network.groups[0].rings) == degree + crossed
    assert len(set(link_load_bytes(network, data_parallel(servers)))) == 1


def test_an_unknown_mode_is_refused() -> None:
    with refused(ValueError, "mode", "other"):
        find_network(Cluster(4, 2, 1.0), Demand((), ()), mode="other")  # type: ignore[arg-type]


@pytest.mark.parametrize(("transfer_bytes", "joined"), [(50, 0), (300, 24)])
def test_the_printed_split_leaves_pipelines_no_cables_where_most_bytes_are_all_reduce(
    transfer_bytes: int, joined: int
) -> None:
    """Four stages of four servers: 84 % of the bytes are AllReduce, and 46 %; ceil(4 x 0.84) = 4.

    The first is what a GPT of 8 stages asks for on 128 servers.
    """
    stages = [tuple(range(4 * stage, 4 * stage + 4)) for stage in range(4)]
    groups = tuple(GroupDemand(stage, 260) for stage in stages)
    handed_over = tuple(
        PairDemand(a, b, transfer_bytes) for i in range(12) for a, b in ((i, i + 4), (i + 4, i))
    )
    network = find_network(Cluster(16, 4, 100.0), Demand(groups, handed_over))
    between = {(pair.source, pair.target) for pair in handed_over}
    assert len(between & {(link.source, link.target) for link in network.links}) == joined
