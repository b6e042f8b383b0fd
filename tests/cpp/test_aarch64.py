"""The reductions on an emulated aarch64 processor, where its compiler and QEMU are installed.

Debian: g++-aarch64-linux-gnu, qemu-user and googletest (its sources).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.limits import limit_s

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GTEST = Path("/usr/src/googletest/googletest")
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"


def _missing() -> str | None:
    """What is not installed, or None."""
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None if GTEST.is_dir() else f"{GTEST} is not there (Debian: googletest)"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_reductions_are_right_on_aarch64(tmp_path: Path) -> None:
    if (reason := _missing()) is not None:
        pytest.skip(reason)
    program = tmp_path / "reduce_test"
    sources = [
        *(HERE / "common" / "reduce_test.cc", ROOT / "csrc" / "common" / "reduce.cc"),
        *(GTEST / "src" / "gtest-all.cc", GTEST / "src" / "gtest_main.cc"),
    ]
    folders = [ROOT / "csrc", HERE, GTEST / "include", GTEST]
    flags = ["-std=c++20", "-O2", "-fwrapv", "-ffp-contract=off", "-static", "-pthread"]
    subprocess.run(
        [COMPILER, *flags, *(f"-I{folder}" for folder in folders), *sources, "-o", program],
        check=True,
        timeout=limit_s(300),
    )
    done = subprocess.run(
        [EMULATOR, program, "--gtest_brief=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(200),
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "[  PASSED  ]" in done.stdout
