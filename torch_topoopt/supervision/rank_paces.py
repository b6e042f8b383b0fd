"""How fast each rank of a running job trains, as it notes about once a second beside its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from torch_topoopt.supervision.job_files import JobFolder


@dataclass(frozen=True)
class RankPace(Document):
    """Up to `iteration`, an iteration of the last second took `step_s`. For `own_s` of it the
    thread that trains ran or waited for a processor; for the rest it slept, mostly in operations.
    None: not known, as on an accelerator."""

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
    """None where the rank has noted none. Raises DocumentError."""
    try:
        return RankPace.load(job.pace(rank))
    except FileNotFoundError:
        return None
