"""Optimal routes against a program over all paths, cuts, bounds; conservation; the approximation.

`_least_over_all_paths` is the reference: it has a variable for every loop-free path, so it shares
nothing with the program under test but the solver.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import adjacency, random_capacity, random_traffic, simple_paths
from scipy.optimize import linprog
from support.refusals import refused

from torch_topoopt.plan import Cluster
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.linear_program import period_of, program_size
from torch_topoopt.topology.routing.optimal_routes import OptimalRoutes, link_counts, optimal_routes

if TYPE_CHECKING:
    from numpy.typing import NDArray

networks = st.tuples(
    st.integers(3, 6), st.integers(0, 8), st.integers(1, 12), st.integers(0, 10**6)
)


def _least_over_all_paths(
    capacity: NDArray[np.float64], traffic: NDArray[np.float64]
) -> tuple[float, float]:
    """(least maximum of bytes / capacity, least bytes on all links at that maximum)."""
    table, _ = adjacency(capacity)
    links = {pair: i for i, pair in enumerate(map(tuple, np.argwhere(capacity > 0).tolist()))}
    ways = [
        (pair, path)
        for pair in map(tuple, np.argwhere(traffic > 0).tolist())
        for path in simple_paths(table, *pair)
    ]
    pairs = {pair: i for i, pair in enumerate(dict.fromkeys(pair for pair, _ in ways))}
    load = np.zeros((len(links), len(ways) + 1))
    load[:, -1] = [-capacity[pair] for pair in links]
    total = np.zeros((len(pairs), len(ways) + 1))
    hops = np.zeros(len(ways) + 1)
    for i, (pair, path) in enumerate(ways):
        total[pairs[pair], i] = 1
        hops[i] = len(path) - 1
        for hop in itertools.pairwise(path):
            load[links[hop], i] = 1
    wanted = [traffic[pair] for pair in pairs]
    none = np.zeros(len(links))
    first = linprog(np.eye(len(ways) + 1)[-1], A_ub=load, b_ub=none, A_eq=total, b_eq=wanted)
    bounds = [(0, None)] * len(ways) + [(0, first.fun * (1 + 1e-9))]
    second = linprog(hops, A_ub=load, b_ub=none, A_eq=total, b_eq=wanted, bounds=bounds)
    return first.fun, second.fun


def _loads(traffic: NDArray[np.float64], found: OptimalRoutes) -> NDArray[np.float64]:
    """Bytes [a][b] on the links when every pair's bytes follow its weights; checks the routes."""
    servers = len(traffic)
    sent = np.zeros_like(traffic)
    for (source, target), routes in found.routes.items():
        assert sum(route.weight for route in routes) == pytest.approx(1, abs=1e-9)
        for route in routes:
            assert (route.servers[0], route.servers[-1]) == (source, target)
            assert len(set(route.servers)) == len(route.servers)
            assert route.weight > 0
            for by in range(0, servers, found.period):
                way = [(server + by) % servers for server in route.servers]
                for hop in itertools.pairwise(way):
                    sent[hop] += traffic[source, target] * route.weight
    pairs = {pair for pair in map(tuple, np.argwhere(traffic > 0)) if pair[0] < found.period}
    assert found.routes.keys() == pairs
    return sent


def _check(
    capacity: NDArray[np.float64], traffic: NDArray[np.float64], found: OptimalRoutes
) -> None:
    """Bytes are conserved, only links are used, and the utilisation is as said."""
    sent = _loads(traffic, found)
    assert not sent[capacity == 0].any()
    used = capacity > 0
    assert np.max(sent[used] / capacity[used]) == pytest.approx(found.utilisation)
    given_out = sent.sum(axis=1) - sent.sum(axis=0)
    wanted = traffic.sum(axis=1) - traffic.sum(axis=0)
    assert given_out == pytest.approx(wanted, abs=1e-6 * traffic.sum())


