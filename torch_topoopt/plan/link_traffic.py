"""What a run has sent over its links: counted in C++, written by ranks, read by the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.network import Link
from torch_topoopt.plan.rank_work import RankWork  # noqa: TC001 - read with the fields of a document


@dataclass(frozen=True)
class LinkTraffic:
    """What one directed link has carried, counted at its source.

    Of `sent_bytes` of payload, `relayed_bytes` were for other servers; `overhead_bytes` (headers
    and control frames) come on top. `received_bytes` came back on the same cable. For `seconds` the
    link had something to send. `iteration_bytes` were sent in one training iteration; None where
    that was not measured. Links inside a server join ranks: their ports are -1. Of what was sent
    without copy, the system took `zero_copy_bytes` so, and copied `copied_bytes` all the same.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"kind", "zero_copy_bytes", "copied_bytes"})

    source: int
    source_port: int
    target: int
    target_port: int
    sent_bytes: int
    relayed_bytes: int
    received_bytes: int = 0
    overhead_bytes: int = 0
    seconds: float = 0.0
    iteration_bytes: float | None = None
    kind: Literal["socket", "shm", "fabric"] = "socket"
    zero_copy_bytes: int = 0
    copied_bytes: int = 0

    @property
    def link(self) -> Link:
        """The link of the plan that this is."""
        return Link(self.source, self.source_port, self.target, self.target_port)

    def __add__(self, other: LinkTraffic) -> LinkTraffic:
        """Both together, without `iteration_bytes`."""
        return LinkTraffic(
            self.source,
            self.source_port,
            self.target,
            self.target_port,
            self.sent_bytes + other.sent_bytes,
            self.relayed_bytes + other.relayed_bytes,
            self.received_bytes + other.received_bytes,
            self.overhead_bytes + other.overhead_bytes,
            self.seconds + other.seconds,
        )

    def validate(self, where: str = "") -> Self:
        """Returns self, or raises DocumentError for numbers that cannot be."""
        for name in ("sent_bytes", "relayed_bytes", "received_bytes", "overhead_bytes", "seconds"):
            if getattr(self, name) < 0:
                raise DocumentError(f"{where}{name}: {getattr(self, name)} is below 0")
        if self.relayed_bytes > self.sent_bytes:
            raise DocumentError(
                f"{where}relayed_bytes: {self.relayed_bytes} is more than {self.sent_bytes}, the "
                "sent_bytes it is part of"
            )
        if self.iteration_bytes is not None and self.iteration_bytes < 0:
            raise DocumentError(f"{where}iteration_bytes: {self.iteration_bytes} is below 0")
        return self


# of the measured iterations: fewer say little of what one takes
FEWEST_COMPARED = 10


@dataclass(frozen=True)
class IterationTimes:
    """`count` training iterations were measured; one takes `seconds`. The first had ended at
    `first_ended_s` since the epoch: what came before is start-up."""

    count: int
    seconds: float
    first_ended_s: float | None = None


@dataclass(frozen=True)
class RankTraffic(Document):
    """The file of one rank: every link whose source is its server, if it leads it; else none. And
    what an iteration was to it, where that was measured, and how many had ended."""

    KIND: ClassVar[str] = "RankTraffic"
    VERSION: ClassVar[int] = 2

    version: int
    rank: int
    server: int
    links: tuple[LinkTraffic, ...]
    iterations: IterationTimes | None = None
    work: RankWork | None = None
    ended_iterations: int = 0

    def validate(self) -> Self:
        if self.ended_iterations < 0:
            raise DocumentError(f"ended_iterations: {self.ended_iterations} is below 0")
        for i, traffic in enumerate(self.links):
            if traffic.source != self.server:
                raise DocumentError(
                    f"links[{i}].source: {traffic.source} is not server {self.server}"
                )
            traffic.validate(f"links[{i}].")
        return self
