"""`topoopt nccl-env`: the environment for ranks that others start."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.limits import limit_s
from support.plans import renumbered
from support.refusals import named

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.launcher import main
from torch_topoopt.links.nccl_wiring import LIBRARY
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from support.plans import RingPlan

NAMES = {"NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_TUNER_PLUGIN", "TOPOOPT_NCCL_WIRING"}


@pytest.fixture
def files(ring_plan: RingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """plan.json and wiring.json, in the working folder; the order of their ring is 0, 2, 1, 3."""
    monkeypatch.chdir(tmp_path)
    plan = renumbered(ring_plan(4), (0, 2, 1, 3))
    fabric = LoopbackFabric(job=1)
    fabric.connect(plan).save(tmp_path / "wiring.json")
    fabric.close()
    plan.save(tmp_path / "plan.json")
    return tmp_path


def _run(*words: str) -> int:
    return main.main(["nccl-env", "plan.json", *words])


def test_a_shell_takes_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--wiring", "wiring.json", "-o", "job.nccl", "--rank", "1") == 0
    text = capsys.readouterr().out
    assert "# rank 1 runs on server 2 of the plan" in text
    shown = subprocess.run(
        ["sh", "-c", f"eval {shlex.quote(text)}; env"],
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(30),
    ).stdout
    variables = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    assert variables["NCCL_NET_PLUGIN"] == variables["NCCL_TUNER_PLUGIN"] == str(LIBRARY)
    assert variables["NCCL_NET"] == "topoopt"
    assert variables["TOPOOPT_NCCL_RANK"] == "1"
    path = Path(variables["TOPOOPT_NCCL_WIRING"])
    assert path == files / "job.nccl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "ranks 0 2 1 3\n" in path.read_text()


def test_an_environment_without_cables_comes_with_a_warning(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run() == 0
    assert named(capsys.readouterr().err, "TOPOOPT_NCCL_WIRING", "no value")
    assert _run("--rank", "1") == 0  # what only this rank needs, besides the file of all
    assert _run("--wiring", "wiring.json", "-o", "job.nccl") == 0
    assert not capsys.readouterr().err


def test_a_cluster_file_has_the_addresses(files: Path) -> None:
    cluster_of(Plan.load("plan.json")).save(files / "cluster.yaml")
    assert _run("--cluster", "cluster.yaml", "-o", "job.nccl") == 0
    cables = [line.split() for line in (files / "job.nccl").read_text().splitlines()]
    ends = [words[7:9] for words in cables if words[0] == "cable"]
    assert len(ends) == 4
    assert all(near.startswith("10.") and far.startswith("10.") for near, far in ends)


def test_docker_takes_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--wiring", "wiring.json", "-o", "job.nccl", "--format", "docker") == 0
    lines = capsys.readouterr().out.splitlines()
    said = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert said.keys() == NAMES
    assert said["TOPOOPT_NCCL_WIRING"] == str(files / "job.nccl")


@pytest.mark.parametrize("words", [("--json",), ("--format", "json")])
def test_programs_take_it(
    files: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert _run("--rank", "3", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variables"].keys() == {*NAMES, "TOPOOPT_NCCL_RANK"}
    assert found["variables"]["TOPOOPT_NCCL_WIRING"] is None  # nothing was written
    assert found["servers_of_ranks"] == [0, 2, 1, 3]
    assert found["server"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "job.nccl"), "output: job.nccl needs --cluster FILE or --wiring FILE"),
        (("--cluster", "plan.json", "-o", "job.nccl"), "plan.json"),
        (("--wiring", "wiring.json"), "wiring: needs -o FILE"),
        (("--encrypt",), "encrypt: needs -o FILE"),
        (("--rank", "4"), "rank: 4 is not in 0..3"),
        (("--wiring", "plan.json", "-o", "job.nccl"), "plan.json"),
        (
            ("--wiring", "wiring.json", "-o", "no/job.nccl"),
            "--output: no/job.nccl: there is no such folder",
        ),
    ],
)
def test_bad_input_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert _run(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (files / "job.nccl").exists()
