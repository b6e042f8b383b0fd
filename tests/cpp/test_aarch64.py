"""The C++ suites on an emulated aarch64 processor (`make test-aarch64`).

Debian: g++-aarch64-linux-gnu, qemu-user-static and googletest (its sources). build/aarch64 keeps
what is compiled. An emulator shows wrong sizes, alignments and instructions. It does not reorder
memory accesses as the processor may, and its times mean nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.checked_command import run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEPT = ROOT / "build" / "aarch64"
GTEST = Path("/usr/src/googletest/googletest")
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
SLOWNESS = 20  # of emulated code, in limits of the tests
# The emulator has no queue of sent memory.
LEFT_OUT = "SocketLinks.SendsWithoutCopyEndWhereTheKernelCopies"

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not GTEST.is_dir():
        pytest.skip(f"{GTEST} is not there (Debian: googletest)")


@pytest.fixture(scope="module")
def googletest() -> Path:
    """A prefix with GoogleTest for aarch64."""
    need("make", COMPILER, EMULATOR)
    prefix = KEPT / "googletest"
    (prefix / "lib").mkdir(parents=True, exist_ok=True)
    shutil.copytree(GTEST / "include", prefix / "include", dirs_exist_ok=True)
    for name in ("gtest", "gtest_main"):
        source = GTEST / "src" / ("gtest-all.cc" if name == "gtest" else "gtest_main.cc")
        made = prefix / f"{name}.o"
        folders = [f"-I{GTEST / 'include'}", f"-I{GTEST}"]
        run([COMPILER, "-std=c++20", "-O1", *folders, "-c", str(source), "-o", str(made)])
        run(["aarch64-linux-gnu-ar", "rcs", str(prefix / "lib" / f"lib{name}.a"), str(made)])
    return prefix


@pytest.mark.parametrize("program", ["cpp_tests", "planner_tests"])
def test_the_cpp_suites_pass_on_aarch64(program: str, googletest: Path) -> None:
    folder = KEPT / "cpp-tests"
    made = folder / program
    run(
        [
            *("make", "-f", str(HERE / "Makefile"), "-j", str(os.cpu_count() or 1)),
            *("SANITIZER=none", f"CXX={COMPILER}", f"GTEST_DIR={googletest}", f"BUILD={folder}"),
            str(made),
        ],
        limit=3000,
    )
    printed = run(
        [
            EMULATOR,
            "-L",
            "/usr/aarch64-linux-gnu",
            str(made),
            "--gtest_brief=1",
            f"--gtest_filter=-{LEFT_OUT}",
        ],
        limit=3000,
        TOPOOPT_TEST_SLOWNESS=str(SLOWNESS),
        TOPOOPT_TEST_SHARE="0.06",
    )
    assert "[  PASSED  ]" in printed
