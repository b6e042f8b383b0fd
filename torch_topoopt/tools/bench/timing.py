"""Times collectives from one rank, for `topoopt bench` and benchmarks/."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.report.bounds import hop_count
from torch_topoopt.tools.bench.operations import Buffers, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.plan import Plan


class GroupPeer:
    """A process group under test, seen from one rank.

    `renews`: the input is rewritten before every call, outside the measured time.
    """

    def __init__(self, name: str, group: Any, rank: int, *, renews: bool = False) -> None:
        self.name = name
        self._renews = renews
        self._group = group
        self._rank = rank
        self._buffers: Buffers | None = None
        self.cpu_s = 0.0  # of one call in the last `seconds`

    def runs(self, case: Case) -> bool:
        return True

    def wrong(self, case: Case, *, in_place: bool = False) -> int:
        """Makes the buffers; returns the number of wrong elements of this rank's first call."""
        self._buffers = Buffers(case, self._rank, in_place=in_place)
        self._buffers.call(self._group)
        return self._buffers.wrong()

    def seconds(self, case: Case, warm_up: int, iterations: int) -> float:
        buffers = self._buffers
        assert buffers is not None, "wrong() makes the buffers"
        for _ in range(warm_up):
            buffers.call(self._group)
        if not self._renews:
            seconds, self.cpu_s = self._each(iterations, lambda: buffers.call(self._group))
            return seconds

        def renew_and_call() -> None:
            buffers.renew()
            buffers.call(self._group)

        both_s, both_cpu_s = self._each(iterations, renew_and_call)
        renewing_s, renewing_cpu_s = self._each(iterations, buffers.renew)
        self.cpu_s = max(0.0, both_cpu_s - renewing_cpu_s)
        return max(1e-9, both_s - renewing_s)  # may be 0 below the clock's resolution

    def _each(self, iterations: int, run: Callable[[], None]) -> tuple[float, float]:
        """Seconds, and processor seconds, per iteration after a barrier."""
        dist.barrier(self._group)
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(iterations):
            run()
        seconds = (time.perf_counter() - started) / iterations
        return seconds, (time.process_time() - cpu_started) / iterations


def over_ranks(values: list[float], reduce_op: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, reduce_op)
    return [float(value) for value in tensor]


def sizes(begin: int, end: int, factor: int, step: int) -> Iterator[int]:
    size_bytes = begin
    while size_bytes <= end:
        yield size_bytes
        size_bytes = size_bytes + step if step else size_bytes * factor


def target_at(plan: Plan | None, ranks: int, root: int, hops: int | None) -> tuple[int, int]:
    """(rank, hops) of a server `hops` away from `root`; None: the farthest."""
    if plan is None:
        return (root + 1) % ranks, 1
    distance = {
        server: hop_count(plan, root, server)
        for server in range(plan.cluster.servers)
        if server != root
    }
    wanted = max(distance.values()) if hops is None else hops
    for server, count in distance.items():
        if count == wanted:
            return server, count
    raise ValueError(f"hops: no server is {hops} hops from server {root}")
