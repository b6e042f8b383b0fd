"""The training jobs of the HammingMesh paper (section V-B): OpGraphs with its times and volumes.

A job runs on D x P x O accelerators. The accelerator at place (d, p, o) of the data, pipeline and
operator axes has the logical number (p D + d) O + o; which server of a network that is, an order of
servers says. Per iteration an accelerator AllReduces V_D = W N_P / (O P) bytes along the data axis
and sends V_P = M W N_A / (D P O) bytes along the pipeline (V-B1); W = 4, the paper trains in FP32.

Operators take what the paper says, never an estimate: of a job's computing time a third is forward
and two thirds are backward, as of the FLOPs of dense layers. A collective of the operator axis is
an exchange between pairs, as everywhere in these simulators: an AllReduce of a layer's activations
is a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_topoopt.op_graph import MeasuredCost, Operand, Operator, OpGraph, Split
from torch_topoopt.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.search.strategies import Strategy

WORD_BYTES = 4  # FP32
_KEPT = 1  # bytes: of what its accelerator keeps, for the backward pass follows gradients
_FORWARD = 1 / 3  # of an operator's computing time
_FORWARD_OF_TABLES = 1 / 2  # a backward pass writes the rows that the forward pass read


@dataclass(frozen=True)
class Axes:
    """Degrees of data (D), pipeline (P) and operator (O) parallelism."""

    data: int
    pipeline: int = 1
    operator: int = 1

    @property
    def accelerators(self) -> int:
        return self.data * self.pipeline * self.operator


@dataclass(frozen=True)
class _Place:
    """Where an operator goes: to a stage of the pipeline, there on the whole data axis or on one
    `row` of it, and on the whole operator axis, in parts along the named `split`, or on one `part`
    of it."""

    stage: int = 0
    row: int | None = None
    part: int | None = None
    split: str = ""


@dataclass(frozen=True)
class TrainingWorkload:
    """One job. `minibatch` is M, in examples; `parameters` N_P; `activations` N_A, the values of an
    example where the pipeline is cut; `compute_s` what an accelerator computes in an iteration."""

    name: str
    axes: Axes
    minibatch: int
    parameters: float
    activations: float
    compute_s: float
    op_graph: OpGraph
    places: tuple[_Place, ...]

    @property
    def data_bytes(self) -> float:
        """V_D: what an accelerator AllReduces along the data axis in an iteration."""
        return WORD_BYTES * self.parameters / (self.axes.operator * self.axes.pipeline)

    @property
    def pipeline_bytes(self) -> float:
        """V_P: what an accelerator sends to the next stage in an iteration's forward passes."""
        return self.minibatch * WORD_BYTES * self.activations / self.axes.accelerators

    def strategy(self, order: Sequence[int] | None = None) -> Strategy:
        """The paper's strategy with logical accelerator i on server `order[i]` (default: i).

        Raises ValueError for an order of fewer or repeated servers.
        """
        axes = self.axes
        order = range(axes.accelerators) if order is None else order
        if len(set(order)) != axes.accelerators or len(order) != axes.accelerators:
            raise ValueError(
                f"order: {len(order)} servers, {len(set(order))} of them different; {self.name} "
                f"has {axes.accelerators} accelerators"
            )
        placed = []
        for operator, place in zip(self.op_graph.operators, self.places, strict=True):
            rows = range(axes.data) if place.row is None else (place.row,)
            parts = range(axes.operator) if place.part is None else (place.part,)
            servers = tuple(
                order[(place.stage * axes.data + d) * axes.operator + o]
                for d in rows
                for o in parts
            )
            degree: dict[str, Any] = {place.split: axes.operator} if place.split else {}
            placed.append(Placement(operator.name, servers, **degree))
        return tuple(placed)


