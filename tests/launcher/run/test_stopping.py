"""Ctrl-C, SIGTERM and SIGKILL at every stage: the exit code, no process and no half file left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s, slowness

from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable


HARNESS = (sys.executable, str(Path(__file__).with_name("stage_harness.py")))

SLEEPER = """
import os, pathlib, sys, time
pathlib.Path(f"started-{os.environ['RANK']}").touch()
print("a line before the end", flush=True)
time.sleep(600)
sys.exit("no signal came")
"""

STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(f"started-{os.environ['RANK']}").touch()
time.sleep(600)
"""

MODEL = """
import torch

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

def example_batch():
    return torch.zeros(16, 64)

if __name__ == "__main__":
    raise SystemExit("is not trained")
"""


def _finish(process: subprocess.Popen[str], within_s: float | None = None) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=within_s or limit_s(60))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, err


def _check_files(folder: Path) -> list[str]:
    """Names in a stopped run's folder; every one of them can be read to its end."""
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        text = (folder / name).read_text()
        if name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".jsonl"):
            assert text.endswith("\n")
            for line in text.splitlines():
                json.loads(line)
    return names


@pytest.fixture
def plan_file(tmp_path: Path, ring_plan: Callable[..., Plan]) -> Path:
    ring_plan(2).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ("profile", None),
        ("co-optimise", ["metrics.jsonl", "opgraph.json"]),
        ("wire", ["metrics.jsonl", "opgraph.json", "plan.json", "report.html"]),
    ],
)
def test_ctrl_c_before_training(
    launcher: Any, until: Any, tmp_path: Path, stage: str, kept: list[str] | None
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    marker = tmp_path / "marker"
    plain = ("--servers", "3", "--no-measure-steps")  # measuring plans, too
    arguments = ("run", *plain, "--run-dir", "results/here", "model.py")
    process = launcher.start(stage, marker, *arguments, command=HARNESS)
    until(lambda: marker.exists() or process.poll() is not None, f"stage {stage}")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    code, err = _finish(process)
    assert code == 130, err
    assert err.splitlines()[-1] == "topoopt: stopped by SIGINT"
    assert "Traceback" not in err
    if kept is None:
        assert not (tmp_path / "results").exists()
    else:
        assert _check_files(tmp_path / "results" / "here") == kept


def test_ctrl_c_inside_the_search(
    launcher: Any, until: Any, tmp_path: Path, op_graph_file: Path
) -> None:
    marker, output = tmp_path / "marker", tmp_path / "out.json"
    cluster = ("--servers", "8", "--degree", "4", "--bandwidth", "1Gbps")
    endless = ("--evaluations", "1000000000", "-o", output)
    arguments = ("plan", op_graph_file, *cluster, *endless)
    process = launcher.start("search", marker, *arguments, command=HARNESS)
    until(lambda: marker.exists() or process.poll() is not None, "progress of the search")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    code, err = _finish(process)
    kept = f"topoopt: warning: stopped by SIGINT: {output} is the best plan until then\n"
    assert (code, err) == (130, kept)
    plan = Plan.load(output)
    assert len(plan.rounds) == 1
    assert plan.search[-1].evaluations < 10**9


def test_ctrl_c_inside_the_search_of_a_topology_keeps_the_best_network(
    launcher: Any, until: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    endless = ("--mode", "best", "--operations", "1e15", "--json")
    arguments = ("topology", "--servers", "16", "--degree", "4", *endless)
    process = launcher.start("topology", marker, *arguments, command=HARNESS)
    until(lambda: marker.exists() or process.poll() is not None, "a first network")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=limit_s(60))
    kept = "topoopt: warning: stopped by SIGINT: this is the best network until then\n"
    assert (process.returncode, err) == (130, kept)
    assert len(json.loads(out)["links"]) == 16 * 4


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_during_training(
    launcher: Any,
    until: Any,
    tmp_path: Path,
    plan_file: Path,
    signum: signal.Signals,
    exit_code: int,
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = launcher.start("run", "--plan", plan_file, "--run-dir", "here", "sleeper.py")
    until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the start of both ranks")
    process.send_signal(signum)
    code, err = _finish(process)
    assert code == exit_code, err
    assert err.splitlines()[-1] == f"topoopt: stopped by {signum.name}"
    if signum == signal.SIGINT:
        assert err.count("\n") == 2, "where the results are, and no traceback of any rank"
    launcher.wait_for_its_end()
    report = ["report.html"] if signum == signal.SIGINT else []
    kept = ["metrics.jsonl", "plan.json", *report, "wiring.json"]
    assert _check_files(tmp_path / "here") == kept
    assert ("report.html" in err.splitlines()[-2]) == bool(report)
    last = (tmp_path / "here" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["exit_code"] == exit_code


def test_ranks_that_ignore_every_signal_are_killed_soon_after_ctrl_c(
    launcher: Any, until: Any, tmp_path: Path, plan_file: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = launcher.start("run", "--plan", plan_file, "--run-dir", "here", "stubborn.py")
    until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the start of both ranks")
    process.send_signal(signal.SIGINT)
    code, err = _finish(process, 25 * slowness())  # torch alone would wait for 30 s
    assert code == 130, err
    launcher.wait_for_its_end()


def test_a_trace_ends_with_a_launcher_that_is_killed(
    launcher: Any, until: Any, tmp_path: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = launcher.start("run", "--servers", "2", "stubborn.py")
    until(lambda: len(list(tmp_path.glob("started-*"))) == 1, "the start of the traced rank")
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=limit_s(60))
    until(lambda: launcher.leftovers() == [], "the end of the trace", 60)


def test_ranks_die_with_a_launcher_that_is_killed(
    launcher: Any, until: Any, tmp_path: Path, plan_file: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = launcher.start("run", "--plan", plan_file, "--run-dir", "here", "stubborn.py")
    until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the start of both ranks")
    process.kill()
    process.communicate(timeout=limit_s(60))
    until(lambda: launcher.leftovers() == [], "the end of the ranks", 60)
    _check_files(tmp_path / "here")