@settings(max_examples=20, deadline=None)
@given(networks)
def test_exact_routes_are_as_good_as_all_paths_allow_and_no_longer_than_needed(
    network: tuple[int, int, int, int],
) -> None:
    servers, extra, pairs, seed = network
    capacity = random_capacity(servers, extra, seed)
    traffic = random_traffic(servers, pairs, seed)
    found = optimal_routes(capacity, traffic, method="exact")
    _check(capacity, traffic, found)
    utilisation, total = _least_over_all_paths(capacity, traffic)
    # routes below a thousandth of a pair are left out
    assert found.utilisation == pytest.approx(utilisation, rel=2e-3)
    assert found.bound == pytest.approx(utilisation, rel=1e-6)
    assert _loads(traffic, found).sum() == pytest.approx(total, rel=2e-3)


@settings(max_examples=20, deadline=None)
@given(networks)
def test_the_approximation_is_within_its_gap_and_its_bound_holds(
    network: tuple[int, int, int, int],
) -> None:
    servers, extra, pairs, seed = network
    capacity = random_capacity(servers, extra, seed)
    traffic = random_traffic(servers, pairs, seed)
    found = optimal_routes(capacity, traffic, method="approximate", gap=0.02)
    _check(capacity, traffic, found)
    least = optimal_routes(capacity, traffic, method="exact").bound
    assert found.bound <= least * (1 + 1e-6)
    assert found.utilisation >= least * (1 - 1e-6)
    assert found.gap == pytest.approx(found.utilisation / found.bound - 1)
    assert found.utilisation <= least * 1.03


def test_uniform_traffic_on_a_network_without_symmetry_both_ways() -> None:
    capacity = random_capacity(24, 72, 5)
    traffic = np.full((24, 24), 7.0) - np.diag([7.0] * 24)
    exact = optimal_routes(capacity, traffic, method="exact")
    near = optimal_routes(capacity, traffic, method="approximate", gap=0.02)
    for found in (exact, near):
        _check(capacity, traffic, found)
    assert exact.period == 24
    assert near.bound <= exact.bound * (1 + 1e-6)
    assert near.gap <= 0.02
    # shortest distances bound it, too: all bytes together on all links alike
    assert exact.bound >= traffic.sum() / capacity.sum()


@pytest.mark.parametrize(("servers", "strides"), [(16, (1, 5)), (12, (1, 2)), (20, (1, 6, 9))])
def test_a_circulant_network_is_solved_for_one_source_alone(
    servers: int, strides: tuple[int, ...]
) -> None:
    wiring = PortAllocator(Cluster(servers, 2 * len(strides), 1.0))
    for stride in strides:
        wiring.add_stride(range(servers), stride)
    capacity = link_counts(servers, wiring.links)
    traffic = np.full((servers, servers), 3.0) - np.diag([3.0] * servers)
    assert period_of(capacity, traffic) == 1
    assert program_size(capacity, traffic) == np.count_nonzero(capacity)
    found = optimal_routes(capacity, traffic)
    _check(capacity, traffic, found)
    # one byte more and nothing is left of the symmetry, nor of the shortcut
    traffic[0, 1] += 1e-3
    assert period_of(capacity, traffic) == servers
    whole = optimal_routes(capacity, traffic, method="exact")
    assert found.utilisation == pytest.approx(whole.utilisation, rel=2e-3)


