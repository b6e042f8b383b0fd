"""The C++ suites and the wheel on an emulated aarch64 processor (`make test-aarch64`).

Debian: g++-aarch64-linux-gnu, qemu-user-static, googletest (its sources), and for the wheel
mmdebstrap. build/aarch64 keeps what is downloaded (3 GB, mostly PyTorch) and compiled. An emulator
shows wrong sizes, alignments and instructions. It does not reorder memory accesses as the
processor may, and its times mean nothing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.checked_command import run
from support.limits import limit_s

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEPT = ROOT / "build" / "aarch64"
GTEST = Path("/usr/src/googletest/googletest")
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
SLOWNESS = 20  # of emulated code, in limits of the tests

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
        [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(made), "--gtest_brief=1"],
        limit=3000,
        TOPOOPT_TEST_SLOWNESS=str(SLOWNESS),
        TOPOOPT_TEST_SHARE="0.06",
    )
    assert "[  PASSED  ]" in printed


DEBIAN = (
    "python3.11-minimal",
    "libpython3.11-stdlib",
    "libpython3.11-dev",
    "python3-distutils",
    "libssl-dev",
    "libstdc++6",
    "libgomp1",
)
PYTHON = "311"

ALL_REDUCE = """\
import os, platform, sys
import torch, torch.distributed as dist
import torch_topoopt
rank = int(os.environ["RANK"])
dist.init_process_group("topoopt")
t = torch.arange(100_000, dtype=torch.float32) * (rank + 1)
dist.all_reduce(t)
assert torch.equal(t, torch.arange(100_000, dtype=torch.float32) * 3), t
half = torch.full((1000,), rank + 1.0, dtype=torch.bfloat16)
dist.all_reduce(half)
assert (half == 3).all()
print(platform.machine(), "right")
dist.destroy_process_group()
"""


class Emulated:
    """A Python for aarch64 with PyTorch, in folders of build/aarch64."""

    def __init__(self) -> None:
        self.system, self.site = KEPT / "system", KEPT / "site"
        if not self.system.is_dir():
            partial = KEPT / "system.partial"
            shutil.rmtree(partial, ignore_errors=True)
            packages = f"--include={','.join(DEBIAN)}"
            run(
                [
                    *("mmdebstrap", "--variant=extract", "--architectures=arm64", packages),
                    *("bookworm", str(partial)),
                ],
                limit=600,
            )
            partial.rename(self.system)
        if not self.site.is_dir():
            partial = KEPT / "site.partial"
            shutil.rmtree(partial, ignore_errors=True)
            self._install(partial, "torch", "numpy", "setuptools", "wheel", "pip", "rich", "pyyaml")
            partial.rename(self.site)

    def _install(self, folder: Path, *packages: str) -> None:
        """The wheels for aarch64 of packages, by this machine's pip."""
        tags = [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
        platforms = [f"--platform={tag}" for tag in (*tags, "manylinux2014_aarch64", "any")]
        run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"),
                *(*platforms, f"--python-version={PYTHON}", "--implementation=cp"),
                *(f"--abi=cp{PYTHON}", "--abi=abi3", "--abi=none"),
                *("--target", str(folder), *packages),
            ],
            limit=1800,
        )

    def command(self, *words: str) -> list[str]:
        python = self.system / "usr" / "bin" / "python3.11"
        return [EMULATOR, "-L", str(self.system), str(python), *words]

    def variables(self, *more: Path) -> dict[str, str]:
        """For `command`; the emulated Python starts this machine's compiler and ninja."""
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        return {
            "PATH": os.pathsep.join(folders),
            "PYTHONPATH": os.pathsep.join(map(str, (*more, self.site))),
            "CXX": COMPILER,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }


def test_the_wheel_reduces_on_aarch64(tmp_path: Path) -> None:
    need(COMPILER, EMULATOR, "mmdebstrap", "ninja")
    emulated = Emulated()
    tree = tmp_path / "tree"
    run(["git", "clone", "--quiet", str(ROOT), str(tree)])
    wheels = tmp_path / "wheels"
    build = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels)]
    run(emulated.command(*build, str(tree)), limit=3000, **emulated.variables())
    (wheel,) = wheels.glob("*_aarch64.whl")
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            emulated.command("-c", ALL_REDUCE),
            env={
                **os.environ,
                **emulated.variables(installed),
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=limit_s(900))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(printed)
    assert all("aarch64 right" in text for text in printed)
