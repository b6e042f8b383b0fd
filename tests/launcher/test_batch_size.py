"""The meaning of a batch size to each verb: of one accelerator, or of all together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.launcher.main import main
from torch_topoopt.models import MODELS
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = ("--servers", "8", "--degree", "2", "--bandwidth", "25Gbps")
QUICK = ("--rounds", "1", "--evaluations", "5")
SCRIPT = """
import torch
def build_model():
    return torch.nn.Linear(8, 8)
def example_batch(batch_size=24):
    return torch.zeros(batch_size, 8)
"""


def planned(tmp_path: Path, *arguments: str) -> Plan:
    output = tmp_path / "plan.json"
    options = (*CLUSTER, *QUICK, "--no-failures", "-o", str(output), "--json")
    assert main(["plan", *arguments, *options]) == 0
    return Plan.load(output)


def test_a_shipped_models_batch_is_that_of_each_accelerator(tmp_path: Path) -> None:
    own = MODELS["bert"].SIZES["tiny"].batch_size
    assert planned(tmp_path, "bert:tiny").batch_size == 8 * own
    assert planned(tmp_path, "bert:tiny", "--batch-size", "16").batch_size == 16


def test_a_files_batch_is_that_of_all_together(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert planned(tmp_path, str(script)).batch_size == 24
    assert planned(tmp_path, str(script), "--batch-size", "32").batch_size == 32


def test_compare_and_profile_agree_with_plan(capsys: pytest.CaptureFixture[str]) -> None:
    own = MODELS["ncf"].SIZES["tiny"].batch_size
    assert main(["profile", "ncf:tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == own
    names = ("--architectures", "ideal-switch", "--json")
    cluster = ("--servers", "8", "--degree", "4", "--bandwidth", "100Gbps")
    assert main(["compare", "ncf:tiny", *cluster, *QUICK, *names]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 8 * own
    assert (
        main(["compare", "ncf:tiny", *cluster, "--accelerators-per-server", "4", *QUICK, *names])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["batch_size"] == 8 * 4 * own


def test_simulate_takes_the_batch_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path, "vgg:tiny")
    capsys.readouterr()
    assert main(["simulate", str(tmp_path / "plan.json"), "--model", "vgg:tiny", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert simulated["completion_s"] == pytest.approx(plan.prediction.iteration_s, rel=0.02)


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_a_batch_that_cannot_be_shared_evenly_is_one_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "bert:tiny", *CLUSTER, "--batch-size", "30"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "topoopt: error: --batch-size: 30 samples cannot be shared evenly by 8 accelerators; "
        "use a multiple or a divisor of 8"
    ]
