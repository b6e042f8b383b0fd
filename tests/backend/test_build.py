"""The C++ backend and the torch it was built with; and what works without it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

from support.limits import limit_s

from torch_topoopt.runtime import autoload, backend


def test_autoload_never_raises(monkeypatch):
    def fail() -> None:
        raise RuntimeError("anything")

    monkeypatch.setattr(backend, "register", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        autoload.register()
    assert "anything" in str(caught[0].message)


WITHOUT_EXTENSION = """
import json, sys
sys.modules["torch_topoopt._backend"] = None  # any import of it fails
import torch_topoopt, torch_topoopt.planner.alternation, torch_topoopt.report, torch_topoopt.sim
import torch_topoopt.profile.profiling
print(json.dumps("torch" in sys.modules))
"""


def test_planner_simulator_and_report_work_without_the_extension():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTENSION],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is True  # profiling needs torch itself
