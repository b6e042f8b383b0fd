"""Rates of flows: max-min fair, Theorem 1."""

from __future__ import annotations

import itertools
import random

import pytest
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.route_control.clos_network import ClosNetwork, leaf_spine
from torch_topoopt.route_control.exact import exact_paths
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.network_shapes import fat_tree_file
from torch_topoopt.route_control.rates import fair_shares
from torch_topoopt.route_control.schemes import ecmp_paths, greedy_paths


def drawn(network: ClosNetwork, seed: int, count: int) -> RoutingProblem:
    random_ = random.Random(seed)
    flows = [
        SwitchedFlow(*random_.sample(range(network.tors), 2), job=random_.randrange(3))
        for _ in range(count)
    ]
    return RoutingProblem(network, flows)


@pytest.mark.parametrize("seed", range(30))
def test_every_flow_has_a_full_link_on_which_none_is_faster(seed: int) -> None:
    uneven = {(t, s): 0.5 + (t + s) % 3 for t in range(5) for s in range(3)}
    network = fat_tree_file(4, 1.0).network() if seed % 2 else leaf_spine(5, 3, capacities=uneven)
    problem = drawn(network, seed, 1 + 3 * seed)
    choice = ecmp_paths(problem, seed)
    shares = fair_shares(problem, choice)
    on: dict[tuple[int, int], list[float]] = {link: [] for link in network.links}
    for flow, path, rate, held in zip(
        problem.flows, choice, shares.rates, shares.bottlenecks, strict=True
    ):
        hops = list(itertools.pairwise(network.paths(flow.source, flow.target)[path]))
        assert held in hops
        for hop in hops:
            on[hop].append(rate)
    for link, rates in on.items():
        assert sum(rates) <= network.capacity[link] * (1 + 1e-9)
    for rate, held in zip(shares.rates, shares.bottlenecks, strict=True):
        assert sum(on[held]) == pytest.approx(network.capacity[held])
        assert rate == pytest.approx(max(on[held]))


@pytest.mark.parametrize("seed", range(40))
def test_greedy_is_at_least_half_as_fair_as_the_optimum(seed: int) -> None:
    """Theorem 1; the slowest flow of all has its part of the link with the most flows."""
    random_ = random.Random(seed)
    problem = drawn(leaf_spine(random_.randint(2, 6), random_.randint(1, 4)), seed, 5 + seed)
    values = []
    for choice in (greedy_paths(problem), exact_paths(problem)):
        values.append(min(fair_shares(problem, choice).rates))
        assert values[-1] == pytest.approx(1 / problem.max_link_load(choice))
    greedy, optimum = values
    assert optimum / 2 <= greedy * (1 + 1e-9)
    assert greedy <= optimum * (1 + 1e-9)


def test_flows_on_one_link_share_it() -> None:
    flows = [SwitchedFlow(*ends) for ends in ((0, 1), (0, 1), (2, 3), (3, 2))]
    problem = RoutingProblem(leaf_spine(4, 1, capacity=10), flows)
    assert fair_shares(problem, [0, 0, 0, 0]).rates == (5, 5, 10, 10)


@pytest.mark.parametrize("choice", [[0], [0, 2], [-1, 0]])
def test_a_choice_is_one_path_of_each_flow(choice: list[int]) -> None:
    problem = RoutingProblem(leaf_spine(2, 2), [SwitchedFlow(0, 1), SwitchedFlow(1, 0)])
    with refused(ValueError, "choice"):
        fair_shares(problem, choice)


def test_links_that_there_are_not_are_refused() -> None:
    with refused(ValueError, "link 1"):
        _core.max_min_rates([1.0], [[0, 1]])
    with refused(ValueError, "capacity"):
        _core.max_min_rates([0.0], [[0]])
    with refused(ValueError, "link"):
        _core.max_min_rates([1.0], [[]])
