"""`topoopt profile SCRIPT --world-size N`: output, files and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.plan import DemandFile
from torch_topoopt.profile.script import CommunicationTrace, runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Answers = list[dict[str, Any]]


def _answers_of(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Stands for the processes of the ranks, which tests/profile/script runs."""

    def run_jobs(jobs: Answers, **_: Any) -> Answers:
        return [answer(job) for job in jobs]

    monkeypatch.setattr(runner, "run_jobs", run_jobs)


def _reduces_twice(job: dict[str, Any]) -> dict[str, Any]:
    """4 kB in each of two buckets, per iteration."""
    everyone = list(range(job["world_size"]))
    calls = [
        {
            "rank": job["rank"],
            "iteration": iteration,
            "phase": "backward",
            "operation": "AllReduce",
            "size_bytes": 4 * int(job["arguments"][0]),
            "group": everyone,
            "peer": None,
            "part_bytes": [],
        }
        for iteration in range(job["iterations"])
        for _ in range(2)
    ]
    return {"iterations": job["iterations"], "calls": calls}


def test_the_demand_of_a_script_wires_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answers_of(monkeypatch, _reduces_twice)
    script, trace, demand = (tmp_path / name for name in ("train.py", "trace.json", "demand.json"))
    script.touch()
    run = [
        "profile",
        str(script),
        "--world-size",
        "3",
        "-o",
        str(trace),
        "--output-demand",
        str(demand),
    ]
    assert main([*run, "--json", "--", "1000"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["demand"]["groups"] == [{"servers": [0, 1, 2], "size_bytes": 8000}]
    assert [(row["rank"], row["calls"]) for row in results["collectives"]] == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]
    assert DemandFile.load(demand).groups[0].size_bytes == 8000
    saved = CommunicationTrace.load(trace)
    assert (saved.ranks, saved.arguments, saved.iterations) == ((0, 1, 2), ("1000",), 2)
    assert main(["topology", "--servers", "3", "--degree", "2", "--demand", str(demand)]) == 0
    capsys.readouterr()
    assert main([*run, "--ranks", "1", "--", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "AllReduce of 8 kB among 0-2" in shown
    assert "assumed: every rank calls what rank 1 did" in shown
    assert f"demand: {demand}" in shown


def test_a_script_that_fails_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answers_of(monkeypatch, lambda job: {"error": "ValueError: no data (line 3)"})
    script, demand = tmp_path / "train.py", tmp_path / "demand.json"
    script.touch()
    assert main(["profile", str(script), "--world-size", "2", "--output-demand", str(demand)]) == 2
    error = f"topoopt: error: {script}, rank 0: ValueError: no data (line 3)\n"
    assert capsys.readouterr().err == error
    assert not demand.exists()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (["--world-size", "1"], ("--world-size", 2)),
        (["--world-size", "2", "--ranks", "0,5"], ("ranks", 5, 2)),
        (["--world-size", "2", "--ranks", "a"], ("ranks", "a")),
        (["--world-size", "2", "--iterations", "1"], ("iterations", 2)),
        (["--world-size", "2", "--time-limit", "0"], ("time_limit_s", 0.0, 0)),
        (["--world-size", "2"], ("script", "nowhere.py")),
        (["--ranks", "0"], ("--ranks", "--world-size")),
        (["--", "--epochs", "3"], ("training scripts", "--world-size")),
        (["--world-size", "2", "--batch-size", "8"], ("batch-size", "script")),
    ],
)
def test_bad_input_is_one_line(
    options: list[str], tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "nowhere.py", *options]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1
