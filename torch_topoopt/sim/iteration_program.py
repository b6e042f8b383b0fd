"""Training iterations as a flow program, which every level runs.

The tasks are those of `predict` (csrc/sim/iteration/iteration_program.h makes them), but a flow of
`predict` becomes several, so that every packet has one path: a transfer is one flow per path, and a
ring one flow per hop, or per hop and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from torch_topoopt import _core
from torch_topoopt.search.lowering import degrees_of, lower_job
from torch_topoopt.sim.flow_names import FlowName, flow_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Pair
    from torch_topoopt.search.strategies import Strategy

# order of the 2 (k - 1) steps of a ring AllReduce among k servers: all at once, as one flow per
# hop; each server after its own previous step; or all servers in lockstep
RingSteps = Literal["together", "chained", "barrier"]
RING_STEPS: tuple[RingSteps, ...] = get_args(RingSteps)


@dataclass(frozen=True)
class IterationTasks:
    """The tasks of one iteration; flow i goes from server `pairs[pair_of_flow[i]][0]` to [1] and
    has no path yet. Pairs are distinct and ascending; then those follow whose flows need a link
    between them (`is_direct`)."""

    op_graph: OpGraph
    servers: int
    core: _core.IterationTasks
    pairs: list[Pair]
    pair_of_flow: NDArray[np.int32]
    is_direct: list[bool]

    @classmethod
    def of(
        cls,
        op_graph: OpGraph,
        cluster: Cluster,
        rings: _core.RoutedNetwork,
        strategy: Strategy,
        micro_batches: int,
        ring_steps: RingSteps = "together",
    ) -> IterationTasks:
        """Groups use the rings, grids or schedules of `rings`. Raises ValueError for an unknown
        accelerator or `ring_steps`."""
        job = lower_job(op_graph, cluster, degrees_of([strategy]), micro_batches=micro_batches)
        core = _core.IterationTasks(job, rings, strategy, ring_steps)
        count = cluster.servers
        ends = (core.is_direct.astype(np.int64) * count + core.source) * count + core.target
        distinct, pair_of_flow = np.unique(ends, return_inverse=True)
        pairs = [divmod(number % count**2, count) for number in distinct.tolist()]
        is_direct = (distinct >= count**2).tolist()
        return cls(op_graph, count, core, pairs, pair_of_flow.astype(np.int32), is_direct)

    def add_to(
        self,
        program: _core.FlowProgram,
        paths: Sequence[Sequence[_core.WeightedPath]],
        path_of_flow: NDArray[np.int32],
        iterations: int,
        hosts: Sequence[int] = (),
    ) -> IterationProgram:
        """Adds `iterations` iterations to `program`, one after another.

        Server s of the job is host `hosts[s]` (default: s). Flow f of iteration i is spread over
        `paths[path_of_flow[i * flows + f]]`. Raises ValueError for iterations below 1, or unless
        there is one host for each server.
        """
        added = self.core.add_to(program, paths, path_of_flow, iterations, list(hosts))
        return IterationProgram(program, added.ends, self, added.cargo_of_task)


class Computed(NamedTuple):
    """A computation of a micro-batch."""

    name: str
    micro_batch: int


@dataclass(frozen=True)
class IterationProgram:
    """Iterations in a program; `ends` has the last task of each."""

    program: _core.FlowProgram
    ends: list[int]
    tasks: IterationTasks
    cargo_of_task: list[int]

    @property
    def server_of_host(self) -> list[int]:
        """The server of every host."""
        return list(range(self.program.hosts))

    def computed(self, task: int, priority: int) -> Computed:
        """The computation that is task `task`."""
        number, batch, is_backward = self.tasks.core.computed(priority)
        if number < 0:
            return Computed("overhead of a step", batch)
        what = "backward" if is_backward else "forward"
        return Computed(f"{self.tasks.op_graph.operators[number].name} {what}", batch)

    def names(self) -> dict[int, FlowName]:
        """Task number -> name of its flow."""
        operators = [operator.name for operator in self.tasks.op_graph.operators]
        cargoes = self.tasks.core.cargoes
        names: dict[int, FlowName] = {}
        first = 0
        for iteration, end in enumerate(self.ends):
            known = [flow_name(cargo, operators, iteration) for cargo in cargoes]
            for task in range(first, end):
                if (cargo := self.cargo_of_task[task]) >= 0:
                    names[task] = known[cargo]
            first = end
        return names
