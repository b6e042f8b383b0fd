"""A short all_reduce in shared memory, beside a backend that does nothing.

    python benchmarks/dispatch.py
    python benchmarks/dispatch.py --ranks 2 --bytes 64 --rounds 9 -J dispatch.json

What PyTorch itself takes for a call from Python (its checks, the dispatcher, its flight recorder,
the Work) is measured with its "fake" backend, which completes every call at once, registered under
a name that PyTorch does not know: it records no calls of backends that it knows to do nothing. As
many processes call it at the same time as there are ranks: on fewer processors they take turns, as
ranks do. Rounds of both alternate; the ratio is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import call_in_processes, exit_code_of
from settings import Setting, shared_memory
from torch._C._distributed_c10d import FakeProcessGroup

_WARM_UP = 2000
_LIMIT_S = 120.0


def seconds_per_call(tensor: torch.Tensor, calls: int) -> float:
    for _ in range(_WARM_UP):
        dist.all_reduce(tensor)
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / calls


def _does_nothing(store: dist.Store, rank: int, size: int, timeout: object) -> dist.Backend:
    return FakeProcessGroup._create_internal(rank, size)


def measured(setting: Setting | None, options: argparse.Namespace) -> float:
    """Seconds of a call on the slowest rank; None: of the backend that does nothing."""

    def run(rank: int) -> float:
        torch.set_num_threads(1)
        if setting is None:
            dist.Backend.register_backend("nothing", _does_nothing, devices=["cpu"])
            store = dist.HashStore()
            dist.init_process_group("nothing", store=store, rank=0, world_size=options.ranks)
        else:
            setting.become(rank)
            dist.init_process_group("topoopt")
        seconds = seconds_per_call(torch.zeros(max(1, options.bytes // 4)), options.calls)
        dist.destroy_process_group()
        return seconds

    return max(call_in_processes(options.ranks, run, limit_s=_LIMIT_S))


def benchmark(options: argparse.Namespace) -> None:
    own, nothing = [], []
    for _ in range(options.rounds):
        nothing.append(measured(None, options))
        with shared_memory(options.ranks) as setting:
            own.append(measured(setting, options))
    ratio = statistics.median(a / b for a, b in zip(own, nothing, strict=True))
    print(
        f"all_reduce of {options.bytes} bytes, {options.ranks} ranks: "
        f"{statistics.median(own) * 1e6:.2f} us; a backend that does nothing: "
        f"{statistics.median(nothing) * 1e6:.2f} us; ratio {ratio:.2f}"
    )
    if options.json:
        document = {"version": 1, "own_s": own, "nothing_s": nothing, "ratio": ratio}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    options = parser.parse_args()
    return exit_code_of("dispatch", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
