"""`topoopt runs`, and the verbs that take the latest run."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.supervision.job_files import forget_running, note_running

if TYPE_CHECKING:
    from pathlib import Path


def save_run(parent: Path, name: str, age_s: int, *events: dict[str, Any]) -> Path:
    """A run folder whose last entry is `age_s` old."""
    start = {
        "event": "run",
        "command": ["topoopt", "run", "--servers", "2", f"{name}.py"],
        "servers": 2,
        "degree": 1,
        "seed": 0,
        "time": f"2026-01-31T12:00:{60 - age_s}+00:00",
    }
    folder = parent / name
    folder.mkdir(parents=True)
    path = folder / jobs.METRICS
    path.write_text("".join(json.dumps(event) + "\n" for event in (start, *events)))
    os.utime(path, ns=(0, (1000 - age_s) * 10**9))
    return folder


def end(code: int) -> dict[str, Any]:
    return {"event": "end", "exit_code": code}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["runs", *arguments, "--json"]) == 0
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def test_runs_have_their_state_and_iteration_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = tmp_path / "elsewhere"
    step = {"event": "step", "iteration": 9, "step_s": 0.5, "loss": None, "time_s": 4.0}
    save_run(parent, "killed", 50, step)
    save_run(parent, "failed", 40, end(1))
    save_run(parent, "stopped", 30, end(130))
    save_run(parent, "good", 20, {"event": "iterations", "count": 3, "seconds": 0.25}, end(0))
    running = save_run(parent, "running", 10)
    note_running(running)
    try:
        runs = listed(capsys, str(parent))
    finally:
        forget_running()
    assert [(run["command"][-1], run["state"], run["iteration_s"]) for run in runs] == [
        ("killed.py", "unfinished", 0.5),
        ("failed.py", "failed (1)", None),
        ("stopped.py", "stopped", None),
        ("good.py", "done", 0.25),
        ("running.py", "running", None),
    ]
    assert {run["servers"] for run in runs} == {2}


def test_without_a_run_there_is_nothing_to_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, str(tmp_path)) == []
    assert main(["runs"]) == 2
    assert capsys.readouterr().err.startswith("topoopt: error: runs: there is no such folder; ")


@pytest.mark.parametrize("verb", ["inspect", "report", "timeline"])
def test_the_latest_run_is_the_default(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb]) == 2
    assert "./runs has no run" in capsys.readouterr().err
    save_run(tmp_path / "runs", "b-first", 20, end(1))
    save_run(tmp_path / "runs", "a-second", 10, end(1))
    assert main([verb]) == 2  # it has no plan and no dumps
    assert "runs/a-second" in capsys.readouterr().err
