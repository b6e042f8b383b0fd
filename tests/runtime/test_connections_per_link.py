"""How many connections a link gets, and what becomes of routes and counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_topoopt.links.identity import wire_version, without_connections
from torch_topoopt.links.options import PLAIN, RequestedLinks
from torch_topoopt.links.sockets import unsent_bytes
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import LinkTraffic, Route
from torch_topoopt.runtime.link_options import (
    connections_per_link,
    of_links,
    over_all_connections,
)


def wiring(*rates: float | None) -> Wiring:
    """Of servers in a row whose ports have these speeds; the first one also has a limit."""
    ports = [
        PortAddress(server, 0, f"10.0.0.{server + 1}", None, speed_gbps=rate)
        for server, rate in enumerate(rates)
    ]
    return Wiring(Wiring.VERSION, "test", "digest", 20000, tuple(ports))


@pytest.mark.parametrize(
    ("rates", "number"),
    [((None,), 1), ((10.0, 10.0), 1), ((25.0,), 2), ((10.0, 200.0), 4), ((None, 40.0), 2)],
)
def test_the_fastest_port_decides_unless_a_number_is_requested(rates, number) -> None:
    assert connections_per_link(PLAIN, wiring(*rates)) == number
    assert connections_per_link(replace(PLAIN, connections=3), wiring(*rates)) == 3


@pytest.mark.parametrize(
    "environment",
    [
        {"TOPOOPT_TRANSPORT": "fabric:tcp"},
        {"TOPOOPT_CONTROLLER": "somewhere"},
        {"TOPOOPT_CIRCUITS": "somewhere"},
    ],
)
def test_links_that_have_one_connection_have_it_at_any_rate(environment: dict[str, str]) -> None:
    assert connections_per_link(RequestedLinks.of(environment), wiring(400.0)) == 1


def test_a_limit_counts_before_the_speed_of_the_interface() -> None:
    limited = wiring(200.0)
    (port,) = limited.ports
    assert connections_per_link(PLAIN, replace(limited, ports=(replace(port, gbps=1.0),))) == 1


@pytest.mark.parametrize(
    ("gbps", "per_link", "kib"),
    [
        (None, 1, 2048),
        (None, 2, 1024),
        (None, 4, 512),
        (200.0, 16, 512),  # less would be served in small pieces
        (0.1, 1, 61),
        (0.1, 4, 61),  # of a slow link each has what it had
    ],
)
def test_connections_of_a_fast_link_share_what_the_kernel_may_hold(gbps, per_link, kib) -> None:
    (port,) = wiring(gbps).ports
    assert unsent_bytes(port, per_link) // 1024 == kib


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5), st.integers(1, 16))
def test_routes_keep_their_weights_and_take_turns(weights, per_link) -> None:
    routes = [Route((0, number + 1, 9), weight) for number, weight in enumerate(weights)]
    spread = over_all_connections(routes, per_link)
    assert len(spread) == len(routes) * per_link
    for number, route in enumerate(routes):
        own = spread[number * per_link : (number + 1) * per_link]
        assert {each.servers for each in own} == {route.servers}
        assert sum(each.weight for each in own) == pytest.approx(route.weight)


def test_a_link_has_sent_what_its_connections_have_sent_at_the_same_time() -> None:
    first = LinkTraffic(0, 0, 1, 0, 10, 4, 6, 2, 3.0)
    second = replace(first, sent_bytes=20, seconds=5.0)
    other = replace(first, source_port=1)
    merged = of_links([first, second, other])
    assert merged == [replace(first + second, seconds=5.0), other]
    assert of_links([other]) == [other]


def test_ranks_of_different_numbers_have_different_versions() -> None:
    here, there = wire_version("a"), wire_version("a", connections=2)
    assert here != there
    assert without_connections(there) == here
