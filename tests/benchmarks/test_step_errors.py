"""Errors of predicted steps, and the ranking that repeats allow."""

from __future__ import annotations

import math

import pytest

from harness import step_errors
from harness.step_errors import Pair

CELLS = {
    "source": "a page",
    "model": "decoder",
    "gpus": "8",
    "gpu": "H100",
    "sequence": "2048",
    "tp": "1",
    "zero_or_fsdp": "ZeRO-0",
    "step_seconds": "1",
    "notes": "",
}


def pair(measured_s: float, predicted_s: float = 1.0, **columns: str) -> Pair:
    return Pair({**CELLS, **columns}, predicted_s, measured_s, 10.0, None)


def test_rows_that_differ_in_results_or_between_zero_0_and_1_are_repeats() -> None:
    ratios = step_errors.repeat_ratios(
        [
            pair(1.0),
            pair(2.0, notes="again", step_seconds="2"),
            pair(3.0, tp="2"),
            pair(6.0, tp="2", zero_or_fsdp="ZeRO-1"),
            pair(7.0, tp="2", zero_or_fsdp="ZeRO-2"),
        ]
    )
    assert {name: sorted(ratio) for name, ratio in ratios.items()} == {
        "a page": pytest.approx([-math.log(2), -math.log(2), math.log(2), math.log(2)])
    }


def test_a_ranking_says_what_repeats_and_the_chosen_row_reach() -> None:
    measured = [1.0, 2.0, 3.0, 4.0, 5.0]
    rows = [pair(one, 10 * one, tp=str(one)) for one in measured]
    (exact,) = step_errors.rankings(rows).values()
    assert exact == pytest.approx((1.0, 1.0, 1.0))
    swapped = [pair(4.0, 1.0, tp="8"), *rows, pair(9.0, 90.0, tp="5.0")]  # the last one is repeated
    (noisy,) = step_errors.rankings(swapped).values()
    assert noisy.predicted < 1.0
    assert 0.5 < noisy.repeated < 1.0
    assert noisy.chosen == 4.0
    assert step_errors.rankings(rows[:4]) == {}


@pytest.mark.parametrize(
    ("columns", "undisturbed"),
    [
        ({}, True),
        ({"notes": "SUSPECT (disturbed run?)"}, False),
        ({"notes": "REPEATED with different result"}, False),
        ({"gpus": "512"}, False),
        ({"tp": "16"}, False),
    ],
)
def test_the_notes_name_disturbed_rows(columns: dict[str, str], undisturbed: bool) -> None:
    assert step_errors.is_undisturbed({**CELLS, **columns}) == undisturbed


def test_errors_of_time_and_memory() -> None:
    rows = [
        pair(1.0, 1.1)._replace(measured_gib=10.0),
        pair(1.0, 1.5)._replace(measured_gib=20.0),
        pair(1.0, 0.8),
    ]
    assert step_errors.figures(rows) == {
        "predicted": 3,
        "median_error": pytest.approx(0.2),
        "within_30_percent": pytest.approx(2 / 3),
        "memory_rows": 2,
        "memory_within_15_percent": 0.5,
    }
    assert step_errors.figures([])["median_error"] is None
