"""Does communication hide behind computation? DDP whose backward takes as long as its gradients.

    python benchmarks/overlap.py --ranks 2 --bandwidth 400Mbps
    sudo python benchmarks/overlap.py --on fabric --ranks 8 --bandwidth 100Mbps --compute wait

Measures, in alternating rounds with gloo on a fabric: the backward alone, the all_reduce of all
gradients alone, in DDP's buckets, and the backward under DistributedDataParallel, which does both.
The computation is first stretched until it lasts as long as topoopt's communication. `of max` is
the time of DDP's backward / max(compute, communicate): 1 if everything overlaps, 2 if nothing does.
No bucket can start before its layer's gradient exists, so a model of L layers, one bucket each, has
a floor of 1 + 1 / L.

The computation is the backward of linear layers (`--compute cpu`), or a wait of known length in
each layer's backward, like that of an accelerator (`--compute wait`), for more ranks than cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import Setting, direct_fabric, loopback
from torch_topoopt.plan.units import parse_gbps

if TYPE_CHECKING:
    from collections.abc import Callable

_RUN_LIMIT_S = 600.0
_PARTS = ("compute", "communicate", "both")
_TRIAL_BATCH = 64


class _Wait(torch.autograd.Function):
    """The identity, whose gradient takes `pace[0]` seconds, as on an accelerator."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, pace: list[float]) -> torch.Tensor:
        context.pace = pace
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.pace[0])
        return gradient, None


class Model(torch.nn.Module):
    """Equal square layers; `pace[0]` is what each one's backward waits, in seconds."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.pace = [0.0]
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in range(layers)
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = layer(value)
            if self.pace[0] > 0:
                value = _Wait.apply(value, self.pace)
        return value


class Job:
    """The work of one rank with one process group."""

    def __init__(self, group: Any, layers: int, width: int) -> None:
        self._group = group
        self._width = width
        self.batch_size = 1
        self.model = Model(layers, width)
        self._parallel = DistributedDataParallel(
            self.model,
            process_group=group,
            bucket_cap_mb=width * width * 4 / (1 << 20),  # one layer
            gradient_as_bucket_view=True,
        )
        self._gradients = [torch.zeros(width * width) for _ in range(layers)]

    def seconds(self, part: str) -> float:
        """Of one `part` of _PARTS, on the slowest rank."""
        run: Callable[[], None]
        if part == "communicate":
            run = self._communicate
        else:
            # Without no_sync() the module of a DDP reduces its gradients, in every caller.
            quiet = self._parallel.no_sync if part == "compute" else contextlib.nullcontext
            with quiet():
                loss = self._parallel(torch.ones(self.batch_size, self._width)).sum()
            run = loss.backward
        dist.barrier(self._group)
        started = time.perf_counter()
        run()
        elapsed = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return float(elapsed)

    def _communicate(self) -> None:
        works = [
            dist.all_reduce(gradient, group=self._group, async_op=True)
            for gradient in self._gradients
        ]
        for work in works:
            work.wait()

    def median(self, part: str, rounds: int = 3) -> float:
        return statistics.median(self.seconds(part) for _ in range(rounds))


def stretch(job: Job, wanted_s: float, compute: str) -> None:
    """Makes the computation last `wanted_s`; the same on all ranks, whose times are the same."""
    if compute == "wait":
        job.model.pace[0] = wanted_s / len(job.model.layers)
        return
    job.batch_size = _TRIAL_BATCH
    for _ in range(2):  # time is not quite proportional to the batch
        ratio = wanted_s / job.median("compute")
        job.batch_size = max(1, round(job.batch_size * ratio))


def run_rank(setting: Setting, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    dist.init_process_group("topoopt")
    groups = {"topoopt": dist.group.WORLD}
    if setting.fabric is not None:  # nothing limits gloo's rate on the loopback
        groups["gloo"] = dist.new_group(backend="gloo")
    jobs = {name: Job(group, options.layers, options.width) for name, group in groups.items()}
    for job in jobs.values():
        for part in _PARTS:
            job.seconds(part)
    stretch(jobs["topoopt"], jobs["topoopt"].median("communicate"), options.compute)
    for job in jobs.values():
        job.batch_size = jobs["topoopt"].batch_size
        job.model.pace[0] = jobs["topoopt"].model.pace[0]
    times: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in _PARTS} for name in jobs
    }
    for turn in range(options.rounds):
        for name in list(jobs) if turn % 2 == 0 else reversed(list(jobs)):
            for part in _PARTS:
                times[name][part].append(jobs[name].seconds(part))
    if dist.get_rank() == 0:
        report(setting, options, times)
    dist.destroy_process_group()


def report(
    setting: Setting, options: argparse.Namespace, times: dict[str, dict[str, list[float]]]
) -> None:
    megabytes = options.layers * options.width**2 * 4 / 1e6
    floor = 1 + 1 / options.layers
    print(f"# {setting.description}")
    print(f"# {options.layers} layers, {megabytes:.1f} MB of gradients, compute: {options.compute}")
    print(f"# {'':10} {'compute ms':>11} {'communicate ms':>15} {'both ms':>9} {'of max':>7}")
    results = {}
    for name, parts in times.items():
        compute, communicate, both = (statistics.median(parts[part]) for part in _PARTS)
        of_max = overlap_ratio(parts)
        results[name] = {"of_max": of_max, **parts}
        print(
            f"  {name:10} {compute * 1e3:11.1f} {communicate * 1e3:15.1f} {both * 1e3:9.1f} "
            f"{of_max:7.3f}"
        )
    print(f"# floor of max: {floor:.3f}", flush=True)
    if options.json:
        document = {"version": 1, "setting": setting.description, "floor": floor, **results}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


def overlap_ratio(parts: dict[str, list[float]]) -> float:
    """The median over the rounds of both / max(compute, communicate)."""
    return statistics.median(
        both / max(compute, communicate)
        for compute, communicate, both in zip(*(parts[part] for part in _PARTS), strict=True)
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("loopback", "fabric"), default="loopback")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--degree", type=int, help="links of a server (default: a ring)")
    parser.add_argument("--bandwidth", default="400Mbps", help="of a link and direction")
    parser.add_argument("--mtu", type=int, default=1500, help="of a fabric's cables")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=1024, help="a layer has width * width weights")
    parser.add_argument("--compute", choices=("cpu", "wait"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    return parser.parse_args()


def benchmark(options: argparse.Namespace) -> None:
    gbps = parse_gbps(options.bandwidth)
    degree = options.degree or min(2, options.ranks - 1)
    opened = (
        direct_fabric(options.ranks, degree, gbps, options.mtu)
        if options.on == "fabric"
        else loopback(options.ranks, degree, gbps)
    )
    with opened as setting:

        def run(rank: int) -> None:
            setting.become(rank)
            run_rank(setting, options)

        call_in_processes(setting.ranks, run, limit_s=_RUN_LIMIT_S)


def main() -> int:
    options = parse_arguments()
    return exit_code_of("overlap", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
