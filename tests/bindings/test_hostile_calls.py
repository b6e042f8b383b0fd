"""No argument from Python ends the interpreter: the bindings raise, or do what they are asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import limit_s

_FOLDER = Path(__file__).parent
_LIMIT_S = limit_s(300)


@pytest.mark.parametrize(
    ("program", "step", "at_least"),
    [
        ("hostile_calls.py", 3, 6_000),  # each replacement still comes: there are not 3 n of them
        ("hostile_backend_calls.py", 1, 600),
        pytest.param("hostile_calls.py", 1, 20_000, marks=pytest.mark.exhaustive),
    ],
)
def test_wrong_arguments_raise_and_end_no_interpreter(
    program: str, step: int, at_least: int
) -> None:
    done = subprocess.run(
        [sys.executable, str(_FOLDER / program), str(step)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *ended, last = (json.loads(line) for line in done.stdout.splitlines())
    assert ended == [], "each of these calls ended the process"
    assert last["made"] >= at_least
