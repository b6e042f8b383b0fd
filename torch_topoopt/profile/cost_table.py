"""Measured costs of operators in a file; they replace estimates in predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.op_graph import MeasuredCost
from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator, OpGraph


@dataclass(frozen=True)
class CostPoint:
    """Seconds of the forward and backward pass of `samples` samples on one accelerator."""

    samples: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class OperatorCost:
    """The costs of the operators whose name is, or matches, `operator` (`*`: any characters).

    With a `kind`, only those of that kind. `points` are in ascending order of samples.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"kind"})

    operator: str
    points: tuple[CostPoint, ...]
    kind: str = ""

    def covers(self, operator: Operator) -> bool:
        return fnmatchcase(operator.name, self.operator) and self.kind in ("", operator.kind)


@dataclass(frozen=True)
class CostTable(Document):
    """Measured costs on one `device` (a description). The first matching entry counts."""

    KIND: ClassVar[str] = "CostTable"
    VERSION: ClassVar[int] = 1

    version: int
    device: str
    costs: tuple[OperatorCost, ...]

    def validate(self) -> Self:
        if not self.costs:
            raise DocumentError("costs: a CostTable needs at least one entry")
        for i, cost in enumerate(self.costs):
            where = f"costs[{i}] ({cost.operator})"
            if not cost.points:
                raise DocumentError(f"{where}.points: needs at least one")
            before = 0
            for j, point in enumerate(cost.points):
                if point.samples <= before:
                    raise DocumentError(
                        f"{where}.points[{j}].samples: {point.samples} is not above {before}"
                    )
                before = point.samples
                for field in ("forward_s", "backward_s"):
                    if getattr(point, field) < 0:
                        raise DocumentError(
                            f"{where}.points[{j}].{field}: {getattr(point, field)} is negative"
                        )
        return self


def with_costs(op_graph: OpGraph, table: CostTable) -> OpGraph:
    """`op_graph` with the measured costs of `table` instead of its own.

    Raises ValueError for an entry that covers no operator.
    """
    for i, cost in enumerate(table.costs):
        if not any(cost.covers(operator) for operator in op_graph.operators):
            kind = f" of kind {cost.kind}" if cost.kind else ""
            raise ValueError(
                f"costs[{i}].operator: {cost.operator!r}{kind} is no operator of {op_graph.model} "
                f"(such as {op_graph.operators[0].name!r})"
            )
    operators = tuple(
        replace(operator, measured=_measured(op_graph, operator, table))
        for operator in op_graph.operators
    )
    return replace(op_graph, operators=operators).validate()


def _measured(op_graph: OpGraph, operator: Operator, table: CostTable) -> tuple[MeasuredCost, ...]:
    for cost in table.costs:
        if cost.covers(operator):
            return tuple(
                MeasuredCost(op_graph.batch_size / p.samples, p.forward_s, p.backward_s)
                for p in reversed(cost.points)
            )
    return ()
