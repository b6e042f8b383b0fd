"""The table of networks: its cases, the figures of one, and the line of one that fails."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest
import topology

if TYPE_CHECKING:
    from pathlib import Path


FIGURES = (
    *("mean_hops", "diameter", "moore_bound_hops", "all_reduce_over_bound"),
    *("all_to_all_over_bound", "max_over_mean_load", "seconds", "cpu_seconds", "peak_mb"),
    "call_mb",
)


def options(**changes: Any) -> argparse.Namespace:
    values: dict[str, Any] = {
        "servers": (8,), "degrees": None, "ports": ("duplex", "simplex"), "modes": ("paper",),
        "models": None, "budget": 2.0, "seed": 7, "routing": None, "evaluations": 10, "rounds": 1,
        "resume": False,
    }  # fmt: skip
    return argparse.Namespace(**{**values, **changes})


def test_shapes_that_no_network_can_have_are_left_out_with_a_word() -> None:
    chosen = list(topology.cases(options(degrees=(2, 3, 7, 8))))
    found = [(c["degree"], c["ports"]) for c in chosen if "error" not in c]
    assert found == [(2, "duplex"), (2, "simplex"), (3, "simplex"), (7, "simplex")]
    left = {
        (c["degree"], c["ports"]): topology.in_a_process("", c, 1) for c in chosen if "error" in c
    }
    assert "must be even" in left[3, "duplex"]["error"]
    line = topology.line_of_result(left[8, "simplex"])
    assert line.split(maxsplit=5)[5] == "left out: more ports than other servers"


def test_without_a_choice_the_whole_table() -> None:
    chosen = list(topology.cases(options(servers=None, modes=topology.MODES)))
    assert {c["servers"] for c in chosen} == {8, 12, 16, 32, 64, 128, 256, 432, 1024}
    assert len(chosen) == 9 * 4 * 2 * 3
    left_out = {(c["servers"], c["degree"]) for c in chosen if "error" in c}
    assert left_out == {(8, 8)}
    assert {c["mode"] for c in chosen} == {"paper", "released", "best"}


def test_only_the_searching_mode_gets_a_seed_and_a_budget() -> None:
    chosen = topology.cases(options(degrees=(2,), modes=("paper", "best"), routing="optimal"))
    by_mode = {case["mode"]: case["options"] for case in chosen}
    assert by_mode == {
        "paper": {"routing": "optimal"},
        "best": {"seed": 7, "budget_s": 2.0, "routing": "optimal"},
    }


def test_models_are_compared_on_their_own_cases() -> None:
    chosen = list(topology.cases(options(servers=None, models=("bert",), ports=("duplex",))))
    assert {(c["servers"], c["degree"]) for c in chosen} == {
        (n, d) for n in (8, 12, 16, 32, 64, 128) for d in (2, 4, 8)
    }
    assert chosen[0]["options"] == {"seed": 7, "rounds": 1, "evaluations": 10}


def test_a_model_that_is_planned_worse_is_counted() -> None:
    shape = {"model": "bert", "servers": 8, "degree": 2, "ports": "duplex"}
    results = [{**shape, "paper_s": 2.0, "best_s": best_s} for best_s in (1.5, 2.0, 2.1)]
    left_out = {**shape, "error": "not done after 600 s"}
    assert topology.count_worse([*results, left_out]) == (3, 1)


def test_a_case_gives_a_row_of_the_table() -> None:
    case = {"servers": 128, "degree": 4, "ports": "simplex", "mode": "paper", "options": {}}
    result = topology.run_case(case)
    assert result["mean_hops"] == pytest.approx(4.52, abs=0.005)
    assert result["seconds"] > 0
    assert result["peak_mb"] >= result["call_mb"] >= 0
    row = topology.row_of(result)
    assert row[:4] == ("128 x 4 simplex paper", "4.520", "8", "3.150")
    assert len(row) == len(topology._COLUMNS)


def test_rows_are_there_before_the_run_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def run(script: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
        done.append(topology.name_of(case))
        if len(done) == 3:
            raise KeyboardInterrupt
        return {**case, "error": "no such stride"}

    monkeypatch.setattr(topology, "in_a_process", run)
    file = tmp_path / "rows.json"
    chosen = options(degrees=(2,), modes=("paper", "best"), limit=1.0, json=str(file))
    with pytest.raises(KeyboardInterrupt):
        topology.run_all(chosen)
    assert done[:2] == ["8 x 2 duplex paper", "8 x 2 duplex best 2 s"]
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["network", "hops"]
    assert rows == [f"{name:<28} left out: no such stride" for name in done[:2]]
    kept = json.loads(file.read_text())["results"]
    assert [topology.name_of(case) for case in kept] == done[:2]


def test_a_run_goes_on_with_the_cases_that_its_file_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.json"
    chosen = options(degrees=(2,), modes=("paper",), limit=1.0, json=str(file), resume=True)
    done: list[str] = []

    def run(script: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
        done.append(topology.name_of(case))
        if case["ports"] == "simplex" and len(done) == 2:
            return {**case, "error": "not done after 1 s"}
        return {**case, **dict.fromkeys(FIGURES, 1.0)}

    monkeypatch.setattr(topology, "in_a_process", run)
    assert topology.run_all(chosen) == 0
    assert topology.run_all(chosen) == 0
    assert done == ["8 x 2 duplex paper", "8 x 2 simplex paper", "8 x 2 simplex paper"]
    kept = json.loads(file.read_text())["results"]
    assert all("error" not in row for row in kept)
