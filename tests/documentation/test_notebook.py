"""examples/planning.ipynb: every cell runs, in order, without Jupyter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from support.commands import shared_server
from support.limits import limit_s

NOTEBOOK = Path(__file__).parents[2] / "examples" / "planning.ipynb"

# What must be true after the last cell.
AFTER = """
times = {ports: plan.prediction.iteration_s for ports, plan in plans.items()}
assert list(times) == [2, 3, 4], times
assert times[4] < times[2], times
assert network.number_of_edges() == 8 * 4 // 2
"""


def test_every_cell_runs(tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    script = tmp_path / "cells.py"
    script.write_text("\n".join(["".join(cell["source"]) for cell in cells] + [AFTER]))
    done = subprocess.run(
        [*shared_server().command("python"), script],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=limit_s(100),
    )
    assert done.returncode == 0, done.stderr
    assert "What would one more port bring?" in (tmp_path / "plan.html").read_text()
