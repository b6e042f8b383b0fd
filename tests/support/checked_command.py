"""Runs a compiler or a test program, and shows what it printed if it fails."""

from __future__ import annotations

import os
import subprocess

import pytest

from support.limits import limit_s


def run(command: list[str], limit: float = 580.0, **variables: str) -> str:
    """Runs a command; its output when it succeeds, a failed test with the output when not.

    `limit`, in seconds, is less than pytest's own, so that what was printed so far is shown.
    """
    seconds = limit_s(limit)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout.decode(errors="replace") if expired.stdout else ""
        pytest.fail(
            f"{command[0]}: not done after {seconds:.0f} s\n{_without_warnings(printed)[-8000:]}",
            pytrace=False,
        )
    if done.returncode != 0:
        printed = _without_warnings(done.stdout)
        pytest.fail(
            f"{command[0]}: exit status {done.returncode}\n{printed[-20000:]}", pytrace=False
        )
    return done.stdout


def _without_warnings(printed: str) -> str:
    """What is left when the thousands of lines are gone that links write when tests cut them."""
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("torch_topoopt WARNING: "))