class _Operators:
    """Operators under construction, with where each goes."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.operators: list[Operator] = []
        self.places: list[_Place] = []

    # parameters: the fields of an operator that differ between these jobs
    def add(
        self,
        name: str,
        place: _Place,
        *,
        seconds: float = 0.0,
        forward: float = _FORWARD,
        reads: Mapping[int, tuple[int, bool]] | None = None,
        flops: int = 0,
        gradient_bytes: int = 0,
        output_bytes: int = 0,
        splits: tuple[Split, ...] = (),
    ) -> int:
        """An operator that takes `seconds` on each of its accelerators; returns its index.

        `forward`: which part of them is the forward pass. `reads`: bytes of the whole batch by
        producer, and whether a gradient of as many goes back.
        """
        whole_s = seconds * (self.axes.operator if place.split else 1)
        shards = self.axes.data if place.row is None else 1
        self.operators.append(
            Operator(
                name=name,
                kind="Workload",
                forward_flops=flops,
                backward_flops=2 * flops,
                parameter_bytes=gradient_bytes,
                parameter_gradient_bytes=gradient_bytes,
                output_bytes=output_bytes,
                saved_bytes=0,
                memory_bytes=0,
                splittable=True,
                operands=tuple(
                    Operand(producer, size, size if returns else 0)
                    for producer, (size, returns) in (reads or {}).items()
                ),
                splits=splits,
                measured=(MeasuredCost(shards, forward * whole_s, (1 - forward) * whole_s),),
            )
        )
        self.places.append(place)
        return len(self.operators) - 1

    def graph(self, name: str, batch_size: int) -> OpGraph:
        return OpGraph(OpGraph.VERSION, name, batch_size, tuple(self.operators)).validate()


def resnet152(data: int = 1024) -> TrainingWorkload:
    """ResNet-152: 10 groups of gradients, an AllReduce for each; 108 ms (V-B2)."""
    axes, groups, compute_s = Axes(data), 10, 0.108
    parameters, made = 60.2e6, _Operators(axes)
    for i in range(groups):
        made.add(
            f"group.{i}",
            _Place(),
            seconds=compute_s / groups,
            reads={i - 1: (_KEPT, True)} if i else {},
            gradient_bytes=round(WORD_BYTES * parameters / groups),
        )
    minibatch = 32_768
    graph = made.graph(f"resnet152:D={data}", minibatch)
    return TrainingWorkload(
        "ResNet-152", axes, minibatch, parameters, 0, compute_s, graph, tuple(made.places)
    )


_CONVOLUTIONS = ((128, 4, 32), (64, 32, 64), (32, 64, 128), (16, 128, 256), (8, 256, 512))
_DENSE = ((4**3 * 512, 128), (128, 64), (64, 4))


def cosmoflow(data: int = 256, operator: int = 4) -> TrainingWorkload:
    """CosmoFlow: volumes cut into `operator` slabs, which exchange one plane with each neighbour
    before every convolution; dense layers gather their input; 44.3 ms (V-B3).

    The slabs are operators of their own, each on the accelerators of its place of the operator
    axis. Layers are those of `models/cosmoflow.py`; each has its share of the computing time by its
    FLOPs, and of V_D by its parameters.
    """
    axes, minibatch, compute_s = Axes(data, 1, operator), 8_192, 0.0443
    made = _Operators(axes)
    parts = range(operator)
    weights = [27 * inputs * outputs + outputs for _, inputs, outputs in _CONVOLUTIONS]
    weights += [inputs * outputs + outputs for inputs, outputs in _DENSE]
    flops = [side**3 * 27 * inputs * outputs for side, inputs, outputs in _CONVOLUTIONS]
    flops += [inputs * outputs for inputs, outputs in _DENSE]
    planes = [side**2 * inputs for side, inputs, _ in _CONVOLUTIONS]
    before = [made.add(f"volumes.{o}", _Place(part=o)) for o in parts]
    for i, (weight, work) in enumerate(zip(weights, flops, strict=True)):
        layer = []
        for o in parts:
            if i < len(planes):  # the input needs no gradient
                size, others = minibatch * WORD_BYTES * planes[i], {o - 1, o + 1}
            else:
                features = _DENSE[i - len(planes)][0] // operator
                size, others = minibatch * WORD_BYTES * features, set(parts)
            reads = {before[o]: (_KEPT, i > 0)}
            reads |= {before[n]: (size, i > 0) for n in parts if n in others - {o}}
            layer.append(
                made.add(
                    f"layer.{i}.{o}",
                    _Place(part=o),
                    seconds=compute_s * work / sum(flops),
                    reads=reads,
                    gradient_bytes=round(WORD_BYTES * weight / operator),
                )
            )
        before = layer
    graph = made.graph(f"cosmoflow:D={data},O={operator}", minibatch)
    return TrainingWorkload(
        "CosmoFlow", axes, minibatch, sum(weights), 0, compute_s, graph, tuple(made.places)
    )


def dlrm(data: int = 128, *, listed_forward: bool = False) -> TrainingWorkload:
    """DLRM: tables on all accelerators, two all-to-alls forward and two back, an AllReduce of the
    dense layers; 95, 209 and 796 us for embedding, interaction and MLPs (V-B4).

    An accelerator sends 1 MB in an all-to-all, its part for itself included. The AllReduce has
    2.96 MB. The text does not say whether its times are those of both passes; with `listed_forward`
    they are those of the forward pass, and the backward pass takes as long for the tables and twice
    as long for the interaction and the MLPs, which are matrix products.
    """
    axes, sent_bytes, reduced_bytes = Axes(data), 1_000_000, 2_960_000
    tables_s, interaction_s, mlp_s = 95e-6, 209e-6, 796e-6
    if listed_forward:
        tables_s /= _FORWARD_OF_TABLES
        interaction_s, mlp_s = interaction_s / _FORWARD, mlp_s / _FORWARD
    made = _Operators(axes)
    tables = [
        made.add(f"tables.{i}.{d}", _Place(row=d), seconds=tables_s / 2, forward=_FORWARD_OF_TABLES)
        for i in range(2)
        for d in range(data)
    ]
    interaction = made.add(
        "interaction",
        _Place(),
        seconds=interaction_s,
        reads=dict.fromkeys(tables, (sent_bytes, True)),
    )
    made.add(
        "mlp",
        _Place(),
        seconds=mlp_s,
        reads={interaction: (_KEPT, True)},
        gradient_bytes=reduced_bytes,
    )
    graph = made.graph(f"dlrm:D={data}", data)
    compute_s = tables_s + interaction_s + mlp_s
    return TrainingWorkload(
        "DLRM", axes, data, reduced_bytes / WORD_BYTES, 0, compute_s, graph, tuple(made.places)
    )


_HIDDEN, _SEQUENCE = 12_288, 2_048
_EXPERTS = 16


def gpt3(pipeline: int = 96, operator: int = 4) -> TrainingWorkload:
    """GPT-3, a layer in each stage: Megatron-LM's AllReduces behind attention and MLP, forward and
    backward; 31.8 ms (V-B5)."""
    return _transformer("GPT-3", Axes(1, pipeline, operator), 31.8e-3, mixture=False)


def gpt3_moe(pipeline: int = 96, operator: int = 4) -> TrainingWorkload:
    """GPT-3 with 16 experts in place of the MLP: two all-to-alls forward and two backward; 49.9 ms
    (V-B5). The experts are on the accelerators of the operator axis, as many on each: with one for
    each of 16, 96 stages would not fit into the small cluster."""
    return _transformer("GPT-3 MoE", Axes(1, pipeline, operator), 49.9e-3, mixture=True)


def _transformer(name: str, axes: Axes, compute_s: float, *, mixture: bool) -> TrainingWorkload:
    """The full pipeline: every stage works on an example of its own, forward and then backward.

    While it does, it sends the activations of one example to the next stage, and the errors of one
    to the stage before; what it receives is for later examples, so nothing waits for that (V-B1,
    figure 14).
    """
    made = _Operators(axes)
    activations = _SEQUENCE * _HIDDEN
    size = WORD_BYTES * activations  # of one example
    attention, mlp = 4 * _HIDDEN**2, 8 * _HIDDEN**2  # parameters
    flops = {part: 2 * _SEQUENCE * part for part in (attention, mlp)}
    seconds = {part: compute_s * part / (attention + mlp) for part in flops}
    for stage in range(axes.pipeline):
        add = _adder(made, axes, stage)
        read = add("input", "attribute", {}, 0, 0.0)
        heads = add("heads", "columns", {read: size}, flops[attention] // 2, seconds[attention] / 2)
        out = add("out", "rows", {heads: size}, flops[attention] // 2, seconds[attention] / 2)
        first = add("sum.1", "attribute", {out: size}, 0, 0.0)
        if mixture:
            last = add("experts", "experts", {first: size}, flops[mlp], seconds[mlp])
        else:
            up = add("up", "columns", {first: size}, flops[mlp] // 2, seconds[mlp] / 2)
            last = add("down", "rows", {up: 4 * size}, flops[mlp] // 2, seconds[mlp] / 2)
        second = add("sum.2", "attribute", {last: size}, 0, 0.0)
        for step, sent in ((1, second), (-1, read)):
            if 0 <= stage + step < axes.pipeline:
                made.add(
                    f"sent.{stage}.{step}",
                    _Place(stage + step, split="attribute"),
                    reads={sent: (size, False)},
                    splits=_SPLITS["attribute"],
                )
    layer = attention + mlp
    graph = made.graph(f"{name}:P={axes.pipeline},O={axes.operator}", axes.data)
    return TrainingWorkload(
        name,
        axes,
        axes.pipeline,
        axes.pipeline * layer,
        activations,
        compute_s,
        graph,
        tuple(made.places),
    )


# What is split takes the same part of its operands, but for columns, which read all features.
_SPLITS: dict[str, tuple[Split, ...]] = {
    "attribute": (Split("attribute", _SEQUENCE, "part"),),
    "columns": (Split("columns", 4 * _HIDDEN, "whole"),),
    "rows": (Split("rows", 4 * _HIDDEN, "part"),),
    "experts": (Split("experts", _EXPERTS, "part"),),
}


def _adder(
    made: _Operators, axes: Axes, stage: int
) -> Callable[[str, str, Mapping[int, int], int, float], int]:
    """What adds an operator of a stage: name, split, bytes by producer, FLOPs, seconds."""

    def add(name: str, split: str, reads: Mapping[int, int], flops: int, seconds: float) -> int:
        return made.add(
            f"{name}.{stage}",
            _Place(stage, split=split),
            seconds=seconds,
            reads={producer: (size, True) for producer, size in reads.items()},
            flops=flops,
            splits=_SPLITS[split],
        )

    return add


WORKLOADS: Mapping[str, Callable[[], TrainingWorkload]] = {
    "ResNet-152": resnet152,
    "CosmoFlow": cosmoflow,
    "DLRM": dlrm,
    "DLRM, forward": partial(dlrm, listed_forward=True),
    "GPT-3": gpt3,
    "GPT-3 MoE": gpt3_moe,
}
