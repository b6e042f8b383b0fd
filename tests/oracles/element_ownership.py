"""Owners and users of every element of a tensor, cell by cell: the slow truth about transfers.

A tensor is a grid of cells over its axes (samples, features, positions, tokens by the expert that
they come from, tokens by the expert that they go to), fine enough that no shard cuts a cell.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator
    from torch_topoopt.plan import Placement


def shards(placement: Placement) -> list[tuple[int, int, int]]:
    """(sample part, parameter part, attribute part) of each server of `placement`, in order."""
    return list(
        itertools.product(
            range(placement.sample), range(placement.parameter), range(placement.attribute)
        )
    )


def _covers(part: int, parts: int, cell: int, cells: int) -> bool:
    return cell * parts // cells == part


def element_needs(operator: Operator, consumer: Placement) -> tuple[object, ...]:
    """Per shard of `operator`: its server and what it needs of a tensor, an interval of each axis.

    These are samples, features, positions, and tokens by the expert that they go to.
    """
    everything = (Fraction(0), Fraction(1))

    def part(index: int, parts: int, dimension: str | None) -> tuple[Fraction, Fraction]:
        split = operator.split(dimension) if dimension else None  # type: ignore[arg-type]
        if split is not None and split.operands == "whole":
            return everything
        return Fraction(index, parts), Fraction(index + 1, parts)

    kind = consumer.parameter_kind
    needs = []
    for server, (i, j, k) in zip(consumer.servers, shards(consumer), strict=True):
        mine = part(j, consumer.parameter, kind)
        needs.append(
            (
                server,
                part(i, consumer.sample, None),
                everything if kind == "experts" else mine,
                part(k, consumer.attribute, "attribute"),
                mine if kind == "experts" else everything,
            )
        )
    return tuple(needs)


def element_transfers(
    operator: Operator, producer: Placement, consumer: Placement
) -> dict[tuple[int, int], Fraction]:
    """(shard of `producer`, shard of `consumer`) -> the part of the tensor that goes between them.

    Every holder of a cell gives it to every shard of `operator` that needs it; several hold one
    only as partial sums.
    """

    def whole(dimension: str | None) -> bool:
        split = operator.split(dimension) if dimension else None  # type: ignore[arg-type]
        return split is not None and split.operands == "whole"

    made, used = producer.parameter_kind, consumer.parameter_kind
    takes = None if whole(used) else used
    positions = not whole("attribute")
    sizes = (
        math.lcm(producer.sample, consumer.sample),
        math.lcm(
            producer.parameter if made == "columns" else 1,
            consumer.parameter if takes in ("columns", "rows") else 1,
        ),
        math.lcm(producer.attribute, consumer.attribute if positions else 1),
        producer.parameter if made == "experts" else 1,
        consumer.parameter if takes == "experts" else 1,
    )
    cell_size = Fraction(1, math.prod(sizes))
    moved: dict[tuple[int, int], Fraction] = {}
    for sample, feature, position, source_expert, target_expert in itertools.product(
        *map(range, sizes)
    ):
        holders = [
            shard
            for shard, (i, j, k) in enumerate(shards(producer))
            if _covers(i, producer.sample, sample, sizes[0])
            and _covers(k, producer.attribute, position, sizes[2])
            and (made != "columns" or _covers(j, producer.parameter, feature, sizes[1]))
            and (made != "experts" or j == source_expert)
        ]
        needers = [
            shard
            for shard, (i, j, k) in enumerate(shards(consumer))
            if _covers(i, consumer.sample, sample, sizes[0])
            and (not positions or _covers(k, consumer.attribute, position, sizes[2]))
            and (
                takes not in ("columns", "rows")
                or _covers(j, consumer.parameter, feature, sizes[1])
            )
            and (takes != "experts" or j == target_expert)
        ]
        for pair in itertools.product(holders, needers):
            moved[pair] = moved.get(pair, Fraction(0)) + cell_size
    return moved
