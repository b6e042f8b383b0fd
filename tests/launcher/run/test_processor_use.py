"""The processor use of other programs while a job trains."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from support.limits import limit_s

from torch_topoopt.launcher.run import processor_use
from torch_topoopt.launcher.run.processor_use import ProcessorUse, described

COMPUTE_1_S = "import time\nwhile time.process_time() < 1: pass"


@pytest.fixture
def clock(monkeypatch):
    """Sets what /proc/stat and the clock say: clock(time_s, busy_s, own_s)."""
    values = {}

    def set_to(time_s, busy_s, own_s):
        values.update(time_s=time_s, busy_s=busy_s, own_s=own_s)

    class Readings:
        def __init__(self):
            self.__dict__.update(values)

    monkeypatch.setattr(processor_use, "_Readings", Readings)
    return set_to


def test_what_this_process_and_its_children_compute_is_left_out(clock):
    clock(time_s=10, busy_s=100, own_s=5)
    use = ProcessorUse()
    clock(time_s=20, busy_s=115, own_s=12)
    assert use.of_others() == pytest.approx(0.8)
    clock(time_s=20, busy_s=106.9, own_s=12)  # clocks of different resolution
    assert use.of_others() == 0


def test_a_child_that_has_ended_counts_as_this_process_and_as_a_busy_processor():
    ours = processor_use._Readings()
    subprocess.run([sys.executable, "-c", COMPUTE_1_S], check=True, timeout=limit_s(60))
    now = processor_use._Readings()
    assert now.own_s - ours.own_s >= 0.98  # both clocks count in hundredths
    assert now.busy_s - ours.busy_s >= 0.98
    assert now.time_s <= time.monotonic()


def test_next_to_nothing_is_not_mentioned(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert described(0.09) == ""
    assert described(0.84).startswith("other programs used 0.8 of 2 CPUs during the run")
