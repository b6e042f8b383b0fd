"""Programs that load the plugin for NCCL and call it as NCCL does, compiled once for all tests."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from support.limits import limit_s

if TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).parent.parent.parent
_LIMIT_S = 100.0


def compiled(name: str, folders: pytest.TempPathFactory) -> Path:
    """tests/cpp/nccl/NAME.cc as a program; the workers of one run of pytest share it."""
    shared = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    built = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            compiler = os.environ.get("CXX", "c++").split()
            flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{_ROOT / 'csrc'}"]
            source = str(_ROOT / "tests" / "cpp" / "nccl" / f"{name}.cc")
            subprocess.run(
                [*compiler, *flags, source, "-o", str(built), "-ldl"],
                check=True,
                timeout=limit_s(_LIMIT_S),
            )
    return built
