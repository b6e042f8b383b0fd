"""benchmarks/planner.py: gaps to the optimum of small instances, rows, going on where it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import planner as benchmark
import pytest

from references import optimality_gaps

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["random", "heavy", "tables", "matmul", "experts"])
def test_plans_of_tiny_jobs_are_optimal(kind: str) -> None:
    case = {"kind": kind, "servers": 3, "degree": 2, "operators": 3, "seed": 3}
    found = optimality_gaps.run_gap({**case, "evaluations": 500})
    assert found["optimum_s"] > 0
    for mode in ("paper", "best"):
        assert abs(optimality_gaps.gap_of(found, mode)) < 1e-9
    assert "0.00%" in benchmark.line_of(found)


def test_jobs_are_of_their_kind_and_the_same_for_the_same_seed() -> None:
    job = optimality_gaps.job_of("experts", 3, 1)
    assert job == optimality_gaps.job_of("experts", 3, 1)
    assert job != optimality_gaps.job_of("experts", 3, 2)
    assert [op.split("experts") is not None for op in job.operators] == [False, True, False]
    tables = optimality_gaps.job_of("tables", 5, 1).operators
    assert [len(op.operands) for op in tables] == [0, 0, 0, 0, 4]
    assert min(op.parameter_bytes for op in tables[1:4]) >= 10**7
    shapes = {(c["kind"], c["servers"], c["degree"]) for c in optimality_gaps.gap_cases(2, 10)}
    assert len(shapes) == 5 * 4


def test_a_summary_is_good_only_with_small_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    def summary(*best_s: float) -> bool:
        rows = [{"optimum_s": 1.0, "paper_s": 1.0, "best_s": s} for s in best_s]
        return optimality_gaps.summary_of_gaps(rows)

    assert summary(1.0, 1.0, 1.015)
    assert "best: median 0.00%, worst 1.50% of 3" in capsys.readouterr().out
    assert not summary(1.0, 1.0, 1.03)
    assert not summary(1.0, 1.01, 1.01)
    assert not optimality_gaps.summary_of_gaps([{"error": "not done"}])


def test_a_case_has_all_figures_and_a_row() -> None:
    options = benchmark.parse_arguments(
        ["--models", "vgg", "-n", "4", "-d", "2", "--evaluations", "50", "--samples", "3"]
    )
    (case,) = benchmark.cases(options)
    assert (case["model"], case["servers"], case["degree"]) == ("vgg", 4, 2)
    figures = {
        f"{name}_s": 0.1
        for name in ("data_parallel", "search_only", "topology_only", "both", "ideal_switch")
    }
    measured = ("planning_seconds", "planning_cpu_seconds", "peak_mb", "proposals_per_s")
    measured += ("simulated_share", "full_over_delta", "flow_over_delta", "rank_correlation")
    measured += ("ratio_median", "ratio_least", "ratio_most")
    line = benchmark.line_of({**case, **figures, **dict.fromkeys(measured, 2.0)})
    assert line.startswith("vgg 4 x 2")
    assert len(benchmark.row_of(benchmark._COLUMNS)) == len(line)
    assert "left out: too large" in benchmark.line_of({**case, "error": "too large"})


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def run(script: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
        ran.append(case["seed"])
        counts = dict.fromkeys(("strategies", "promising", "networks"), 1)
        return {**case, **counts, **dict.fromkeys(("optimum_s", "paper_s", "best_s"), 1.0)}

    monkeypatch.setattr(benchmark, "in_a_process", run)
    file = tmp_path / "gaps.json"
    for instances, expected in ((1, 20), (2, 40), (2, 40)):
        options = ["--gaps", "--instances", str(instances), "-J", str(file)]
        assert benchmark.run_all(benchmark.parse_arguments(options)) == 0
        assert len(ran) == expected
    assert len(json.loads(file.read_text())["results"]) == 40
    assert "best: median 0.00%, worst 0.00% of 20" in capsys.readouterr().out
