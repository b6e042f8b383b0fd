"""The table of steps on circuits that move and that stay."""

from __future__ import annotations

import argparse

import pytest
from moving_mesh_measured import compared, report

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives
from torch_topoopt.reconfiguration.requested_calls import MovedCollective

OPTIONS = argparse.Namespace(servers=8, tensor=4, bandwidth="30Mbps", delay=0.005)


def ended(members: int, moves: bool, seconds: float, error: str = "") -> MovedCollective:
    (schedule, *_) = stepped_collectives("all_reduce", members, 1, CircuitCosts(1, 0, 0.01), 1e6)
    choice = Choice(schedule if moves else None, "", 0.25, 0.5)
    return MovedCollective("all_reduce", 1_000_000, members, choice, seconds, 0.0, error)


def test_the_table_has_the_medians_and_their_ratio() -> None:
    seconds = {"static": [3.0, 2.0, 4.0], "alone": [1.8, 2.5, 1.0], "auto": [1.0, 2.0, 1.5]}
    _, static, alone, auto, ratio = report(OPTIONS, 0.01, seconds, True)
    assert "3.000 s" in static
    assert "1.500 s" in auto
    assert "1.800 s" in alone
    assert ratio == "# static / auto: 2.000, alone / auto: 1.200; losses equal"
    assert list(report(OPTIONS, 0.01, seconds, False))[-1].endswith("DIFFER")


def test_collectives_of_each_group_size_have_a_line() -> None:
    two, four = compared([ended(4, True, 0.2), ended(2, False, 0.6), ended(4, True, 0.4)])
    assert "by 2: 0 of 1 moved" in two
    assert "by 4: 2 of 2 moved" in four
    assert four.endswith("took 0.300 s, of it moves 0.000 s")


def test_a_collective_that_was_stopped_is_an_error() -> None:
    with pytest.raises(ValueError, match="dark"):
        list(compared([ended(2, True, 0.2, "dark")]))
