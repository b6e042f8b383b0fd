"""CommunicationTrace: the collectives of a training script, rank by rank and in order.

Written by `topoopt profile SCRIPT --world-size N -o FILE`. One call per line of the file. Ranks are
global ranks. `size_bytes` is what one rank hands over or receives, whichever is larger:

- AllReduce, Broadcast, Reduce: the tensor.
- AllGather: the gathered tensor. ReduceScatter: the tensor before it is reduced and scattered.
- Gather, Scatter: the part of one rank.
- AllToAll: all that this rank sends, its own part included.
- Send, Recv: the tensor.
- Barrier: 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError

Operation = Literal[
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "Gather",
    "Scatter",
    "AllToAll",
    "Send",
    "Recv",
    "Barrier",
]
Phase = Literal["setup", "forward", "backward", "optimizer"]

WITH_PEER = ("Broadcast", "Reduce", "Gather", "Scatter", "Send", "Recv")


@dataclass(frozen=True)
class CollectiveCall:
    """One call of one rank.

    `phase` is "setup" before the first forward pass; "forward" is whatever is neither in the
    backward pass nor in an optimizer's step. `peer` is the root of a Broadcast, Reduce, Gather or
    Scatter, and the other side of a Send or Recv (None: any). `part_bytes` is what an AllToAll
    sends to each rank of `group`, in its order.
    """

    rank: int
    iteration: int
    phase: Phase
    operation: Operation
    size_bytes: int
    group: tuple[int, ...]
    peer: int | None = None
    part_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class CommunicationTrace(Document):
    """The calls of `ranks` of a world of `world_size` in `iterations` iterations of `script`.

    Calls come by rank, and within a rank in the order in which they were made. The last `period`
    iterations repeat in training: their mean is the demand.
    """

    KIND: ClassVar[str] = "CommunicationTrace"
    VERSION: ClassVar[int] = 1

    version: int
    script: str
    arguments: tuple[str, ...]
    world_size: int
    ranks: tuple[int, ...]
    iterations: int
    calls: tuple[CollectiveCall, ...]
    period: int = 1

    @property
    def repeated(self) -> tuple[CollectiveCall, ...]:
        """The calls of the last `period` iterations."""
        first = self.iterations - self.period
        return tuple(call for call in self.calls if call.iteration >= first)

    def per_iteration(self, total_bytes: int) -> int:
        """Of a sum over the repeated iterations, rounded up."""
        return -(-total_bytes // self.period)

    def validate(self) -> Self:
        if self.world_size < 2:
            raise DocumentError(f"world_size: {self.world_size} is not at least 2")
        if self.iterations < 1:
            raise DocumentError(f"iterations: {self.iterations} is not at least 1")
        if not 1 <= self.period <= self.iterations:
            raise DocumentError(
                f"period: {self.period} is not between 1 and the {self.iterations} iterations"
            )
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)):
            raise DocumentError(
                f"ranks: {list(self.ranks)} is not an ascending list of distinct ranks"
            )
        for i, rank in enumerate(self.ranks):
            self._check_rank(f"ranks[{i}]", rank)
        for i, call in enumerate(self.calls):
            self._check_call(f"calls[{i}]", call)
        return self

    def _check_rank(self, where: str, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise DocumentError(f"{where}: {rank} is not a rank of a world of {self.world_size}")

    def _check_call(self, where: str, call: CollectiveCall) -> None:
        if call.rank not in self.ranks:
            raise DocumentError(f"{where}.rank: {call.rank} is not one of the ranks of this trace")
        if not 0 <= call.iteration < self.iterations:
            raise DocumentError(
                f"{where}.iteration: {call.iteration} is not below {self.iterations}"
            )
        if call.size_bytes < 0:
            raise DocumentError(f"{where}.size_bytes: {call.size_bytes} is negative")
        for rank in call.group:
            self._check_rank(f"{where}.group", rank)
        if len(set(call.group)) != len(call.group) or call.rank not in call.group:
            raise DocumentError(
                f"{where}.group: expected distinct ranks, {call.rank} among them, "
                f"got {list(call.group)}"
            )
        if call.peer is not None and call.peer not in call.group:
            raise DocumentError(f"{where}.peer: {call.peer} is not in the group")
        if call.peer is None and call.operation in WITH_PEER and call.operation != "Recv":
            raise DocumentError(f"{where}.peer: missing; {call.operation} has one")
        parts = call.part_bytes
        if call.operation == "AllToAll":
            if len(parts) != len(call.group) or min(parts, default=0) < 0:
                raise DocumentError(f"{where}.part_bytes: expected one size per rank of the group")
            if sum(parts) != call.size_bytes:
                raise DocumentError(f"{where}.part_bytes: {sum(parts)} in sum, not size_bytes")
        elif parts:
            raise DocumentError(f"{where}.part_bytes: only an AllToAll has them")
