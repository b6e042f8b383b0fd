"""Time of all_reduce against the limit that the links set.

    topoopt run --servers 5 --degree 4 --bandwidth 50Mbps benchmarks/all_reduce.py

With n servers of d links, each of B bytes per second and direction, an all_reduce of S bytes takes
at least 2 (n - 1) / n * S / (d * B): every server sends each byte of its share of all rings once in
each of two phases, on all links at once. Columns as in nccl-tests; `of limit` is limit / time. Keep
the sum of all link rates below about 1.5 Gb/s on 2 cores, or the CPUs are measured.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

from torch_topoopt.plan import Plan

BYTES = 8 << 20


def build_model() -> torch.nn.Module:
    """A model with as many bytes of gradients as the largest all_reduce, for the plan."""
    return torch.nn.Linear(1 << 10, BYTES >> 12, bias=False)


def example_batch(batch_size: int = 64) -> torch.Tensor:
    return torch.zeros(batch_size, 1 << 10)


def measure(size_bytes: int, iterations: int) -> float:
    """Median seconds of one all_reduce of float32."""
    tensor = torch.ones(size_bytes // 4)
    times = []
    for _ in range(iterations + 1):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - started)
        tensor.fill_(1.0)
    return statistics.median(times[1:])  # the first one warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--iterations", type=int, default=5)
    parser.add_argument("-b", "--begin", type=int, default=64 << 10, help="smallest size in bytes")
    parser.add_argument("-e", "--end", type=int, default=BYTES, help="largest size in bytes")
    arguments = parser.parse_args()
    dist.init_process_group()
    cluster = Plan.load(os.environ["TOPOOPT_PLAN"]).cluster
    n = cluster.servers
    if dist.get_rank() == 0:
        print(f"# {n} servers, {cluster.degree} links each, {cluster.link_gbps * 1000:g} Mb/s")
        print(f"# {'size (B)':>12} {'time (ms)':>10} {'busbw (MB/s)':>13} {'of limit':>9}")
    size_bytes = arguments.begin
    while size_bytes <= arguments.end:
        seconds = measure(size_bytes, arguments.iterations)
        moved = 2 * (n - 1) / n * size_bytes
        limit_s = moved / (cluster.degree * cluster.link_bytes_per_s)
        if dist.get_rank() == 0:
            print(
                f"  {size_bytes:12} {seconds * 1e3:10.2f} {moved / seconds / 1e6:13.2f} "
                f"{limit_s / seconds:9.3f}",
                flush=True,
            )
        size_bytes *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
