"""Builds the C++ tests with each sanitizer and runs them.

GoogleTest is found where the compiler finds it (Debian: libgtest-dev) or under GTEST_DIR, a prefix.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.checked_command import run
from support.limits import limit_s, slowness

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def _missing() -> str | None:
    """Why the C++ tests cannot be built here, or None."""
    for tool in ("make", _compiler()):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    prefix = os.environ.get("GTEST_DIR")
    probe = subprocess.run(
        [
            *(_compiler(), "-std=c++20", "-x", "c++", "-fsyntax-only", "-"),
            *([f"-I{prefix}/include"] if prefix else []),
        ],
        input="#include <gtest/gtest.h>\n",
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    if probe.returncode == 0:
        return None
    return "GoogleTest is not installed (Debian: apt-get install libgtest-dev; or set GTEST_DIR)"


# Every suite runs under each, with a part of its random messages and calls.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sanitizer", "share"),
    [
        ("address,undefined", 0.12),
        ("thread", 0.06),
        pytest.param("address,undefined", 1.0, marks=pytest.mark.exhaustive),
        pytest.param("thread", 1.0, marks=pytest.mark.exhaustive),
    ],
)
def test_the_cpp_suites_pass_under_the_sanitizer(sanitizer: str, share: float) -> None:
    if (reason := _missing()) is not None:
        pytest.skip(reason)
    makefile = str(HERE / "Makefile")
    jobs = str(min(4, os.cpu_count() or 1))
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "cpp-tests.lock").open("w") as lock:  # continuous integration may build
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(["make", "-f", makefile, "-j", jobs, f"SANITIZER={sanitizer}", f"CXX={_compiler()}"])
    folder = ROOT / "build" / f"cpp-tests-{sanitizer.replace(',', '-')}"
    programs = ["cpp_tests"] if sanitizer == "thread" else ["cpp_tests", "planner_tests"]
    for program in programs:
        printed = run(
            [str(folder / program), "--gtest_brief=1"],
            TOPOOPT_TEST_SLOWNESS=f"{slowness():.2f}",
            TOPOOPT_TEST_SHARE=str(share),
        )
        assert "[  PASSED  ]" in printed
