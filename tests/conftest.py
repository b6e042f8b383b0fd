"""Fixtures that several test folders share, and the order of tests that run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.limits import limit_s
from support.turns import forget, turn

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    Placement,
    Plan,
    Prediction,
    Ring,
    Round,
    Route,
    SearchSample,
)

RingPlan = Callable[..., Plan]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that need the machine alone come last: the others would wait for them.

    Whole files, for the tests of one go to one process in their order.
    """
    last = {item.path for item in items if _alone(item)}
    items.sort(key=lambda item: item.path in last)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Outside of the time limit of a test, which does not count its wait for its turn."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        _stretch_limit(item)
        return (yield)
    with turn(worker["testrunuid"], alone=_alone(item)):
        _stretch_limit(item)
        return (yield)


def _stretch_limit(item: pytest.Item) -> None:
    """Scales the time limit of a test, and with it that of all its fixtures."""
    marker = item.get_closest_marker("timeout")
    usual = item.config.getoption("timeout") or item.config.getini("timeout")
    idle_s = float(marker.args[0] if marker else usual)
    item.add_marker(pytest.mark.timeout(limit_s(idle_s)), append=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = getattr(session.config, "workerinput", {}).get("testrunuid")
    if run is None and session.config.pluginmanager.hasplugin("dsession"):
        forget(session.config.pluginmanager.getplugin("dsession").nodemanager.testrunuid)


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _ring_links(count: int, ports: str) -> tuple[Link, ...]:
    """The +1 ring. Duplex: port 0 to the successor's port 1, and back on the same cable."""
    if count == 1:
        return ()
    if count == 2 and ports == "duplex":
        return (Link(0, 0, 1, 0), Link(1, 0, 0, 0))
    forward = [Link(s, 0, (s + 1) % count, 1 if ports == "duplex" else 0) for s in range(count)]
    back = [link.reverse for link in forward] if ports == "duplex" else []
    return (*forward, *back)


def _ring_routes(count: int, links: tuple[Link, ...]) -> tuple[Route, ...]:
    adjacent = {(link.source, link.target) for link in links}
    return tuple(
        Route(tuple((a + i) % count for i in range((b - a) % count + 1)), 1.0)
        for a in range(count)
        for b in range(count)
        if a != b and (a, b) not in adjacent
    )


@pytest.fixture
def ring_plan() -> RingPlan:
    """Makes a small valid plan by hand, without the planner: servers on one +1 ring."""

    def make(servers: int = 4, *, link_gbps: float = 1.0, ports: str = "duplex") -> Plan:
        duplex = ports == "duplex"
        degree = 2 if duplex and servers > 2 else 1
        links = _ring_links(servers, ports)
        everyone = tuple(range(servers))
        rings = [Ring(everyone, 1.0)]
        if duplex and servers > 2:
            rings = [Ring(everyone, 0.5), Ring(everyone[::-1], 0.5)]
        size = 4_000_000
        return Plan(
            version=Plan.VERSION,
            model="by hand",
            batch_size=32,
            seed=0,
            mode="paper",
            strategy_space="data-parallel",
            cluster=Cluster(servers, degree, link_gbps, "duplex" if duplex else "simplex"),
            network=Network(
                links,
                (Group(everyone, tuple(rings) if servers > 1 else ()),),
                _ring_routes(servers, links),
            ),
            demand=Demand((GroupDemand(everyone, size),), ()),
            prediction=Prediction(0.02, 0.01, 0.02, 0.015, tuple(size for _ in links)),
            rounds=(Round(0.02, 0.02, 0.02, 0.015, True),),
            search=(SearchSample(1, 0.02, 0.02),),
            strategy=(Placement("layer", everyone),),
        ).validate()

    return make
