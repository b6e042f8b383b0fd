"""The table of benchmarks/prediction.py, from the figures of its runs."""

from __future__ import annotations

from typing import Any

import prediction
import pytest


def row(difference: float, link_bytes: float = 0.0) -> dict[str, Any]:
    return {
        "case": "digits",
        "bandwidth": "50Mbps",
        "predicted_s": 0.4,
        "compute_s": 0.03,
        "measured_s": 0.4 * (1 + difference),
        "difference": difference,
        "link_bytes_difference": link_bytes,
        "iterations": 40,
    }


@pytest.mark.parametrize(
    ("rows", "passed"),
    [
        ([row(-0.04), row(0.05), row(-0.1)], True),
        ([row(0.06), row(-0.06), row(0.01)], False),  # the median
        ([row(0.01), row(0.0), row(-0.11)], False),
        ([row(0.01, link_bytes=0.006)], False),
    ],
)
def test_differences_count_without_their_signs(rows: list[dict[str, Any]], passed: bool) -> None:
    total = prediction.summary(rows)
    assert total["passed"] == passed
    assert total["worst"] == max(abs(entry["difference"]) for entry in rows)


def test_a_line_has_all_columns_under_their_names() -> None:
    line = prediction.show(row(-0.0123))
    assert line.split() == [
        *("digits", "50Mbps", "400.0", "ms", "30.0", "ms", "395.1", "ms", "-1.2%", "0.00%")
    ]
    assert len(line) == len(prediction._line(prediction.COLUMNS))