def test_a_symmetry_by_more_than_one_server_counts() -> None:
    """Strides of two kinds in turn: moving by 2 keeps the links, moving by 1 does not."""
    capacity = np.zeros((8, 8))
    for s in range(8):
        capacity[s, (s + 1) % 8] = 1
        capacity[s, (s + (3 if s % 2 else 5)) % 8] = 2
    traffic = np.full((8, 8), 5.0) - np.diag([5.0] * 8)
    assert period_of(capacity, traffic) == 2
    found = optimal_routes(capacity, traffic, method="exact")
    _check(capacity, traffic, found)
    utilisation, _ = _least_over_all_paths(capacity, traffic)
    assert found.utilisation == pytest.approx(utilisation, rel=2e-3)


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_a_pair_with_a_link_is_spread_when_that_lowers_the_maximum(method: str) -> None:
    """Two links of 1 over server 1 beside one of 2: by capacity, 2/3 go direct (max-flow 3)."""
    capacity = np.zeros((3, 3))
    capacity[0, 2], capacity[0, 1], capacity[1, 2] = 2, 1, 1
    capacity[2, 0] = 1
    traffic = np.zeros((3, 3))
    traffic[0, 2] = 900
    found = optimal_routes(capacity, traffic, method=method)  # type: ignore[arg-type]
    weights = {route.servers: route.weight for route in found.routes[0, 2]}
    assert weights[0, 2] == pytest.approx(2 / 3, abs=0.01)
    assert weights[0, 1, 2] == pytest.approx(1 / 3, abs=0.01)
    assert found.utilisation == pytest.approx(300, rel=0.011)


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_bytes_take_no_detour_that_the_maximum_does_not_ask_for(method: str) -> None:
    """A busy link elsewhere sets the maximum; the pair beside it stays on its own short way."""
    capacity = np.zeros((6, 6))
    for s in range(6):
        capacity[s, (s + 1) % 6] = capacity[(s + 1) % 6, s] = 1
    capacity[0, 3] = capacity[3, 0] = 1
    traffic = np.zeros((6, 6))
    traffic[1, 2], traffic[4, 5] = 1000, 10
    found = optimal_routes(capacity, traffic, method=method)  # type: ignore[arg-type]
    assert [route.servers for route in found.routes[4, 5]] == [(4, 5)]


def test_a_pair_too_small_for_the_program_to_see_takes_a_shortest_path() -> None:
    ring = Cluster(6, 2, 10.0)
    wiring = PortAllocator(ring)
    wiring.add_stride(tuple(range(6)), 1)
    capacity = link_counts(6, wiring.links)
    traffic = np.zeros((6, 6))
    traffic[5, 2] = traffic[4, 1] = 1e9
    traffic[2, 4] = traffic[0, 2] = traffic[4, 0] = 1
    found = optimal_routes(capacity, traffic, method="exact")
    assert found.routes.keys() == {(5, 2), (4, 1), (2, 4), (0, 2), (4, 0)}
    assert sum(route.weight for route in found.routes[0, 2]) == 1
    assert found.utilisation == pytest.approx(1e9)
    apart = capacity.copy()
    apart[:, 3] = 0
    traffic[1, 3] = 1e-3
    with refused(ValueError, "path"):
        optimal_routes(apart, traffic, method="exact")


def test_nothing_to_send_needs_no_routes() -> None:
    found = optimal_routes(random_capacity(5, 3, 1), np.zeros((5, 5)))
    assert (found.routes, found.utilisation, found.gap, found.exact) == ({}, 0.0, 0.0, True)


def test_bad_input_is_named() -> None:
    capacity, traffic = random_capacity(4, 4, 2), random_traffic(4, 3, 2)
    wrong = traffic.copy()
    wrong[1, 2] = np.nan
    with refused(ValueError, "traffic", "server 1", 2, 0, "nan"):
        optimal_routes(capacity, wrong)
    wrong = capacity.copy()
    wrong[3, 0] = -1
    with refused(ValueError, "capacity", -1.0, "server 3", 0):
        optimal_routes(wrong, traffic)
    with refused(ValueError, "traffic", "server 2", "itself"):
        optimal_routes(capacity, np.diag([0.0, 0, 1, 0]))
    with refused(ValueError, "gap", 0, 1):
        optimal_routes(capacity, traffic, gap=0)
    with refused(ValueError, "method", "fast", "auto", "exact", "approximate"):
        optimal_routes(capacity, traffic, method="fast")  # type: ignore[arg-type]
    with refused(ValueError, "capacity"):
        optimal_routes(capacity[:3, :3], traffic)


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_a_pair_without_a_path_is_an_error(method: str) -> None:
    capacity = np.zeros((3, 3))
    capacity[0, 1] = capacity[1, 0] = 1
    traffic = np.zeros((3, 3))
    traffic[0, 2] = 1
    with refused(ValueError, "path"):
        optimal_routes(capacity, traffic, method=method)  # type: ignore[arg-type]
