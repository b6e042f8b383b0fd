"""Several jobs on one network: each repeats its iteration, and their flows share the links.

The task graphs of the jobs are loops of one flow program (`FlowProgram.add_loop`). A loop repeats
without pause, so jobs drift in and out of phase according to their iteration times, until each has
finished a number of rounds. A flow takes one random shortest path of its network, as by ECMP's
hash, and keeps it from iteration to iteration.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from torch_topoopt import _core
from torch_topoopt.architectures.path_picker import PathPicker
from torch_topoopt.sim.flows import FlowsResult, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from torch_topoopt.architectures.routing import Routes
    from torch_topoopt.sim.iteration_program import IterationTasks

# The unit of hashing: every flow of an iteration is a connection of its own, or a pair of servers
# has one connection for all its bytes.
EcmpChoice = Literal["flow", "pair"]
ECMP_CHOICES: tuple[EcmpChoice, ...] = get_args(EcmpChoice)


@dataclass(frozen=True, eq=False)
class PlacedJob:
    """A job whose server s is `servers[s]` of a network; flow f takes the links
    `paths[path_of_flow[f]]`."""

    tasks: IterationTasks
    servers: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    path_of_flow: NDArray[np.int32]

    @classmethod
    def on(
        cls,
        routes: Routes,
        tasks: IterationTasks,
        servers: Sequence[int],
        *,
        ecmp: EcmpChoice = "flow",
        seed: int = 0,
    ) -> PlacedJob:
        """With paths chosen by `seed`. Raises ValueError for unknown or repeated servers, a wrong
        number of them, and servers without a path."""
        if len(servers) != tasks.servers or len(set(servers)) != len(servers):
            raise ValueError(
                f"servers: {len(set(servers))} different ones for a job of {tasks.servers}"
            )
        for server in servers:
            if not 0 <= server < routes.topology.servers:
                raise ValueError(f"servers: {server} is not in 0..{routes.topology.servers - 1}")
        picker = PathPicker(routes, random.Random(seed))
        ends = [(servers[source], servers[target]) for source, target in tasks.pairs]
        numbers: dict[tuple[int, ...], int] = {}
        if ecmp == "pair":
            of_pair = [numbers.setdefault(tuple(picker.links(*e)), len(numbers)) for e in ends]
            picked = [of_pair[pair] for pair in tasks.pair_of_flow.tolist()]
        else:
            picked = [
                numbers.setdefault(tuple(picker.links(*ends[pair])), len(numbers))
                for pair in tasks.pair_of_flow.tolist()
            ]
        return cls(tasks, tuple(servers), tuple(numbers), np.array(picked, dtype=np.int32))

    @property
    def links(self) -> frozenset[int]:
        """The links that the flows of the job use."""
        return frozenset(link for path in self.paths for link in path)


def concurrent_program(
    routes: Routes, jobs: Sequence[PlacedJob], start_s: Sequence[float], rounds: int
) -> _core.FlowProgram:
    """The jobs as loops, job j from `start_s[j]` on, until each has ended `rounds` iterations.

    Raises ValueError for jobs that share a server, fewer rounds than one, or a start that is
    negative or not finite.
    """
    topology = routes.topology
    taken: set[int] = set()
    for j, job in enumerate(jobs):
        if both := taken & set(job.servers):
            raise ValueError(f"jobs[{j}].servers: {min(both)} belongs to another job")
        taken |= set(job.servers)
    program = _core.FlowProgram(topology.nodes, topology.servers)
    for link in topology.links:
        program.add_link(link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9)
    program.set_rounds(rounds)
    for job, start in zip(jobs, start_s, strict=True):
        first = program.task_count
        paths = [[_core.WeightedPath(list(links))] for links in job.paths]
        added = job.tasks.add_to(program, paths, job.path_of_flow, 1, job.servers)
        program.add_loop(first, added.ends[0], start)
    return program


# parameters: the network and jobs, the duration, and the level
def run_concurrent(
    routes: Routes,
    jobs: Sequence[PlacedJob],
    start_s: Sequence[float],
    rounds: int,
    *,
    level: str = "flow",
    keep_going: Callable[[float, int], bool] | None = None,
    **options: Any,
) -> tuple[tuple[NDArray[np.float64], ...], FlowsResult]:
    """The seconds of every iteration of every job that ended, and all else about the run.

    Each job has at least `rounds` of them; faster ones continue, and have more. `options` are those
    of the level. Raises ValueError also as `concurrent_program` and `run_program`.
    """
    program = concurrent_program(routes, jobs, start_s, rounds)
    result = run_program(program, level=level, keep_going=keep_going, **options)
    times = tuple(
        np.diff(np.concatenate([[start], ends]))
        for start, ends in zip(start_s, result.round_ends_s, strict=True)
    )
    return times, result
