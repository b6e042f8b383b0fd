"""The table of benchmarks/faults.py: its verdicts, and two faults on a small fabric."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import faults
import pytest
from support.fabric.netns_fixtures import require_namespaces
from support.limits import limit_s

from fault_injection import broken_cables
from fault_injection.fault_list import FAULTS
from fault_injection.trials import ENDS, GOES_ON, HANGS, STALLS, Trial
from torch_topoopt.plan import Link

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults.py"
DOWN, RAISES = "cable down, at the other end", "rank raises an exception"


def row(name: str, *trials: Trial) -> faults.Row:
    return faults.Row(FAULTS[name], "topoopt", list(trials))


def good(outcome: str) -> Trial:
    return Trial(outcome, detected_s=0.25, over_s=0.5, said="it is said")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (DOWN, {}, None),
        (RAISES, {}, None),
        (DOWN, {"outcome": ENDS}, "error instead of goes on"),
        (DOWN, {"outcome": STALLS}, "stalls until repair instead of goes on"),
        (RAISES, {"outcome": HANGS}, "hangs instead of error"),
        (RAISES, {"detail": "no error on ranks [3]"}, "no error on ranks"),
        (DOWN, {"detected_s": None}, "nobody said"),
        (DOWN, {"wrong": 2}, "2 wrong results"),
        (RAISES, {"processes": 1}, "1 processes left"),
        (DOWN, {"descriptors": 3}, "3 descriptors left"),
        (DOWN, {"memory_bytes": 17 << 20}, "17.0 MiB of memory left"),
    ],
)
def test_a_row_names_what_is_other_than_promised(
    name: str, change: dict[str, object], problem: str | None
) -> None:
    trial = good(ENDS if FAULTS[name].ends else GOES_ON)
    for field, value in change.items():
        setattr(trial, field, value)
    found = row(name, trial).broken_promises()
    assert [problem in text for text in found if problem] == [True] * (problem is not None)


def test_a_line_has_medians_and_worst_values_under_their_names() -> None:
    slow = Trial(GOES_ON, detected_s=0.75, over_s=2.5, wrong=1)
    line = faults.line(row(DOWN, good(GOES_ON), good(GOES_ON), slow))
    cells = line[len(DOWN) + 2 :].split()
    assert cells[:6] == ["topoopt", "3", "0.25", "0.75", "0.50", "2.50"]
    assert line.endswith("goes on: it is said")
    mixed = faults.line(row(DOWN, good(GOES_ON), good(ENDS), good(GOES_ON)))
    assert mixed.endswith("goes on (2), error (1): it is said")


def test_faults_leave_the_servers_connected_where_they_should() -> None:
    end = broken_cables.End("", "")
    ring = [broken_cables.Cable(Link(i, 0, (i + 1) % 4, 1), (end, end)) for i in range(4)]
    assert broken_cables.is_connected(ring[1:], 4)
    assert not broken_cables.is_connected(ring[2:], 4)
    assert len(broken_cables.some_that_may_fail(ring, 4, 1, random.Random(1))) == 1
    assert len(FAULTS) >= 25


def test_a_small_job_goes_on_or_ends_and_leaves_nothing(tmp_path: Path) -> None:
    require_namespaces()
    if shutil.which("nsenter") is None:
        pytest.skip("this needs the program nsenter")
    results = tmp_path / "results.json"
    command = [sys.executable, str(BENCHMARK), "--quick", "--peers", "none", "-J", str(results)]
    command += ["--ranks", "4", "--degree", "2", "--only", DOWN, "--only", RAISES]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        timeout=limit_s(60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {row["fault"]: row["outcome"] for row in json.loads(results.read_text())["results"]}
    assert outcomes == {DOWN: GOES_ON, RAISES: ENDS}
    assert "# 2 faults; broken promises: 0" in done.stdout
    assert "namespaces left" not in done.stdout
