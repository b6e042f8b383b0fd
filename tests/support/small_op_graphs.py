"""Hand-written OpGraphs, small enough to reason about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.op_graph import (
    GradientBuckets,
    MeasuredStep,
    Operand,
    Operator,
    OpGraph,
    RepeatedLayer,
    Split,
)
from torch_topoopt.plan import Degrees, Placement

if TYPE_CHECKING:
    import random

    from torch_topoopt.op_graph import SplitDimension


def operator(
    name: str,
    *operands: tuple[int, int, int] | tuple[int, int, int, int],
    flops: int = 0,
    backward_flops: int | None = None,
    parameters: int = 0,
    output: int = 0,
    memory: int = 0,
    splittable: bool = True,
    splits: tuple[Split, ...] = (),
) -> Operator:
    """An operator with `parameters` bytes of trainable parameters and operands of (producer, bytes,
    gradient) or, where others read the same tensor, (producer, bytes, gradient, tensor)."""
    return Operator(
        name=name,
        kind="test",
        forward_flops=flops,
        backward_flops=2 * flops if backward_flops is None else backward_flops,
        parameter_bytes=parameters,
        parameter_gradient_bytes=parameters,
        output_bytes=output,
        saved_bytes=output,
        memory_bytes=memory,
        splittable=splittable,
        operands=tuple(Operand(*operand) for operand in operands),
        splits=splits,
    )


def graph(*operators: Operator, batch_size: int = 64, model: str = "test") -> OpGraph:
    return OpGraph(OpGraph.VERSION, model, batch_size, tuple(operators)).validate()


def one_all_reduce(size_bytes: int) -> OpGraph:
    """No computing, one AllReduce."""
    return graph(operator("weights", parameters=size_bytes))


def chain(
    length: int, *, flops: int = 10**9, parameters: int = 10**6, output: int = 10**6
) -> OpGraph:
    """Equal operators one after the other."""
    return graph(
        *(
            operator(
                f"layer{i}",
                *([(i - 1, output, output)] if i else []),
                flops=flops,
                parameters=parameters,
                output=output,
            )
            for i in range(length)
        ),
        model="chain",
    )


def decoder(
    blocks: int, *, batch_size: int = 16, parameters: int = 10**8, output: int = 10**7
) -> OpGraph:
    """A table, equal blocks of a norm, attention and its two products, and an output layer.

    A product has `parameters` bytes, a tensor `output`; products and attention split by columns and
    rows, everything by positions.
    """
    columns, rows = Split("columns", 64, "whole"), Split("rows", 64, "part")
    own, whole = Split("attribute", 64, "part"), Split("attribute", 64, "whole")
    flops = 10**13
    operators = [operator("table", output=output, parameters=parameters, splits=(rows, own))]
    starts = []
    for i in range(blocks):
        at = len(operators)
        starts.append(at)
        read = (at, output, output, 1)
        operators += [
            operator(f"norm{i}", (at - 1, output, output), output=output, splits=(own,)),
            operator(
                f"in{i}", read, flops=flops, parameters=parameters, output=3 * output,
                splits=(columns, own),
            ),
            replace(
                operator(
                    f"heads{i}", *((at + 1, output, output, part) for part in (1, 2, 3)),
                    flops=flops, output=output,
                    splits=(Split("columns", 64, "part"), whole),
                ),
                kind="scaled_dot_product_attention",
            ),
            operator(
                f"out{i}", (at + 2, output, output), flops=flops, parameters=parameters,
                output=output, splits=(rows, own),
            ),
        ]  # fmt: skip
    last = (len(operators) - 1, output, output)
    operators.append(
        operator("head", last, flops=flops, parameters=parameters, output=output, splits=(own,))
    )
    made = graph(*operators, batch_size=batch_size, model="decoder")
    layers = (RepeatedLayer("Block", 4, tuple(starts)),) if blocks > 1 else ()
    return replace(made, layers=layers).validate()


def embeddings(tables: int, *, table_bytes: int = 10**9, rows_bytes: int = 10**5) -> OpGraph:
    """The shape of DLRM: a bottom layer and large tables meet in a layer, then one more."""
    bottom = operator("bottom", flops=10**8, parameters=10**5, output=rows_bytes)
    looked_up = [
        operator(f"table{t}", flops=10**6, parameters=table_bytes, output=rows_bytes)
        for t in range(tables)
    ]
    operands = [(i, rows_bytes, rows_bytes) for i in range(tables + 1)]
    width = rows_bytes * (tables + 1)
    meet = operator("meet", *operands, flops=10**6, output=width)
    top = operator("top", (tables + 1, width, width), flops=10**9, parameters=10**5, output=64)
    return graph(bottom, *looked_up, meet, top, model="embeddings")


def random_buckets(rng: random.Random, op_graph: OpGraph) -> OpGraph:
    """Gradients in buckets of a few operators each, and something to do beside operators."""
    most = max(1, op_graph.parameter_gradient_bytes)
    rule = GradientBuckets(rng.randint(1, most), rng.randint(1, most))
    steps = [None, MeasuredStep(1e-3, 0.5, 2.0), MeasuredStep(1e-3, 0.5, 2.0, rng.uniform(0.5, 4))]
    step = rng.choice(steps)
    return replace(op_graph, gradient_buckets=rule, measured_step=step).validate()


def random_splits(rng: random.Random) -> tuple[Split, ...]:
    """Some of the dimensions, each into any number of parts up to 8."""
    dimensions: list[SplitDimension] = ["columns", "rows", "experts", "attribute"]
    return tuple(
        Split(dimension, 840, rng.choice(["whole", "part"]))
        for dimension in dimensions
        if rng.random() < 0.6
    )


def random_placement(rng: random.Random, operator: Operator, servers: int) -> Placement:
    """Any split that `operator` allows, on any servers in any order."""
    split = rng.choice([None, *(s for s in operator.splits if s.dimension != "attribute")])
    parameter = rng.randint(1, servers) if split else 1
    attribute = rng.randint(1, servers // parameter) if operator.split("attribute") else 1
    sample = rng.randint(1, servers // (parameter * attribute))
    chosen = tuple(rng.sample(range(servers), sample * parameter * attribute))
    kind = split.dimension if split and parameter > 1 else None
    return Placement.of(operator.name, chosen, Degrees(sample, kind, parameter, attribute))  # type: ignore[arg-type]


def random_hybrid_strategy(
    rng: random.Random, op_graph: OpGraph, servers: int
) -> tuple[Placement, ...]:
    """Each operator anyhow, or as the operator before it where that is allowed."""
    placements: list[Placement] = []
    for op in op_graph.operators:
        last = placements[-1] if placements else None
        if last and rng.random() < 0.5:
            kind = last.parameter_kind
            if (kind is None or op.split(kind)) and (last.attribute == 1 or op.split("attribute")):
                placements.append(replace(last, operator=op.name))
                continue
        placements.append(random_placement(rng, op, servers))
    return tuple(placements)


def random_graph(
    rng: random.Random, operators: int, *, splits: bool = False, shared: bool = True
) -> OpGraph:
    """A connected graph of random sizes; some gradients and some parameters are missing.

    `shared`: some tensors are read by several operators.
    """
    made = []
    numbered: dict[int, list[tuple[int, int]]] = {}  # per operator: tensors that others may read
    for i in range(operators):
        operands = []
        for producer in sorted(rng.sample(range(i), min(i, rng.randint(1, 2)))):
            size, gradient = rng.randrange(0, 10**7), rng.choice([0, rng.randrange(1, 10**7)])
            known = numbered.setdefault(producer, [])
            if not shared:
                operands.append((producer, size, gradient))
            elif known and rng.random() < 0.7:
                tensor = rng.randrange(len(known))
                size, gradient = known[tensor]
                operands.append((producer, size, rng.choice([0, gradient]), tensor + 1))
            elif rng.random() < 0.7:
                known.append((size, gradient))
                operands.append((producer, size, gradient, len(known)))
            else:
                operands.append((producer, size, gradient, 0))
        made.append(
            operator(
                f"op{i}",
                *operands,
                flops=rng.randrange(0, 10**9),
                parameters=rng.choice([0, rng.randrange(1, 10**7)]),
                output=rng.randrange(0, 10**6),
                memory=rng.randrange(0, 10**6),
                splits=random_splits(rng) if splits else (),
            )
        )
    return graph(*made, model="random")


def random_strategy(rng: random.Random, op_graph: OpGraph, servers: int) -> tuple[Placement, ...]:
    """Each operator on a random set, or on that of the operator before it."""
    placements: list[Placement] = []
    for i, op in enumerate(op_graph.operators):
        if i and rng.random() < 0.5:
            chosen = placements[-1].servers
        else:
            chosen = tuple(sorted(rng.sample(range(servers), rng.randint(1, servers))))
        placements.append(Placement(op.name, chosen))
    return tuple(placements)
