"""The C++ suites and the wheel on an emulated aarch64 processor (`make test-aarch64`).

Debian: g++-aarch64-linux-gnu, qemu-user (or qemu-user-static), googletest (its sources) and, for
the wheel, mmdebstrap. build/aarch64 keeps what is compiled and downloaded. An emulator shows wrong
sizes, alignments and instructions. It does not reorder memory accesses as the processor may, and
its times mean nothing.

Emulated processes run on one processor each, or all on the same one if they share memory: QEMU 7.2
lets a load-acquire (ldar) pass an earlier store-release (stlr) on x86_64, which Arm forbids. An end
that is about to sleep and an end that wakes it then miss each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.backend.ranks import make_plan, wired
from support.checked_command import run
from support.limits import limit_s

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEPT = ROOT / "build" / "aarch64"
GTEST = Path("/usr/src/googletest/googletest")
COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
MODEL = "neoverse-n1"  # a processor that the emulator knows, and PyTorch from its description
SLOWNESS = 20  # of emulated code, in limits of the tests

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]


# What Linux says of a processor of MODEL. PyTorch reads it, and does not start on what the files of
# another kind of processor say.
PROCESSOR = """\
processor\t: {number}
BogoMIPS\t: 125.00
Features\t: fp asimd crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
REGISTER = "0x00000000413fd0c1\n"  # the same as the processor says it: MIDR_EL1

RANK = """\
import json, platform, sys
import torch
import torch.distributed as dist
import torch_topoopt

rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("topoopt", store=store, rank=rank, world_size=2)
tensor = torch.arange(100_000, dtype=torch.float32) + rank
dist.all_reduce(tensor)
right = torch.equal(tensor, 2 * torch.arange(100_000) + 1.0)
sent = sum(link["sent_bytes"] for link in torch_topoopt.stats()["links"])
dist.barrier()
dist.destroy_process_group()
print(json.dumps([platform.machine(), torch_topoopt.__file__, right, sent]))
"""


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def emulator() -> str:
    for name in EMULATORS:
        if shutil.which(name) is not None:
            return name
    pytest.skip(f"neither {' nor '.join(EMULATORS)} is installed (Debian: qemu-user)")


def on_processor(number: int) -> list[str]:
    need("taskset")
    return ["taskset", "--cpu-list", str(number)]


@pytest.fixture(scope="module")
def googletest() -> Path:
    """A prefix with GoogleTest for aarch64."""
    need("make", COMPILER)
    emulator()
    if not GTEST.is_dir():
        pytest.skip(f"{GTEST} is not there (Debian: googletest)")
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
    processors = sorted(os.sched_getaffinity(0))
    command = [emulator(), "-L", "/usr/aarch64-linux-gnu", str(made), "--gtest_brief=1"]

    def run_shard(shard: int) -> str:
        return run(
            [*on_processor(processors[shard]), *command],
            limit=1200,
            TOPOOPT_TEST_SLOWNESS=str(SLOWNESS),
            TOPOOPT_TEST_SHARE="0.06",
            GTEST_TOTAL_SHARDS=str(len(processors)),
            GTEST_SHARD_INDEX=str(shard),
        )

    with ThreadPoolExecutor(len(processors)) as threads:
        for printed in threads.map(run_shard, range(len(processors))):
            assert "[  PASSED  ]" in printed


@pytest.fixture(scope="module")
def sysroot() -> Path:
    """Python and PyTorch for aarch64, whose files the emulator shows instead of those here."""
    need(COMPILER, "mmdebstrap")
    emulator()
    made = subprocess.run(
        [ROOT / ".ci" / "aarch64-sysroot", sys.executable],
        capture_output=True,
        text=True,
        timeout=limit_s(1200),
        check=False,
    )
    if made.returncode != 0:
        last = made.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no packages for aarch64 can be had here: {''.join(last)}")
    folder = Path(made.stdout.strip())
    processors = range(os.cpu_count() or 1)
    (folder / "proc").mkdir(exist_ok=True)
    text = "".join(PROCESSOR.format(number=number) for number in processors)
    (folder / "proc" / "cpuinfo").write_text(text)
    for number in processors:
        registers = folder / f"sys/devices/system/cpu/cpu{number}/regs/identification"
        registers.mkdir(parents=True, exist_ok=True)
        (registers / "midr_el1").write_text(REGISTER)
    return folder


@pytest.fixture(scope="module")
def wheel(sysroot: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel that `make dist-aarch64` makes."""
    folder = tmp_path_factory.mktemp("wheel")
    run([str(ROOT / ".ci" / "make-dist-aarch64"), sys.executable, str(folder)], limit=2400)
    (path,) = folder.glob("torch_topoopt-*-linux_aarch64.whl")
    with zipfile.ZipFile(path) as files:
        files.extractall(folder / "files")
    return folder / "files"


@pytest.mark.parametrize("servers", [1, 2])
def test_two_ranks_of_the_wheel_add_up(
    servers: int, sysroot: Path, wheel: Path, tmp_path: Path
) -> None:
    """In the shared memory of one server, and over the links of two."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    (python,) = (sysroot / "usr" / "bin").glob("python3.[0-9]*[0-9]")
    command = [
        *on_processor(min(os.sched_getaffinity(0))),
        *(emulator(), "-cpu", MODEL, "-L", str(sysroot), str(python), str(script)),
    ]
    with contextlib.ExitStack() as cables, ThreadPoolExecutor(2) as ranks:
        environment = cables.enter_context(wired(make_plan(2, 1), tmp_path)) if servers > 1 else {}
        environment = {**environment, "PYTHONPATH": str(wheel)}
        printed = list(
            ranks.map(
                lambda rank: run(
                    [*command, str(rank), str(tmp_path / "store")], limit=600, **environment
                ),
                range(2),
            )
        )
    for text in printed:
        machine, package, right, sent = json.loads(text.splitlines()[-1])
        assert machine == "aarch64"
        assert Path(package).is_relative_to(wheel)
        assert right
        assert (sent > 0) == (servers > 1)
