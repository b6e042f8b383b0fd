"""Tables of measured collectives: what is chosen, what is fastest, and how far apart they are."""

from __future__ import annotations

import pytest
from collectives_measured import CollectiveLine, GivenCollectives, report

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives
from torch_topoopt.reconfiguration.requested_calls import MovedCollective


def line(topologies: int, predicted_s: float, *measured_s: float) -> CollectiveLine:
    moving_s = tuple(0.1 for _ in measured_s)
    return CollectiveLine(
        "all_reduce", 8, 1, 3_000_000, 0.01, topologies, 0.02, predicted_s, measured_s, moving_s
    )


def test_the_shortest_prediction_is_held_against_the_fastest_median() -> None:
    lines = [line(0, 2.0, 2.4, 2.2, 9.0), line(1, 3.0, 3.1, 3.3, 3.2), line(3, 2.1, 2.0, 2.0, 2.0)]
    head, _, stays, first, third, ratio = report(lines)
    assert head == "# all_reduce of 3 MB, 8 servers, 1 circuits, R 10 ms, a move takes 20 ms"
    assert stays.endswith(" chosen")
    assert " ".join(first.split()) == "1 3.000 s 3.200 s 1.067 3.100 s 3.300 s 0.100 s"
    assert third.endswith(" fastest")
    assert ratio == "# chosen / fastest: 1.200"


def test_schedules_are_given_in_their_order_and_errors_are_kept() -> None:
    (schedule, _) = stepped_collectives("all_gather", 4, 1, CircuitCosts(1.0, 0.0, 0.01), 1e6)
    given = GivenCollectives([None, schedule])
    choices = [given("all_gather", 1000, 0.25, (0, 1, 2, 3)) for _ in range(2)]
    assert [choice.schedule for choice in choices] == [None, schedule]
    assert given.planned_s == {"all_gather": 0.25}
    with pytest.raises(StopIteration):
        given("all_gather", 1000, 0.25, (0, 1, 2, 3))
    given.ended(MovedCollective("all_gather", 1000, 4, choices[0], 1.0, 0.0))
    given.ended(MovedCollective("all_gather", 1000, 4, choices[1], 1.0, 0.5, "dark"))
    assert given.errors == ["dark"]
    assert given.moving_s == [0.0, 0.5]
