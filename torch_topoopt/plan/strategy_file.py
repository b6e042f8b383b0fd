"""A strategy as a document, which `topoopt plan --strategy` reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.placement import Placement, validate_placement


@dataclass(frozen=True)
class StrategyFile(Document):
    """The splits of the operators of `model` over `servers` servers, in their order."""

    KIND: ClassVar[str] = "Strategy"
    VERSION: ClassVar[int] = 1
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"micro_batches"})

    version: int
    model: str
    batch_size: int
    servers: int
    strategy: tuple[Placement, ...]
    micro_batches: int = 1

    def validate(self) -> Self:
        for name, value in (("batch_size", self.batch_size), ("servers", self.servers)):
            if value < 1:
                raise DocumentError(f"{name}: {value} is not at least 1")
        if not self.strategy:
            raise DocumentError("strategy: it places no operators")
        placed: set[str] = set()
        for i, placement in enumerate(self.strategy):
            where = f"strategy[{i}]"
            if not placement.operator or placement.operator in placed:
                raise DocumentError(
                    f"{where}.operator: {placement.operator!r} is empty or placed twice"
                )
            placed.add(placement.operator)
            validate_placement(where, placement, self.servers)
        if self.micro_batches < 1 or self.batch_size % self.micro_batches:
            raise DocumentError(
                f"micro_batches: {self.micro_batches} does not divide the batch of "
                f"{self.batch_size}"
            )
        return self
