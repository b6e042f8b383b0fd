"""Limits of waits stretch with the load of the machine, those of whole tests included."""

from __future__ import annotations

import os

import pytest
from support import limits


def _load(monkeypatch, per_core):
    monkeypatch.setattr(os, "getloadavg", lambda: (per_core * (os.cpu_count() or 1), 0.0, 0.0))


def test_an_idle_machine_has_time_to_spare(monkeypatch):
    _load(monkeypatch, 0.3)
    monkeypatch.setattr(limits, "_processor", lambda: 1.0)
    assert limits.slowness() == 1
    assert limits.limit_s(20) == 60


def test_load_and_a_slow_processor_stretch_it_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(limits, "_processor", lambda: 1.5)
    _load(monkeypatch, 2)
    assert limits.limit_s(20) == pytest.approx(60 * 2 * 1.5)
    _load(monkeypatch, 1000)
    assert limits.limit_s(20) < 20 * 60


@pytest.mark.timeout(50)
def test_the_limit_of_a_test_is_stretched_as_well(request):
    innermost, *_, marked = request.node.iter_markers("timeout")
    assert marked.args == (50,)
    assert innermost.args[0] >= 50
    assert innermost is not marked
