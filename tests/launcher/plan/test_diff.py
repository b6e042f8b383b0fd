"""`topoopt diff`, `topoopt plan --explain` and how placements are put into words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.plan.placement_text import placement_text
from torch_topoopt.plan import Placement, Plan

if TYPE_CHECKING:
    from pathlib import Path

PLAN = ("--servers", "6", "--bandwidth", "25Gbps", "--rounds", "1", "--evaluations", "50")


def planned(op_graph_file: Path, output: Path, *more: str) -> Path:
    assert main(["plan", str(op_graph_file), *PLAN, *more, "-o", str(output)]) == 0
    return output


def test_plans_are_compared_for_people_and_for_programs(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = planned(op_graph_file, tmp_path / "a.json", "--degree", "2")
    more = ("--degree", "4", "--accelerator", "h100")
    b = planned(op_graph_file, tmp_path / "b.json", *more)
    capsys.readouterr()
    assert main(["diff", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    for words in ("cluster.degree", "links in both", "12 only in B", "ordered pairs", "B / A"):
        assert words in out
    assert main(["diff", str(a), str(b), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert not figures["same"]
    assert {"field": "cluster.degree", "a": 2, "b": 4} in figures["fields"]
    assert len(figures["links"]["only_in_b"]) == 12
    changes = {change["field"]: change for change in figures["prediction"]}
    assert changes["iteration_s"]["b"] == Plan.load(b).prediction.iteration_s
    assert main(["diff", str(a), str(a)]) == 0
    assert capsys.readouterr().out == "the plans do the same\n"


def test_a_plan_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.json"
    assert main(["diff", str(missing), str(missing)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_explain_shows_large_operators_and_their_alternatives(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    planned(op_graph_file, output, "--degree", "2", "--explain")
    out = capsys.readouterr().out
    assert "best other ways" in out
    assert "    or " in out
    planned(op_graph_file, output, "--degree", "2", "--explain", "--json")
    entries = json.loads(capsys.readouterr().out)["explain"]
    plan = Plan.load(output)
    assert entries
    for entry in entries:
        assert entry["placement"]["operator"] in {p.operator for p in plan.strategy}
        assert entry["alternatives"]


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (Placement("x", (3,)), "whole on server 3"),
        (Placement("x", (0, 1, 2)), "samples in 3, on servers 0-2"),
        (Placement("x", (1, 5)), "samples in 2, on servers 1, 5"),
        (Placement("x", tuple(range(8)), columns=4), "samples in 2, columns in 4, on servers 0-7"),
        (Placement("x", tuple(range(0, 64, 8))), "samples in 8, on 8 servers 0, 8 .. 56"),
        (Placement("x", (0, 1), attribute=2), "sequence in 2, on servers 0-1"),
    ],
)
def test_a_placement_in_words(placement: Placement, text: str) -> None:
    assert placement_text(placement) == text
