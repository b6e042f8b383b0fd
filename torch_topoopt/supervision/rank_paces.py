"""The pace of each rank of a running job, which it writes about once a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from torch_topoopt.supervision.job_files import JobFolder


@dataclass(frozen=True)
class RankPace(Document):
    """The last iteration's number, and the time `step_s` of one in the last second. For `own_s` the
    training thread ran or waited for a processor; else it slept, mostly in operations. None: not
    known, as on an accelerator."""

    KIND: ClassVar[str] = "RankPace"
    VERSION: ClassVar[int] = 1

    version: int
    rank: int
    iteration: int
    step_s: float
    own_s: float | None

    def validate(self) -> Self:
        for name in ("step_s", "own_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise DocumentError(f"{name}: {value} is below 0")
        return self


def read_pace(job: JobFolder, rank: int) -> RankPace | None:
    """The pace of a rank; None if it wrote none. Raises DocumentError."""
    try:
        return RankPace.load(job.pace(rank))
    except FileNotFoundError:
        return None
