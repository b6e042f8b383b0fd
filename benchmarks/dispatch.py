"""A short all_reduce in shared memory, beside a backend that does nothing.

    python benchmarks/dispatch.py
    python benchmarks/dispatch.py --ranks 2 --bytes 64 --rounds 9 -J dispatch.json
    python benchmarks/dispatch.py --ranks 4 --pin

The latter shows what PyTorch itself takes for a call from Python (its checks, the dispatcher, its
flight recorder, the Work). As many processes call it at the same time as there are ranks: on fewer
processors they take turns, as ranks do. Rounds of both alternate; the ratio is the median of the
rounds'.

`undisturbed` is the fastest tenth of blocks of 20 calls: what a call takes while nothing else wants
the processors, also where other programs run meanwhile. It needs --pin, for ranks that happen to
share a processor are another case.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from harness import idle_backend
from harness.rank_processes import call_in_processes, exit_code_of
from harness.results import add_record_option, measured_now, record
from harness.settings import Setting, shared_memory

_WARM_UP = 2000
_LIMIT_S = 120.0
_BLOCK = 20


def seconds_per_call(tensor: torch.Tensor, calls: int) -> tuple[float, float]:
    """The mean, and that of the fastest tenth of blocks."""
    for _ in range(_WARM_UP):
        dist.all_reduce(tensor)
    ends = [time.perf_counter()]
    for _ in range(max(1, calls // _BLOCK)):
        for _ in range(_BLOCK):
            dist.all_reduce(tensor)
        ends.append(time.perf_counter())
    blocks = sorted(end - begin for begin, end in itertools.pairwise(ends))
    mean = (ends[-1] - ends[0]) / len(blocks) / _BLOCK
    return mean, blocks[len(blocks) // 10] / _BLOCK


def measured(setting: Setting | None, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a call on the slowest rank; None: of the backend that does nothing."""
    processors = sorted(os.sched_getaffinity(0)) if options.pin else []

    def run(rank: int) -> tuple[float, float]:
        torch.set_num_threads(1)
        if processors:
            os.sched_setaffinity(0, {processors[rank % len(processors)]})
        if setting is None:
            idle_backend.register()
            store = dist.HashStore()
            dist.init_process_group(
                idle_backend.NAME, store=store, rank=0, world_size=options.ranks
            )
        else:
            setting.become(rank)
            dist.init_process_group("topoopt")
        seconds = seconds_per_call(torch.zeros(max(1, options.bytes // 4)), options.calls)
        dist.destroy_process_group()
        return seconds

    means, undisturbed = zip(*call_in_processes(options.ranks, run, limit_s=_LIMIT_S), strict=True)
    return max(means), max(undisturbed)


def benchmark(options: argparse.Namespace) -> None:
    own: list[tuple[float, float]] = []
    nothing: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        nothing.append(measured(None, options))
        with shared_memory(options.ranks) as setting:
            own.append(measured(setting, options))
    print(f"all_reduce of {options.bytes} bytes, {options.ranks} ranks, and one that does nothing")
    document: dict[str, object] = {"version": 2}
    results = []
    what = f"all_reduce of {options.bytes} bytes, shared memory, {options.ranks} ranks"
    for index, name in enumerate(["mean", "undisturbed"] if options.pin else ["mean"]):
        ours, others = ([pair[index] for pair in times] for times in (own, nothing))
        ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        print(
            f"{name:>12} {statistics.median(ours) * 1e6:7.2f} us and "
            f"{statistics.median(others) * 1e6:6.2f} us, ratio {ratio:.2f}"
        )
        document[name] = {"own_s": ours, "nothing_s": others, "ratio": ratio}
        results.append(
            measured_now(
                f"{what}, {name}",
                statistics.median(ours) * 1e6,
                "us",
                peer="backend that does nothing",
                ratio=ratio,
                ratio_of="time",
            )
        )
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    if options.record:
        record(options.record, results)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pin", action="store_true", help="a processor for each rank, by turns")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    options = parser.parse_args()
    return exit_code_of("dispatch", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
