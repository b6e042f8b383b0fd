"""Compares the speed of this working tree with an older commit, in alternating rounds of one run.

    sudo .venv/bin/python benchmarks/regression.py 9e26ce6
    sudo .venv/bin/python benchmarks/regression.py v0.1.0 --rounds 7 --only fabric,plan

The older commit is built in build/regression, once. Each round measures every case with both trees;
odd rounds begin with the older one. `ratio` is now / before, the median of the rounds' ratios, and
`spread` their smallest and largest. A case is slower (or faster) if all its ratios are on one side
of 1 and the median is more than 1 % away.

    collectives  all_reduce of 3 sizes, all_to_all and sendrecv, by benchmarks/collectives.py of
                 each tree: shared memory, loopback and, as root, 12 emulated hosts with 4 links of
                 25 Mb/s; time of a call. The 2 ranks of all_reduce in shared memory are pinned:
                 they need twice the time where they share a processor
    start-up     from init_process_group() to the end of the first barrier of 12 ranks
    plan         `topoopt plan` of DLRM on 128 servers; processor time, and the iteration that it
                 predicts. Trees search differently, so more time for a faster plan is not slower
    wiring       `topoopt plan` of VGG on 128 servers without a search; processor time
    flow, packet `topoopt simulate` of the older commit's plan of DLRM on 16 servers; processor time

Cases that the older commit does not have are left out, with its error. Run it on an idle machine.
The exit code is 1 if a case is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
_BUILDS = ROOT / "build" / "regression"
_BUILD_LIMIT_S = 3600.0
_CASE_LIMIT_S = 900.0
_LEAST_CHANGE = 0.01  # a median closer to 1 is no change, however small the spread

_TOPOOPT = "import sys; from torch_topoopt.launcher.main import main; sys.exit(main())"
_SETTINGS = {
    "shared memory": ["--on", "shared-memory", "--ranks", "2"],
    "loopback": ["--on", "loopback", "--ranks", "4"],
    "fabric": ["--on", "fabric", "--ranks", "12", "--degree", "4", "--bandwidth", "25Mbps"],
}
# name -> setting, operation, smallest and largest size, factor between sizes, calls of a round
_COLLECTIVES = {
    "shared memory others": ("shared memory", "all_to_all,sendrecv", "1M", "1M", "2", "0"),
    "loopback all_reduce": ("loopback", "all_reduce", "64", "16M", "512", "0"),
    "loopback others": ("loopback", "all_to_all,sendrecv", "1M", "1M", "2", "0"),
    "fabric all_reduce": ("fabric", "all_reduce", "1K", "16M", "128", "3"),
    "fabric others": ("fabric", "all_to_all,sendrecv", "1M", "1M", "2", "3"),
}
_PINNED = "shared memory all_reduce"
_PLANS = shlex.split(
    "--degree 4 --bandwidth 25Gbps --seed 1 --evaluations 300 --no-failures --mode paper"
)
_ITERATION = "plan: predicted iteration"
_CASES = (_PINNED, *_COLLECTIVES, "start-up", "plan", "wiring", "flow", "packet")

# Forked ranks, as PyTorch's own; prints the seconds of each part, of the slowest rank, as JSON.
_RANKS = """
import json, multiprocessing, os, socket, time
import torch, torch.distributed as dist, torch_topoopt
def rank(number, port, results):
    os.environ.update(RANK=str(number), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(number),
                      LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    results.put(measure(number))
    dist.destroy_process_group()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
results = context.Queue()
ranks = [context.Process(target=rank, args=(n, port, results), daemon=True) for n in range(RANKS)]
for one in ranks:
    one.start()
found = [results.get(timeout=120) for _ in ranks]
print(json.dumps({part: max(of[part] for of in found) for part in found[0]}))
for one in ranks:
    one.join(60)
"""
_START_UP = f"""
RANKS = 12
def measure(number):
    began = time.monotonic()
    dist.init_process_group("topoopt")
    dist.barrier()
    return {{"start-up": time.monotonic() - began}}
{_RANKS}"""
_PINNED_ALL_REDUCE = f"""
RANKS = 2
def measure(number):
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {{processors[number % len(processors)]}})
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    found = {{}}
    for size, calls in ((64, 5000), (32 << 10, 5000), (16 << 20, 50)):
        data = torch.zeros(size // 4)
        for _ in range(calls // 10):
            dist.all_reduce(data)
        dist.barrier()
        began = time.monotonic()
        for _ in range(calls):
            dist.all_reduce(data)
        found[f"all_reduce {{size}} B, shared memory"] = (time.monotonic() - began) / calls
    return found
{_RANKS}"""


class CaseError(RuntimeError):
    """A case that a tree cannot run; the message is the last line of its error."""


@dataclass(frozen=True)
class Comparison:
    """One case: seconds of each round, by both trees."""

    name: str
    before: tuple[float, ...]
    now: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [now / before for before, now in zip(self.before, self.now, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """ "slower" or "faster" if all ratios agree; else ""."""
        if self.ratio > 1 + _LEAST_CHANGE and min(self.ratios) > 1:
            return "slower"
        if self.ratio < 1 - _LEAST_CHANGE and max(self.ratios) < 1:
            return "faster"
        return ""


def build(commit: str) -> Path:
    """The folder of a commit, with its extensions built by this interpreter's torch.

    Raises CaseError for an unknown commit or one that does not build.
    """
    sha = _output(["git", "rev-parse", "--short=12", f"{commit}^{{commit}}"], ROOT)
    folder = _BUILDS / sha
    if not list(folder.glob("torch_topoopt/_backend*.so")):
        if not folder.exists():
            _BUILDS.mkdir(parents=True, exist_ok=True)
            _output(["git", "worktree", "prune"], ROOT)
            _output(["git", "worktree", "add", "--detach", str(folder), sha], ROOT)
        print(f"building {sha} in {folder} (minutes)", file=sys.stderr)
        command = [sys.executable, "setup.py", "build_ext", "--inplace", "egg_info"]
        _output(command, folder, limit_s=_BUILD_LIMIT_S)
        for part in ("launcher", "models"):  # which old commits have outside of the package
            link = folder / "torch_topoopt" / part
            if not link.exists():
                link.symlink_to(Path("..", part))
        # The libraries of this environment without torch_topoopt, whose entry points torch reads.
        environment = folder / ".venv"
        _output([sys.executable, "-m", "venv", "--without-pip", str(environment)], folder)
        (packages,) = environment.glob("lib/python*/site-packages")
        for library in Path(sysconfig.get_path("purelib")).iterdir():
            if "topoopt" not in library.name:
                (packages / library.name).symlink_to(library)
    return folder


def _output(command: Sequence[str], folder: Path, *, limit_s: float = 60.0) -> str:
    """Standard output of a command in `folder`, whose own torch_topoopt it imports."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja
    environment = {
        **os.environ,
        "PATH": binaries,
        "PYTHONPATH": str(folder),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise CaseError(f"not done after {limit_s:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CaseError(lines[-1])
    return done.stdout.strip()


def _python(tree: Path) -> str:
    return sys.executable if tree == ROOT else str(tree / ".venv" / "bin" / "python")


def measure(case: str, tree: Path, scratch: Path) -> dict[str, float]:
    """Seconds of each part of a case in one tree; raises CaseError."""
    if case in _COLLECTIVES:
        return _collectives(case, tree, scratch)
    if case in ("start-up", _PINNED):
        script = _START_UP if case == "start-up" else _PINNED_ALL_REDUCE
        seconds: dict[str, float] = json.loads(
            _output([_python(tree), "-c", script], tree, limit_s=300.0)
        )
        return seconds
    if case == "wiring":
        options = ["--strategy-space", "data-parallel", *_PLANS, "-o", str(scratch / "vgg.json")]
        return {case: _processor_seconds(["plan", "vgg", "--servers", "128", *options], tree)}
    servers = "128" if case == "plan" else "16"
    plan = scratch / f"{servers}.json"  # of 16 servers: the older tree's, for both
    planning = ["plan", "dlrm", "--servers", servers, *_PLANS, "-o", str(plan)]
    if case == "plan":
        spent = _processor_seconds(planning, tree)
        predicted = json.loads(plan.read_text())["prediction"]["iteration_s"]
        return {case: spent, _ITERATION: predicted}
    if not plan.exists():
        _processor_seconds(planning, tree)
    return {
        case: _processor_seconds(["simulate", str(plan), "--model", "dlrm", "--level", case], tree)
    }


def _collectives(case: str, tree: Path, scratch: Path) -> dict[str, float]:
    setting, operations, smallest, largest, factor, calls = _COLLECTIVES[case]
    results = scratch / "results.json"
    sizes = ["-b", smallest, "-e", largest, "-f", factor, "-n", calls, "--rounds", "1"]
    command = [_python(tree), str(tree / "benchmarks" / "collectives.py"), *_SETTINGS[setting]]
    command += ["-o", operations, *sizes, "--peers", "none", "-J", str(results)]
    _output(command, tree, limit_s=_CASE_LIMIT_S)
    rows = json.loads(results.read_text())["results"]
    return {f"{row['operation']} {row['size']} B, {setting}": row["time"] / 1e6 for row in rows}


def _processor_seconds(arguments: Sequence[str], tree: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _output([_python(tree), "-c", _TOPOOPT, *arguments], tree, limit_s=_CASE_LIMIT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(trees: tuple[Path, Path], cases: Sequence[str], rounds: int) -> list[Comparison]:
    """Measures both trees in alternating rounds; a case that one of them cannot run is named."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    failed: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for case in cases:
                if case in failed:
                    continue
                began = time.monotonic()
                order = (0, 1) if number % 2 == 0 else (1, 0)
                try:
                    parts = {which: measure(case, trees[which], Path(folder)) for which in order}
                except CaseError as error:
                    print(f"{case}: left out: {error}", file=sys.stderr)
                    failed.add(case)
                    continue
                for name in parts[0].keys() & parts[1].keys():
                    seconds = found.setdefault(name, ([], []))
                    for which in (0, 1):
                        seconds[which].append(parts[which][name])
                spent = time.monotonic() - began
                print(f"round {number + 1}: {case}, {spent:.0f} s", file=sys.stderr)
    return [Comparison(name, tuple(a), tuple(b)) for name, (a, b) in found.items()]


def slower(comparisons: Sequence[Comparison]) -> list[str]:
    """Names of the slower cases; planning is none of them where it finds a faster plan."""
    verdicts = {one.name: one.verdict for one in comparisons}
    if verdicts.get(_ITERATION) == "faster":
        del verdicts["plan"]
    return [name for name, verdict in verdicts.items() if verdict == "slower"]


def show(comparisons: Sequence[Comparison], commit: str) -> None:
    """Prints the table, then the cases that are slower."""
    table = Table("case", "before", "now", "ratio", "spread", "", title=f"compared with {commit}")
    for one in comparisons:
        before, now = (f"{statistics.median(of) * 1e3:.4g} ms" for of in (one.before, one.now))
        spread = f"{min(one.ratios):.3f} to {max(one.ratios):.3f}"
        table.add_row(one.name, before, now, f"{one.ratio:.3f}", spread, one.verdict)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"slower: {'; '.join(slower(comparisons)) or 'nothing'}")


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if a case is slower, 2 for bad input."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("base", metavar="COMMIT", help="the older commit")
    options.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    options.add_argument(
        "--only", metavar="CASES", help=f"of {', '.join(_CASES)}; a part of a name is enough"
    )
    arguments = options.parse_args(argv)
    parts = (arguments.only or "").split(",")
    cases = [case for case in _CASES if any(part.strip() in case for part in parts)]
    if arguments.rounds < 1 or not cases:
        wrong = "--rounds: must be at least 1" if cases else f"--only: no case {arguments.only!r}"
        print(f"regression: {wrong}", file=sys.stderr)
        return 2
    if os.geteuid() and any("fabric" in case for case in cases):
        print("without root: the emulated hosts are left out", file=sys.stderr)
        cases = [case for case in cases if "fabric" not in case]
    try:
        before = build(arguments.base)
    except CaseError as error:
        print(f"regression: {arguments.base}: {error}", file=sys.stderr)
        return 2
    comparisons = compare((before, ROOT), cases, arguments.rounds)
    show(comparisons, arguments.base)
    return int(bool(slower(comparisons)))


if __name__ == "__main__":
    sys.exit(main())
