"""The accelerator "cpu": this machine's processors, measured once by a few small kernels.

The figures are cached in $XDG_CACHE_HOME/torch_topoopt (~/.cache by default), by processor, number
of threads and version of PyTorch, so that planning is repeatable.
"""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.kept_files import kept_file

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURING_S = 2.0  # for all kernels together


@dataclass(frozen=True)
class CpuRoofline(Document):
    """Measured rates of kernels: FLOP/s of a matrix product and a convolution, bytes/s of a
    copy, and the seconds of an operation on one element."""

    KIND: ClassVar[str] = "CpuRoofline"
    VERSION: ClassVar[int] = 1

    version: int
    processor: str
    threads: int
    torch: str
    dense_flops: float
    convolution_flops: float
    memory_bytes_per_s: float
    launch_s: float
    memory_bytes: int

    def validate(self) -> Self:
        for field in ("dense_flops", "convolution_flops", "memory_bytes_per_s", "launch_s"):
            if not 0 < getattr(self, field) < math.inf:
                raise DocumentError(f"{field}: {getattr(self, field)} is not above 0")
        return self


def cpu_roofline(
    clock: Callable[[], float] = time.perf_counter, limit_s: float = MEASURING_S
) -> CpuRoofline:
    """The figures of this machine, from the cache if they were measured before."""
    path = cache_file()
    try:
        return CpuRoofline.load(path)
    except (OSError, DocumentError):
        pass  # never measured, or by another version of this program
    measured = measure(clock, limit_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        measured.save(path)
    except OSError:
        pass  # no cache: the next process measures again
    return measured


def cache_file() -> Path:
    """The file of the figures of this machine."""
    return kept_file("cpu", _fingerprint())


def _fingerprint() -> dict[str, Any]:
    import torch

    return {
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def processor_name() -> str:
    """The name that the processor of this machine reports."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def measure(clock: Callable[[], float], limit_s: float) -> CpuRoofline:
    """Runs the kernels, each for a quarter of `limit_s`; the fastest run of each counts."""
    import torch
    from torch.nn.functional import conv2d

    side, pixels, channels = 1024, 56, 64
    a, b, made = (torch.ones(side, side) for _ in range(3))
    images, weights = torch.ones(4, channels, pixels, pixels), torch.ones(channels, channels, 3, 3)
    source, target = (torch.ones(1 << 24) for _ in range(2))
    one = torch.ones(1)
    share_s = limit_s / 4
    with torch.no_grad():
        product_s = _fastest(lambda: torch.mm(a, b, out=made), clock, share_s)
        convolution_s = _fastest(lambda: conv2d(images, weights, padding=1), clock, share_s)
        copy_s = _fastest(lambda: target.copy_(source), clock, share_s)
        launch_s = _fastest(lambda: torch.add(one, one), clock, share_s)
    return CpuRoofline(
        version=CpuRoofline.VERSION,
        **_fingerprint(),
        dense_flops=2 * side**3 / product_s,
        convolution_flops=2 * 4 * pixels**2 * channels**2 * 9 / convolution_s,
        memory_bytes_per_s=2 * source.nbytes / copy_s,
        launch_s=launch_s,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    ).validate()


def _fastest(kernel: Callable[[], Any], clock: Callable[[], float], limit_s: float) -> float:
    kernel()  # the first run allocates
    end = clock() + limit_s
    best = math.inf
    while True:
        start = clock()
        kernel()
        now = clock()
        best = min(best, max(now - start, 1e-9))
        if now >= end:
            return best


def description(figures: CpuRoofline) -> str:
    """One line for people."""
    gflops = figures.dense_flops / 1e9
    return (
        f"{figures.processor}, {figures.threads} threads: {gflops:.0f} GFLOP/s in products, "
        f"{figures.convolution_flops / 1e9:.0f} in convolutions, "
        f"{figures.memory_bytes_per_s / 1e9:.1f} GB/s of memory"
    )
