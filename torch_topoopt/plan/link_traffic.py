"""Traffic of a run on its links: counted in C++, written by ranks, read by the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.network import Link
from torch_topoopt.plan.rank_work import RankWork  # noqa: TC001 - read with the fields of a document


@dataclass(frozen=True)
class LinkTraffic:
    """Traffic of one directed link, counted at its source.

    `sent_bytes` is payload; `relayed_bytes` of it were for other servers. `overhead_bytes` are
    headers and control frames. `received_bytes` arrived on the same cable. `seconds` is the time
    with data to send. `iteration_bytes` were sent in one training iteration (None: not measured).
    Links inside a server connect ranks and have ports -1. Of zero-copy sends, the kernel sent
    `zero_copy_bytes` without a copy and still copied `copied_bytes`.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"kind", "zero_copy_bytes", "copied_bytes"})
    JSON_FIELDS: ClassVar = (
        "source", "source_port", "target", "target_port", "sent_bytes", "relayed_bytes",
        "received_bytes", "overhead_bytes", "seconds", "iteration_bytes", "zero_copy_bytes",
        "copied_bytes",
    )  # fmt: skip

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
        """The corresponding link of the plan."""
        return Link(self.source, self.source_port, self.target, self.target_port)

    def __add__(self, other: LinkTraffic) -> LinkTraffic:
        """The sum of both; `iteration_bytes` is None."""
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
        """Returns self; raises DocumentError for impossible numbers."""
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


# the fewest measured iterations to compare: fewer vary too much
FEWEST_COMPARED = 10


@dataclass(frozen=True)
class IterationTimes:
    """`count` measured training iterations of `seconds` each. The first ended at `first_ended_s`
    since the epoch; the time before is start-up."""

    count: int
    seconds: float
    first_ended_s: float | None = None


@dataclass(frozen=True)
class RankTraffic(Document):
    """The file of one rank: the links from its server if it is the leader, the measured work of an
    iteration, and the number of iterations that ended."""

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
