"""The table of benchmarks/hybrid.py, from the figures of a run."""

from __future__ import annotations

import hybrid
import pytest

FIGURES = {
    "iterations": {
        "count": 9,
        "predicted_s": 0.5,
        "measured_s": 0.525,
        "difference": 0.05,
        "link_bytes_difference": 0.004,
    },
    "links": [{"iteration_bytes": 1010.0}, {"iteration_bytes": 1000.0}],
}
PLAN = {
    "prediction": {"link_bytes": [1000, 1000], "compute_s": 0.01},
    "cluster": {"servers": 4},
    "strategy": [{"servers": [0, 1, 2, 3]}, {"servers": [2]}, {"servers": [0, 2]}],
    "micro_batches": 8,
}


def test_a_row_says_how_far_prediction_and_measurement_are_apart() -> None:
    row = hybrid.row_of("dlrm", FIGURES, PLAN)
    assert row["operators_on_some_servers"] == 2
    assert row["all_bytes_difference"] == pytest.approx(0.005)
    line = hybrid.show(row)
    for cell in ("2 placed, 8 parts", "500 ms", "525 ms", "+5.0%", "0.40%", "+0.50%"):
        assert cell in line


def test_without_a_measured_iteration_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no iteration was measured; use more --steps"):
        hybrid.row_of("dlrm", {**FIGURES, "iterations": None}, PLAN)


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hybrid.parse_arguments(["--only", "other"])
    assert "invalid choice: 'other'" in capsys.readouterr().err
