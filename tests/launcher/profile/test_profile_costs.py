"""`topoopt profile --measure`, and `--costs` wherever a plan is priced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Plan
from torch_topoopt.profile.cost_table import CostPoint, CostTable, OperatorCost

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = ("--servers", "4", "--degree", "2", "--bandwidth", "25Gbps")
QUICK = ("--rounds", "1", "--evaluations", "5", "--no-failures")


def costs_file(tmp_path: Path, seconds: float, operator: str = "*") -> str:
    points = (CostPoint(1, seconds, 2 * seconds),)
    path = tmp_path / f"costs-{seconds:g}.json"
    CostTable(1, "a clock", (OperatorCost(operator, points),)).save(path)
    return str(path)


def test_a_measured_table_is_written_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs, graph = tmp_path / "costs.json", tmp_path / "opgraph.json"
    arguments = ["profile", "ncf:tiny", "--measure", "--output-costs", str(costs), "-o", str(graph)]
    assert main([*arguments, "--accelerator", "a100"]) == 0
    out = capsys.readouterr().out
    table = CostTable.load(costs)
    assert f"costs of {len(table.costs)} operators on {table.device}: {costs}" in out
    assert "one accelerator, one operator after the other: " in out
    saved = OpGraph.load(graph)
    assert all(len(operator.measured) == 2 for operator in saved.operators)
    assert saved.operators[0].measured[0].shards == 1.0


def test_costs_change_the_prediction_of_a_plan(tmp_path: Path) -> None:
    def compute_s(*options: str) -> float:
        output = tmp_path / "plan.json"
        arguments = ["plan", "vgg:tiny", *CLUSTER, *QUICK, "-o", str(output), "--json", *options]
        assert main(arguments) == 0
        return Plan.load(output).prediction.compute_s

    slow = compute_s("--costs", costs_file(tmp_path, 1.0))
    assert slow > 100 * compute_s("--costs", costs_file(tmp_path, 1e-6))
    assert slow > 100 * compute_s()


def test_times_on_an_accelerator_are_shown_and_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = costs_file(tmp_path, 0.5)
    options = ("--accelerator", "h100:bf16")
    assert main(["profile", "vgg:tiny", "--costs", file, *options, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["operators"]
    assert all(entry["forward_s"] >= 0.5 for entry in entries)
    assert main(["profile", "vgg:tiny", *options]) == 0
    assert " µs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (["--accelerator", "abacus"], ("accelerator", "abacus")),
        (["--accelerator", "a100:int3"], ("int3", "a100:int3", "fp32", "tf32", "bf16")),
        (["--measure", "--costs", "b.json"], ("costs", "--measure")),
        (["--output-costs", "a.json"], ("output-costs", "--measure")),
        (["--measure", "--measure-limit", "0"], ("measure-limit", 0)),
        (["--costs", "missing.json"], ("missing.json", "CostTable")),
    ],
)
def test_bad_input_is_one_line(
    options: list[str],
    tokens: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "vgg:tiny", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named(line, *tokens)


DECIDES = """
import torch
class Decides(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return 2 * y if y.sum() > 0 else y
def build_model():
    return Decides(8, 8), torch.zeros(4, 8)
"""


@pytest.mark.parametrize("verb", [("profile",), ("plan", *CLUSTER, *QUICK)])
def test_a_model_that_decides_by_values_is_one_line_and_writes_nothing(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, output = tmp_path / "net.py", tmp_path / "out.json"
    script.write_text(DECIDES)
    assert main([verb[0], str(script), *verb[1:], "-o", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named(line, "Decides", "values")
    assert not output.exists()


def test_a_table_of_another_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = costs_file(tmp_path, 0.5, "encoder.layers.0.norm1")
    assert main(["plan", "vgg:tiny", *CLUSTER, "--costs", file]) == 2
    assert named(capsys.readouterr().err, file, "costs[0].operator", "encoder.layers.0.norm1")
