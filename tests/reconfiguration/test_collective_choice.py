"""Circuits move for a collective where that is faster than the plan's circuits, the way back
included."""

from __future__ import annotations

import pytest
from support.fabric.netns_fixtures import make_plan

from torch_topoopt.reconfiguration.collective_choice import CollectiveChooser
from torch_topoopt.reconfiguration.collectives.phases import COLLECTIVES
from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective

SERVERS = 12
EVERYBODY = tuple(range(SERVERS))
MB = 1_000_000


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_circuits_move_where_that_beats_the_ranks_prediction(collective: str) -> None:
    choose = CollectiveChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    moving_s = choose(collective, MB, 1e9, EVERYBODY).moving_predicted_s
    faster, slower = (choose(collective, MB, moving_s * by, EVERYBODY) for by in (1.01, 0.99))
    assert isinstance(faster.schedule, SteppedCollective)
    assert faster.schedule.timeline.collective == collective
    assert faster.why.startswith("moving is faster: ")
    assert slower.schedule is None
    assert slower.why.startswith("moving does not pay: ")
    assert slower.static_predicted_s == moving_s * 0.99


def test_more_moves_are_made_where_a_move_is_short() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    topologies = []
    for move_s in (1e-6, 0.1):
        found = CollectiveChooser(plan, move_s)("all_gather", MB, 1e9, EVERYBODY).schedule
        assert found is not None
        topologies.append(found.reconfigurations)
    assert topologies == [2, 1]


def test_the_prediction_is_for_the_size_and_schedules_are_shared() -> None:
    choose = CollectiveChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    first, second = (choose("all_reduce", size, 1e9, EVERYBODY) for size in (600_000, 900_000))
    assert first.schedule is second.schedule is not None
    for choice, size in ((first, 600_000), (second, 900_000)):
        assert choice.schedule is not None
        assert choice.moving_predicted_s == choice.schedule.running_s(size, choose.costs)
    assert first.moving_predicted_s < second.moving_predicted_s


def test_short_collectives_need_not_be_requested_unless_circuits_always_move() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    assert CollectiveChooser(plan, 0.02).least_s == 0.04
    always = CollectiveChooser(plan, 0.02, always=True)
    assert always.least_s == 0
    choice = always("broadcast", 100, 1e-6, EVERYBODY)
    assert choice.schedule is not None
    assert choice.schedule.reconfigurations == 1
    assert choice.why.startswith("reconfigure was requested: ")


def test_no_schedule_is_faster_than_its_two_moves() -> None:
    choose = CollectiveChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    assert choose("all_gather", 1, 1e9, EVERYBODY).moving_predicted_s > choose.least_s


@pytest.mark.parametrize("members", [2, 3, 4])
def test_a_group_has_schedules_of_its_own(members: int) -> None:
    choose = CollectiveChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    schedule = choose("all_reduce", MB, 1e9, tuple(range(0, 3 * members, 3))).schedule
    assert isinstance(schedule, SteppedCollective)
    assert schedule.links.shape[1] == schedule.timeline.servers == members
    assert schedule.links.shape[2] <= min(2, members - 1)


def test_circuits_of_the_plan_are_not_predicted_as_moves() -> None:
    choose = CollectiveChooser(make_plan(8, 2, gbps=0.1), 0.02)
    everybody = tuple(range(8))
    moves = {
        one.reconfigurations: one.moves for one in choose.schedules("all_reduce", MB, everybody)
    }
    assert moves[2] == 2
    choice = choose("all_reduce", MB, 1e9, everybody)
    assert choice.schedule is not None
    assert choice.present == choice.schedule.of_the_plan
    assert choice.moves == choice.schedule.moves == 2


def test_a_move_back_that_is_hidden_is_not_predicted() -> None:
    plan = make_plan(8, 2, gbps=0.1)
    seen, hidden = (CollectiveChooser(plan, 0.02, ahead=ahead) for ahead in (False, True))
    assert (seen.least_s, hidden.least_s) == (0.04, 0.02)
    one, other = (choose("all_gather", MB, 1e9, (3, 5)) for choose in (seen, hidden))
    assert one.moving_predicted_s - other.moving_predicted_s == pytest.approx(0.02)
    between = (one.moving_predicted_s + other.moving_predicted_s) / 2
    assert seen("all_gather", MB, between, (3, 5)).schedule is None
    assert hidden("all_gather", MB, between, (3, 5)).moves == 2


def test_neighbours_keep_the_circuits_of_the_plan_unless_circuits_always_move() -> None:
    plan = make_plan(8, 2, gbps=0.1)
    assert CollectiveChooser(plan, 0.02)("all_gather", MB, 1e9, (3, 4)).schedule is None
    always = CollectiveChooser(plan, 0.02, always=True)("all_gather", MB, 1e9, (3, 4))
    assert always.schedule is not None
    assert always.moves == 0
    assert CollectiveChooser(plan, 0.02)("all_gather", MB, 1e9, (3, 5)).moves == 2
