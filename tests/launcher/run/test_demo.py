"""`topoopt demo`: the command that it runs, and a Ctrl-C. tests/packaging runs it to its end."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from support.limits import limit_s

from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.run import demo
from torch_topoopt.launcher.run import options as run_options

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.py"


def test_it_runs_the_command_that_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(demo.run, "main", lambda argv: given.append(argv) or 0)
    assert main(["demo", "--run-dir", "a folder"]) == 0
    assert ["topoopt", "run", *given[0]] == shlex.split(capsys.readouterr().out)
    options = run_options.parse(given[0])
    assert (options.cluster.servers, options.cluster.degree, options.gbps) == (4, 2, 0.15)
    assert options.run_dir == Path("a folder")
    assert Path(options.torchrun.training_script).resolve() == EXAMPLE


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(launcher: Any, until: Any, tmp_path: Path) -> None:
    process = launcher.start("demo", "--run-dir", "here")
    metrics = tmp_path / "here" / "metrics.jsonl"

    def trains() -> bool:
        return metrics.exists() and '"event": "step"' in metrics.read_text()

    until(lambda: trains() or process.poll() is not None, "a first iteration", 120)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=limit_s(60))
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "topoopt: stopped by SIGINT"
    launcher.wait_for_its_end()
