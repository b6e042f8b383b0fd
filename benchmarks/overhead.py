"""The costs of a process group beside the bytes: memory, start-up, idle CPU, growth over time.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --operations 5000 --ranks 4
    python benchmarks/overhead.py --encryption --ranks 4

start-up    seconds until the first barrier of --start-ranks ranks has passed, and CPU time of a
            rank until then, against gloo, in alternating rounds; ranks are forks of a process that
            has imported torch and prepared what the server of `topoopt run` prepares
memory      growth of the resident memory of a rank by its first group; its peak above that in an
            all_reduce of --message bytes; what each further group keeps after such an all_reduce
growth      resident memory after --operations operations of many kinds and sizes, against that
            after the first tenth of them
idle CPU    CPU time per second of a rank that waits in nothing, and of one that waits in a barrier
encryption  with --encryption, in place of the others: an all_reduce of --message bytes by --ranks
            servers with plain and with encrypted links, in alternating rounds: its time, and the
            CPU time of all ranks per GB on links; without a limit, and on links of --bandwidth

Of a page of shared memory, each of k ranks that have it counts 1 / k.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import os
import statistics
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes, exit_code_of
from harness.results import Result, add_record_option, measured_now, record
from harness.settings import Setting, loopback, shared_memory
from torch_topoopt.environment import ENCRYPT_VARIABLE
from torch_topoopt.plan.units import parse_gbps
from torch_topoopt.runtime import before_fork

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

_RUN_LIMIT_S = 900.0
_BACKENDS = ("topoopt", "gloo")
_FURTHER_GROUPS = 8
_ENCRYPTED = {"plain": "0", "encrypted": "1"}
_CALLS = 5
_MIB = 1 << 20


def resident_bytes() -> int:
    """Memory of this process in RAM that is no file's; of shared memory, its part of each page."""
    ctypes.CDLL(None).malloc_trim(0)  # free memory is no cost, and would hide the next allocation
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) << 10 for name in ("Pss_Anon", "Pss_Shmem"))


def start_up(setting: Setting, backend: str) -> tuple[float, float]:
    """Seconds from the start of the slowest rank's init_process_group to the end of a barrier, and
    processor seconds of a rank, in the mean. Ranks are forks of a prepared process, as those of
    `topoopt run` are."""

    def run(rank: int) -> tuple[float, float, float]:
        setting.become(rank)
        torch.set_num_threads(1)
        started, cpu = time.monotonic(), time.process_time()
        dist.init_process_group(backend)
        dist.barrier()
        ended, used = time.monotonic(), time.process_time() - cpu
        dist.destroy_process_group()
        return started, ended, used

    spans = call_in_processes(setting.ranks, run, limit_s=120.0)
    seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
    return seconds, statistics.mean(used for _, _, used in spans)


def compare_start_up(options: argparse.Namespace, results: list[Result]) -> dict[str, Any]:
    before_fork.prepare()
    gc.collect()
    gc.freeze()
    starts: dict[str, list[tuple[float, float]]] = {backend: [] for backend in _BACKENDS}
    for turn in range(options.rounds):
        for backend in _BACKENDS if turn % 2 == 0 else reversed(_BACKENDS):
            # A setting of its own for each start: a fresh store, as at a job's start.
            with open_setting(options.on, options.start_ranks) as setting:
                starts[backend].append(start_up(setting, backend))
    result: dict[str, Any] = {}
    for which, name in enumerate(("seconds", "cpu_s")):
        values = {backend: [start[which] for start in starts[backend]] for backend in _BACKENDS}
        ratio = statistics.median(
            own / other for own, other in zip(values["topoopt"], values["gloo"], strict=True)
        )
        own, other = (statistics.median(values[backend]) for backend in _BACKENDS)
        what = f"start-up of {options.start_ranks} ranks" if which == 0 else "    CPU of a rank"
        print(f"  {what}: topoopt {own:.4f} s, gloo {other:.4f} s, ratio {ratio:.2f}", flush=True)
        result |= {name: values, f"{name}_ratio": ratio}
        time_of = "" if which == 0 else ", processor time of a rank"
        results.append(
            measured_now(
                f"start-up of {options.start_ranks} ranks, {options.on}{time_of}",
                own,
                "s",
                peer="gloo",
                ratio=ratio,
                ratio_of="time",
            )
        )
    return result


