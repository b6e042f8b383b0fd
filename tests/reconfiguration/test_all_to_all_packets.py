"""All-to-all schedules in the simulators: what the slot model says, and what packets add to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.packet_level import simulated
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import uneven_strategy
from torch_topoopt.reconfiguration.collectives.packet_level import simulated_timeline
from torch_topoopt.reconfiguration.collectives.phases import COLLECTIVES
from torch_topoopt.reconfiguration.collectives.planner import options

if TYPE_CHECKING:
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

COSTS = CircuitCosts(link_gbps=800, latency_s=500e-9, reconfiguration_s=20e-6)  # the paper's
CHUNK_BYTES = 4e6


def _schedules(servers: int, degree: int) -> list[AllToAllSchedule]:
    return [found.schedule for found in strategies(servers, degree)]


@pytest.mark.parametrize(("servers", "degree"), [(8, 1), (11, 2), (9, 3)])
def test_with_tiny_headers_a_run_takes_no_longer_than_its_slots(servers: int, degree: int) -> None:
    for schedule in _schedules(servers, degree):
        slots_s = COSTS.seconds(schedule.slots, schedule.reconfigurations, CHUNK_BYTES)
        for level in ("flow", "packet"):
            headers = {"header_bytes": 1} if level == "packet" else {}
            run = simulated(schedule, COSTS, CHUNK_BYTES, level=level, **headers)
            assert run.completion_s <= slots_s * (1 + 2e-4)
            if degree == 1:  # no circuit is ever idle
                assert run.completion_s == pytest.approx(slots_s, rel=2e-4)


def test_headers_and_the_delay_are_in_the_time() -> None:
    """A full packet is 8936 bytes and a header of 64."""
    schedule = _schedules(8, 1)[1]
    run = simulated(schedule, COSTS, CHUNK_BYTES)
    slot_s = 500e-9 + CHUNK_BYTES * 8 / 800e9 * 9000 / 8936
    assert run.completion_s == pytest.approx(schedule.slots * slot_s + 2 * 20e-6, rel=1e-4)
    slow = simulated(schedule, replace(COSTS, reconfiguration_s=1e-3), CHUNK_BYTES)
    assert slow.completion_s - run.completion_s == pytest.approx(2 * 980e-6)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("transport", ["constant", "dctcp"])
def test_one_server_s_circuits_take_as_long_as_all(degree: int, transport: str) -> None:
    for schedule in _schedules(7, degree):
        if schedule.translated:
            times = [
                simulated(one, COSTS, 4e5, transport=transport).completion_s
                for one in (schedule, schedule.whole())
            ]
            assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_uneven_sizes_are_simulated() -> None:
    counts = np.random.default_rng(0).integers(0, 4, (6, 6)).astype(np.int32)
    np.fill_diagonal(counts, 0)
    for even in strategies(6, 2):
        schedule = uneven_strategy(even, counts).schedule
        run = simulated(schedule, COSTS, 1e6, header_bytes=1)
        assert run.flows == len(schedule.sends)
        assert run.completion_s <= COSTS.seconds(schedule.slots, schedule.reconfigurations, 1e6) * (
            1 + 2e-4
        )


def test_what_cannot_be_simulated_is_an_error() -> None:
    schedule = _schedules(5, 1)[0]
    with refused(ValueError, "bytes-per-pair", 0):
        simulated(schedule, COSTS, 0)
    with refused(ValueError, "packet", "packets"):
        simulated(schedule, COSTS, 1e13)
    with refused(ValueError, "pigeons"):
        simulated(schedule, COSTS, 1e6, pigeons=2)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("servers", "degree"), [(8, 1), (11, 2), (18, 3)])
def test_flows_take_what_a_timeline_says(collective: str, servers: int, degree: int) -> None:
    """The timeline is made from sums of steps, the run from what waits for what."""
    for size in (1e5, 1e7):
        for option in options(collective, servers, degree, COSTS, size):
            run = simulated_timeline(option.timeline, COSTS, level="flow")
            assert run.completion_s <= option.seconds * (1 + 1e-9)
            if collective != "broadcast":  # a part of the servers may be through a phase earlier
                assert run.completion_s == pytest.approx(option.seconds, rel=1e-9)
            packets = simulated_timeline(option.timeline, COSTS, header_bytes=1)
            assert packets.completion_s == pytest.approx(run.completion_s, rel=2e-4)
    with refused(ValueError, "packet", "packets"):
        simulated_timeline(replace(option.timeline, total_bytes=1e15), COSTS)
