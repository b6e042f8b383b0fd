"""Balance of link loads, by hand."""

from __future__ import annotations

import pytest
from support.refusals import refused

from figures.load_balance import load_balance
from torch_topoopt.plan import Demand, Link, Network, PairDemand, Route


def line() -> Network:
    links = tuple(Link(s, 0, s + 1, 1) for s in range(3))
    return Network(links, (), (Route((0, 1, 2), 1.0), Route((0, 1, 2, 3), 1.0)))


def test_least_mean_most_and_the_curve_by_hand() -> None:
    demand = Demand((), (PairDemand(0, 3, 10), PairDemand(0, 2, 10), PairDemand(0, 1, 10)))
    balance = load_balance(line(), demand, 4)
    assert (balance.min_bytes, balance.mean_bytes, balance.max_bytes) == (10, 20, 30)
    assert balance.max_over_mean == 1.5
    assert balance.least_below_most == pytest.approx(2 / 3)
    assert balance.cdf == ((10, 1 / 3), (20, 2 / 3), (30, 1.0))


def test_links_alike_are_one_point_and_no_bytes_are_balanced() -> None:
    even = load_balance(line(), Demand((), (PairDemand(0, 3, 7),)), 4)
    assert even.cdf == ((7, 1.0),)
    assert (even.max_over_mean, even.least_below_most) == (1.0, 0.0)
    idle = load_balance(line(), Demand((), ()), 4)
    assert (idle.max_over_mean, idle.least_below_most, idle.cdf) == (1.0, 0.0, ((0.0, 1.0),))


def test_a_network_without_links_has_no_balance() -> None:
    with refused(ValueError, "network"):
        load_balance(Network((), (), ()), Demand((), ()), 1)
