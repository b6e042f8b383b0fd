"""Ends from bytes and shares, starts from periods."""

from __future__ import annotations

import numpy as np
import pytest

from torch_topoopt.route_control.controller.messages import FlowReport
from torch_topoopt.route_control.controller.prediction import PredictedEvent, TrafficPrediction

NUMBERS = {"a": 0, "b": 1, "c": 2}


def flow(name: str, size: int = 1000, period_s: float | None = None) -> FlowReport:
    return FlowReport(name, "h0", "h1", size, period_s)


def shares(*bits_per_s: float) -> np.ndarray:
    return np.array(bits_per_s)


def test_a_flow_ends_when_its_bytes_were_sent() -> None:
    prediction = TrafficPrediction()
    prediction.started(10, "j", [flow("a", 1000), flow("b", 500)], NUMBERS)
    prediction.set_shares(10, shares(800, 800))
    assert prediction.events(10, 9) == [PredictedEvent(20, ("a", "b"))]
    # Half of a is sent at 15; the rest of it takes twice as long from then on.
    prediction.set_shares(15, shares(400, 800))
    assert prediction.events(15, 9) == [PredictedEvent(25, ("a", "b"))]
    assert len(prediction.events(40, 9)) == 1  # it is late
    assert prediction.events(40.1, 9) == []  # and waits for something else
    prediction.set_shares(16, shares(0, 800))  # without a path it never ends
    assert prediction.events(16, 9) == []


def test_the_next_phase_is_a_median_period_after_the_last() -> None:
    prediction = TrafficPrediction()
    reports = [flow("a")]
    for start in (0, 2, 4, 6, 19, 21):  # one was late
        prediction.started(start, "j", reports, NUMBERS)
        prediction.ended(start, ["a"])
    assert prediction.events(21, 9) == [PredictedEvent(23, job="j", reports=tuple(reports))]
    assert prediction.events(29.1, 9) == []  # it does not come any more


def test_a_given_period_is_taken() -> None:
    prediction = TrafficPrediction()
    for start in (0, 7):
        prediction.started(start, "j", [flow("a", period_s=3)], NUMBERS)
        prediction.ended(start, ["a"])
    assert [event.at_s for event in prediction.events(7, 9)] == [10]


def test_persistent_flows_are_always_there_until_they_were_seen_to_end() -> None:
    prediction = TrafficPrediction()
    reports = [flow("a", period_s=3)]
    prediction.started(0, "j", reports, NUMBERS)
    assert not prediction.wants_shares()
    prediction.set_shares(0, shares(8000))
    assert prediction.events(50, 9) == []
    prediction.ended(50, ["a"])
    prediction.started(60, "j", reports, NUMBERS)
    assert prediction.wants_shares()
    prediction.set_shares(60, shares(8000))
    assert prediction.events(60, 9) == [PredictedEvent(61, ("a",))]


def test_flows_end_in_the_requests_in_which_they_ended_last_time() -> None:
    prediction = TrafficPrediction()
    reports = [flow("a"), flow("b"), flow("c", 2000)]
    prediction.started(0, "j", reports, NUMBERS)
    prediction.ended(1, ["b", "a"])
    prediction.ended(2, ["c"])
    prediction.started(5, "j", reports, NUMBERS)
    prediction.set_shares(5, shares(8000, 8000, 8000))
    assert [event.ids for event in prediction.events(5, 9)] == [("b", "a")]
    prediction.ended(6, ["b", "a"])
    assert [event.ids for event in prediction.events(5, 9)] == [("c",)]


def test_a_phase_whose_shares_are_not_known_lasts_as_long_as_the_last_time() -> None:
    prediction = TrafficPrediction()
    reports = [flow("a", 1000), flow("b", 1000)]
    prediction.started(0, "j", reports, NUMBERS)
    assert prediction.events(0, 9) == []
    prediction.ended(3, ["a", "b"])
    prediction.started(10, "j", reports, NUMBERS)
    prediction.set_shares(10, shares(8000))  # those of b are not among them
    assert prediction.events(10, 9) == [PredictedEvent(13, ("a", "b"))]
    prediction.set_shares(11, shares(8000, 1000))
    assert prediction.events(11, 9) == [PredictedEvent(19, ("a", "b"))]


def test_events_are_in_order_and_as_many_as_wanted() -> None:
    prediction = TrafficPrediction()
    for i, name in enumerate("abc"):
        prediction.started(0, name, [flow(name, 1000 * (3 - i))], NUMBERS)
    prediction.set_shares(0, shares(8000, 8000, 8000))
    assert [event.ids for event in prediction.events(0, 2)] == [("c",), ("b",)]
    assert [event.at_s for event in prediction.events(0, 9)] == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 20])
def test_what_was_learned_is_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_topoopt.route_control.controller.prediction._MOST_PHASES", 8)
    prediction = TrafficPrediction()
    for i in range(count):
        prediction.started(i, "j", [flow(f"{i}")], {f"{i}": 0})
        prediction.ended(i, [f"{i}"])
    assert len(prediction._phases) <= 8
