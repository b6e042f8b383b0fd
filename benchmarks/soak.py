"""Long training while links fail: the weights of a run without faults, and steady memory.

    sudo .venv/bin/python benchmarks/soak.py
    sudo .venv/bin/python benchmarks/soak.py --minutes 5 --fault-every 3 --seed 7

Emulated hosts train for --minutes, and every --fault-every seconds a random cable is cut and others
are repaired (see endurance.py). Then as many steps are trained on the same plan without faults. The
final weights must be equal bit for bit: fault_injection/soak_rank.py rounds gradients to whole
numbers, whose sums do not depend on the order of additions, so any --algorithm will do.

Printed are the steps, both digests of the weights, and the memory of its own of the rank that grew
most: the median of each fifth of the time. What ranks remember of their last steps grows to its
limits at first (20 000 iterations), and then no more.

The exit code is 0 if both runs ended well and the weights are equal.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fault_injection import faulted_job
from fault_injection.cable_faults import KINDS
from fault_injection.faulted_job import Job, in_folder
from harness.rank_processes import exit_code_of

if TYPE_CHECKING:
    from fault_injection.faulted_job import Outcome

_SPARE_S = 300.0  # for start and end, on a busy machine
_PARTS = 5  # of the samples of memory
_MIB = 1 << 20


@dataclass(frozen=True)
class Result:
    """Of both runs; `memory_bytes` is that of the rank that grew most, in parts of the time."""

    exit_codes: tuple[int, ...]
    faults: int
    steps: int
    digests: tuple[str, ...]
    memory_bytes: list[float]

    @property
    def grown_bytes(self) -> float:
        """Since the second part; 0 for a run that was too short to say."""
        return self.memory_bytes[-1] - self.memory_bytes[1] if self.memory_bytes else 0.0

    @property
    def passed(self) -> bool:
        return self.exit_codes == (0, 0) and len(self.digests) == 2 and len(set(self.digests)) == 1


def soak(
    folder: Path,
    *,
    seconds: float,
    every_s: float,
    seed: int,
    algorithm: str = "auto",
    servers: int = 8,
    degree: int = 4,
    bandwidth: str = "25Mbps",
) -> Result:
    """Trains with faults for `seconds`, and then as many steps without; prints what happens."""
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - started:8.2f} s  {text}", flush=True)

    variables = {"TOPOOPT_ALGORITHM": algorithm, "XDG_CACHE_HOME": str(folder / "cache")}
    log(f"seed {seed}; results and output in {folder}")
    faulty = folder / "faulty"
    job = Job(
        "soak_rank.py",
        ["--seconds", f"{seconds:g}", str(faulty / "result.json")],
        faulty,
        servers,
        degree,
        bandwidth,
        variables=variables,
    )
    outcome = faulted_job.run(
        job, limit_s=seconds + _SPARE_S, every_s=every_s, seed=seed, kinds=KINDS, log=log
    )
    memory = most_grown(outcome)
    log(f"exit code {outcome.exit_code} after {outcome.faults} faults")
    if outcome.exit_code != 0:
        return Result((outcome.exit_code,), outcome.faults, 0, (), memory)
    steps, digest = _result(faulty)
    whole = folder / "whole"
    # Nothing limits its links, so it is done in less time.
    reference = Job(
        "soak_rank.py",
        ["--steps", str(steps), str(whole / "result.json")],
        whole,
        bandwidth=None,
        fabric="loopback",
        plan=faulty / "run" / "plan.json",
        variables=variables,
    )
    code = faulted_job.run(reference, limit_s=seconds + _SPARE_S).exit_code
    log(f"exit code {code} of {steps} steps without faults")
    digests = (digest, _result(whole)[1]) if code == 0 else (digest,)
    return Result((0, code), outcome.faults, steps, digests, memory)


def _result(folder: Path) -> tuple[int, str]:
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return document["steps"], document["digest"]


def most_grown(outcome: Outcome) -> list[float]:
    """Bytes of the rank that grew most, in parts of the time; empty if there are few samples."""
    ranks = []
    for samples in outcome.memory.values():
        if (length := len(samples) // _PARTS) > 0:
            sizes = [size for _, size in samples]
            parts = [sizes[part * length : (part + 1) * length] for part in range(_PARTS)]
            ranks.append([statistics.median(part) for part in parts])
    return max(ranks, key=lambda parts: parts[-1] - parts[1], default=[])


def describe(result: Result) -> None:
    print(f"exit codes {result.exit_codes}, {result.faults} faults, {result.steps} steps")
    equal = len(result.digests) == 2 and len(set(result.digests)) == 1
    print(f"weights {'equal' if equal else 'NOT equal'}: {', '.join(result.digests)}")
    parts = ", ".join(f"{size / _MIB:.2f}" for size in result.memory_bytes)
    print(f"memory of the rank that grew most, in fifths of the time: {parts} MiB")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--fault-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--algorithm", default="auto", help="of both runs (default: auto)")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--bandwidth", default="25Mbps")
    parser.add_argument("--seed", type=int, help="of the faults (default: a random one)")
    parser.add_argument("--folder", type=Path, help="keep results and output there")
    return parser.parse_args(argv)


def benchmark(options: argparse.Namespace, passed: list[bool]) -> None:
    def run(folder: Path) -> Result:
        return soak(
            folder,
            seconds=options.minutes * 60,
            every_s=options.fault_every,
            seed=random.randrange(1 << 32) if options.seed is None else options.seed,
            algorithm=options.algorithm,
            servers=options.servers,
            degree=options.degree,
            bandwidth=options.bandwidth,
        )

    result = in_folder(options.folder, "soak", run)
    describe(result)
    passed.append(result.passed)


def main() -> int:
    options = parse_arguments()
    passed: list[bool] = []
    code = exit_code_of("soak", lambda: benchmark(options, passed))
    return code or (0 if all(passed) else 1)


if __name__ == "__main__":
    sys.exit(main())
