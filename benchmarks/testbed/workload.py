"""The paper's testbed models, reduced: fewer bytes on slower links, computing for longer.

A model's operators (List 1's sizes of section 6, their times those of an A100) become a few stages
in their order, each with one AllReduce. All bytes of a model are divided by the same number, so
that it has `MODEL_BYTES` of gradients, and links are `SLOWER` times slower than the paper's
25 Gb/s. Time is therefore stretched by SLOWER over that number, and computation is, too: it stands
to communication as it does on the paper's hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.models import MODELS
from torch_topoopt.op_graph import MeasuredCost, Operand, Operator, OpGraph
from torch_topoopt.plan import Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.strategies import everywhere

if TYPE_CHECKING:
    from torch_topoopt.search.strategies import Strategy

PAPER_GBPS = 25.0  # of a link of the paper's testbed
LINK_GBPS = 0.010  # of ours
SLOWER = PAPER_GBPS / LINK_GBPS
MODEL_BYTES = 1_000_000
STAGES = 4  # at most so many AllReduces in an iteration
_TABLES = "tables."


@dataclass(frozen=True)
class Stage:
    """Consecutive operators of a server: what they take, and the gradients that they sum."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Workload:
    """A reduced model on so many servers, one rank each.

    `stages` are data parallel. With `table_s` above 0 (forward, backward) every server has an
    embedding table of its own, and gets `exchanged_bytes` from each other before the first stage,
    and sends as much back as gradients. `smaller` is what bytes were divided by, `stretched` what
    times were multiplied by.
    """

    model: str
    servers: int
    batch: int
    stages: tuple[Stage, ...]
    table_s: tuple[float, float]
    exchanged_bytes: int
    smaller: float
    stretched: float

    @property
    def gradient_bytes(self) -> int:
        return sum(stage.gradient_bytes for stage in self.stages)

    @property
    def compute_s(self) -> float:
        """What a server computes in an iteration."""
        return sum(s.forward_s + s.backward_s for s in self.stages) + sum(self.table_s)

    @property
    def traffic_ratio(self) -> float:
        """Bytes of all-to-all over bytes of AllReduce that servers send."""
        others = self.servers - 1
        return 2 * others * self.exchanged_bytes / (2 * others / self.servers * self.gradient_bytes)

    def graph(self) -> OpGraph:
        """The same for planning and prediction: an operator for each table and stage."""
        part = self.exchanged_bytes * self.servers
        tables = [
            _operator(f"{_TABLES}{server}", self.table_s, 1, output=part)
            for server in range(self.servers if self.exchanged_bytes else 0)
        ]
        operators = list(tables)
        for i, stage in enumerate(self.stages):
            times = (stage.forward_s, stage.backward_s)
            made = _operator(stage.name, times, self.servers, gradients=stage.gradient_bytes)
            if i == 0:
                read = tuple(Operand(number, part, part) for number in range(len(tables)))
            else:
                read = (Operand(len(operators) - 1, 0, 0),)
            operators.append(replace(made, operands=read))
        return OpGraph(OpGraph.VERSION, self.model, self.batch, tuple(operators)).validate()

    def strategy(self) -> Strategy:
        """Table i whole on server i, the stages everywhere."""
        placements = everywhere(self.graph(), self.servers)
        return tuple(
            Placement(p.operator, (i,)) if p.operator.startswith(_TABLES) else p
            for i, p in enumerate(placements)
        )


def workload_of(
    model: str, servers: int, *, batch: int | None = None, traffic_ratio: float | None = None
) -> Workload:
    """`model` with `batch` samples (default: List 1's) on each of `servers`.

    A model with embedding tables has one on each server; `traffic_ratio` sets the bytes of
    all-to-all over those of AllReduce (default: those of List 1's sizes). Raises InputError for an
    unknown model.
    """
    per_server = batch or MODELS[model].SIZES["paper-6"].batch_size
    graph = op_graph_of(f"{model}:paper-6", per_server * servers)
    dense = [o for o in graph.operators if not o.name.startswith(_TABLES)]
    tables = [o for o in graph.operators if o.name.startswith(_TABLES)]
    smaller = sum(o.parameter_gradient_bytes for o in dense) / MODEL_BYTES
    stretched = SLOWER / smaller
    table_s, exchanged = (0.0, 0.0), 0.0
    if tables:
        forward_s, backward_s = _seconds(graph, tables[0], 1)
        table_s = (forward_s * stretched, backward_s * stretched)
        exchanged = tables[0].output_bytes / smaller / servers
        if traffic_ratio is not None:
            exchanged = traffic_ratio * MODEL_BYTES / servers
    stages = _stages(graph, dense, servers, smaller, stretched)
    return Workload(
        *(model, servers, per_server * servers, stages, table_s, 4 * round(exchanged / 4)),
        *(smaller, stretched),
    )


def _stages(
    graph: OpGraph, operators: list[Operator], servers: int, smaller: float, stretched: float
) -> tuple[Stage, ...]:
    """A stage ends as soon as it has its part of all gradients."""
    full = sum(o.parameter_gradient_bytes for o in operators) / STAGES
    stages: list[Stage] = []
    forward_s = backward_s = gradients = 0.0
    left = sum(o.parameter_gradient_bytes for o in operators)
    for operator in operators:
        times = _seconds(graph, operator, servers)
        forward_s, backward_s = forward_s + times[0], backward_s + times[1]
        gradients += operator.parameter_gradient_bytes
        left -= operator.parameter_gradient_bytes
        if gradients >= full and left:
            stages.append(_stage(stages, forward_s, backward_s, gradients, smaller, stretched))
            forward_s = backward_s = gradients = 0.0
    stages.append(_stage(stages, forward_s, backward_s, gradients, smaller, stretched))
    return tuple(stages)


# parameters: the sums of a stage, and how they are reduced
def _stage(
    before: list[Stage],
    forward_s: float,
    backward_s: float,
    gradients: float,
    smaller: float,
    stretched: float,
) -> Stage:
    name, size = f"stage{len(before)}", max(4, 4 * round(gradients / smaller / 4))
    return Stage(name, forward_s * stretched, backward_s * stretched, size)


def _seconds(graph: OpGraph, operator: Operator, servers: int) -> tuple[float, float]:
    """Forward and backward on an A100 that has its part of the samples."""
    degrees = Placement(operator.name, tuple(range(servers))).degrees
    cost = shard_cost(accelerator("a100"), operator, degrees, 1, 1)
    return cost.forward_s, cost.backward_s


def _operator(
    name: str,
    times: tuple[float, float],
    shards: int,
    *,
    gradients: int = 0,
    output: int = 0,
) -> Operator:
    return Operator(
        *(name, "Stage", 0, 0, gradients, gradients, output, 0, 0, True, ()),
        measured=(MeasuredCost(float(shards), *times),),
    )
