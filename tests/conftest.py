"""Fixtures that several test folders share, and the order of tests that run side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from support.limits import limit_s
from support.plans import RingPlan, make_ring_plan
from support.turns import forget, turn

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples in every run, however long they take. TOPOOPT_TEST_EXAMPLES=random: new ones.
settings.register_profile(
    "same examples",
    derandomize=os.environ.get("TOPOOPT_TEST_EXAMPLES") != "random",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same examples")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that need the machine alone come last: the others would wait for them.

    Those with slow tests come first, so that in the end no process works at one alone. Whole files,
    for the tests of one go to one process in their order.
    """
    last = {item.path for item in items if _alone(item)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path in last, item.path not in slow))


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


@pytest.fixture(autouse=True)
def _json_matches_its_schema(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks what verbs print in tests of verbs; commands in processes of their own are not."""
    if request.path.relative_to(Path(__file__).parent).parts[0] in ("launcher", "tools"):
        from support.json_output import checked_print_json

        monkeypatch.setattr("torch_topoopt.launcher.console.print_json", checked_print_json)


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = getattr(session.config, "workerinput", {}).get("testrunuid")
    if run is None and session.config.pluginmanager.hasplugin("dsession"):
        forget(session.config.pluginmanager.getplugin("dsession").nodemanager.testrunuid)


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.fixture
def ring_plan() -> RingPlan:
    return make_ring_plan