def mixed_operation(step: int, tensors: dict[int, torch.Tensor], rank: int, ranks: int) -> None:
    """One of many kinds and sizes, the same on every rank."""
    elements = list(tensors)[step // 7 % len(tensors)]
    tensor = tensors[elements]
    match step % 7:
        case 0:
            dist.all_reduce(tensor)
        case 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True).wait()
        case 2:
            dist.broadcast(tensor, step % ranks)
        case 3:
            dist.all_gather([torch.empty_like(tensor) for _ in range(ranks)], tensor)
        case 4:
            dist.reduce(tensor, step % ranks)
        case 5:
            partner = rank ^ 1
            if partner < ranks:
                received = torch.empty_like(tensor)
                request = dist.irecv(received, partner)
                dist.send(tensor, partner)
                request.wait()
        case 6:
            dist.barrier()
    tensor.fill_(1.0)


def run_operations(options: argparse.Namespace, rank: int, ranks: int) -> dict[str, int]:
    tensors = {n: torch.ones(n) for n in (1, 100, 5000, 40000)}
    early = max(1, options.operations // 10)
    for step in range(early):
        mixed_operation(step, tensors, rank, ranks)
    before = resident_bytes()
    for step in range(early, options.operations):
        mixed_operation(step, tensors, rank, ranks)
    return {"early": early, "before": before, "after": resident_bytes()}


def cpu_share(wait: Callable[[], Any]) -> float:
    """CPU seconds of this process per second of `wait()`."""
    before, begin = time.process_time(), time.monotonic()
    wait()
    return (time.process_time() - before) / (time.monotonic() - begin)


def idle_shares(rank: int, seconds: float) -> dict[str, float]:
    dist.barrier()
    nothing = cpu_share(lambda: time.sleep(seconds))
    dist.barrier()
    if rank == 0:
        time.sleep(seconds)  # the others wait for this rank, in a barrier, all that time
        dist.barrier()
        return {"nothing": nothing, "barrier": 0.0}
    return {"nothing": nothing, "barrier": cpu_share(dist.barrier)}


def observe(
    setting: Setting, backend: str, options: argparse.Namespace, rank: int
) -> dict[str, Any]:
    """The figures of one rank, in a fresh process."""
    setting.become(rank)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    results: dict[str, Any] = {"memory": memory(backend, torch.ones(options.message // 4))}
    results["threads"] = len(os.listdir("/proc/self/task")) - threading.active_count()
    results["idle"] = idle_shares(rank, options.idle_seconds)
    results["growth"] = run_operations(options, rank, setting.ranks)
    dist.destroy_process_group()
    return results


def memory(backend: str, message: torch.Tensor) -> dict[str, int]:
    """The growth of resident memory with each step; leaves the default group behind."""
    steps = [resident_bytes()]
    dist.init_process_group(backend)
    dist.barrier()
    steps.append(resident_bytes())
    peak = peak_growth_bytes(lambda: dist.all_reduce(message))
    groups = [dist.new_group() for _ in range(_FURTHER_GROUPS)]
    steps.append(resident_bytes())
    for group in groups:
        dist.all_reduce(message, group=group)
    steps.append(resident_bytes())
    for group in groups:
        dist.destroy_process_group(group)
    return {
        "first_group": steps[1] - steps[0],
        "peak": peak,
        "further_group": (steps[3] - steps[2]) // _FURTHER_GROUPS,
    }


def peak_growth_bytes(call: Callable[[], Any]) -> int:
    """By how much resident memory exceeds that before `call()` while it runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident
    before = status_bytes("VmHWM")
    call()
    return status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def all_reduce_cost(setting: Setting, encrypt: str, message_bytes: int) -> tuple[float, float]:
    """Seconds of one all_reduce, and CPU seconds of all ranks per GB that its ring carries."""

    def run(rank: int) -> tuple[float, float]:
        setting.become(rank)
        os.environ[ENCRYPT_VARIABLE] = encrypt
        torch.set_num_threads(1)
        message = torch.ones(message_bytes // 4)
        dist.init_process_group("topoopt")
        dist.all_reduce(message)
        dist.barrier()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for _ in range(_CALLS):
            dist.all_reduce(message)
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        dist.destroy_process_group()
        return seconds / _CALLS, cpu_s / _CALLS

    costs = call_in_processes(setting.ranks, run, limit_s=_RUN_LIMIT_S)
    carried_gb = 2 * (setting.ranks - 1) * message_bytes / 1e9
    return max(seconds for seconds, _ in costs), sum(cpu_s for _, cpu_s in costs) / carried_gb


def compare_encryption(options: argparse.Namespace, results: list[Result]) -> dict[str, Any]:
    document = {}
    for bandwidth in (None, options.bandwidth):
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in _ENCRYPTED}
        for turn in range(options.rounds):
            for name in _ENCRYPTED if turn % 2 == 0 else reversed(_ENCRYPTED):
                gbps = parse_gbps(bandwidth) if bandwidth else None
                with loopback(options.ranks, min(2, options.ranks - 1), gbps) as setting:
                    cost = all_reduce_cost(setting, _ENCRYPTED[name], options.message)
                costs[name].append(cost)
        document[bandwidth or "no limit"] = costs
        print(f"  all_reduce of {options.message / _MIB:g} MiB, {setting.description}:")
        for name, of_rounds in costs.items():
            seconds, cpu_s = (statistics.median(values) for values in zip(*of_rounds, strict=True))
            print(f"    {name:10} {seconds * 1e3:8.1f} ms, {cpu_s:.2f} CPU s per GB", flush=True)
            what = f"{name} all_reduce, {setting.description}"
            results += [
                measured_now(what, seconds * 1e3, "ms"),
                measured_now(what, cpu_s, "CPU s per GB"),
            ]
    return document


def describe(
    backend: str, ranks: list[dict[str, Any]], options: argparse.Namespace
) -> list[Result]:
    """Prints the worst rank of everything."""

    def worst(part: str, name: str) -> float:
        return max(results[part][name] for results in ranks)

    grown = max(results["growth"]["after"] - results["growth"]["before"] for results in ranks)
    print(f"  {backend}, the worst of {len(ranks)} ranks:")
    growth = ranks[0]["growth"]
    peak_of = f"peak in an all_reduce of {options.message / _MIB:g} MiB"
    rows = (
        ("memory of the first group", worst("memory", "first_group") / _MIB, "MiB"),
        (peak_of, worst("memory", "peak") / _MIB, "MiB"),
        ("kept by each further group", worst("memory", "further_group") / _MIB, "MiB"),
        (f"growth, operations {growth['early']} to {options.operations}", grown / _MIB, "MiB"),
        ("CPU while nothing goes on", worst("idle", "nothing") * 100, "%"),
        ("CPU while waiting in a barrier", worst("idle", "barrier") * 100, "%"),
        ("threads of its own", max(results["threads"] for results in ranks), ""),
    )
    for name, value, unit in rows:
        print(f"    {name:40} {value:8.2f} {unit}".rstrip(), flush=True)
    return [
        measured_now(f"{backend}, {len(ranks)} ranks: {name}", value, unit)
        for name, value, unit in rows
    ]


def open_setting(on: str, ranks: int) -> contextlib.AbstractContextManager[Setting]:
    if on == "shared-memory":
        return shared_memory(ranks)
    return loopback(ranks, min(4, (ranks - 1) // 2 * 2) if ranks > 2 else 1, None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("loopback", "shared-memory"), default="loopback")
    parser.add_argument("--ranks", type=int, default=2, help="for all but start-up")
    parser.add_argument("--start-ranks", type=int, default=12)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--message", type=int, default=64 << 20, help="bytes of an all_reduce")
    parser.add_argument("--idle-seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3, help="of start-up, or of --encryption")
    parser.add_argument("--start-up", action="store_true", help="nothing but start-up")
    parser.add_argument("--encryption", action="store_true", help="the price of encrypted links")
    parser.add_argument("--bandwidth", default="500Mbps", help="of a link, for --encryption")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    return parser.parse_args()


def benchmark(options: argparse.Namespace) -> None:
    print(f"# on {options.on}")
    document: dict[str, Any] = {"version": 1, "on": options.on}
    results: list[Result] = []
    if options.encryption:
        document["encryption"] = compare_encryption(options, results)
    else:
        document["start_up"] = compare_start_up(options, results)
    for backend in () if options.encryption or options.start_up else _BACKENDS:
        with open_setting(options.on, options.ranks) as setting:
            run = functools.partial(observe, setting, backend, options)
            ranks = call_in_processes(options.ranks, run, limit_s=_RUN_LIMIT_S, fresh=True)
        results += describe(backend, ranks, options)
        document[backend] = ranks
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    if options.record:
        record(options.record, results)


def main() -> int:
    options = parse_arguments()
    return exit_code_of("overhead", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
