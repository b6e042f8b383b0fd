"""Recorded iterations of a run (`topoopt run --timeline FIRST:END`).

Each rank writes `timeline/rank-N.json`, a RankTimeline, and `timeline/rank_N`, the flight
recorder's dump with the begin and end of each call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.plan import Link  # noqa: TC001 - read with the fields of RankTimeline
from torch_topoopt.plan.codec import Document, DocumentError, brief
from torch_topoopt.supervision.dumps import Dump, read_dump

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "timeline"
TIMELINE_VARIABLE = "TOPOOPT_TIMELINE"
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})")
_MOST = 1000  # iterations


def parse_range(text: str) -> tuple[int, int]:
    """ "10:18" as (10, 18): iterations 10 to 17. Raises ValueError."""
    found = _RANGE.fullmatch(text)
    first, end = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first < end <= first + _MOST:
        raise ValueError(
            f"{text!r} is not FIRST:END with 1 <= FIRST < END <= FIRST + {_MOST}, such as 10:18"
        )
    return first, end


@dataclass(frozen=True)
class LinkSample:
    """The total bytes sent on each of the rank's links, `time_ns` after the epoch."""

    time_ns: int
    sent_bytes: tuple[int, ...]


@dataclass(frozen=True)
class RankTimeline(Document):
    """Iterations of one rank from number `first` on, counted from 0. `ends_ns` has the end of the
    iteration before and of each recorded one; `backward_ns` the calls of backward() between them.
    Times are nanoseconds after the epoch, by the clock of the rank's host."""

    KIND: ClassVar[str] = "RankTimeline"
    VERSION: ClassVar[int] = 1

    version: int
    rank: int
    server: int
    first: int
    ends_ns: tuple[int, ...]
    backward_ns: tuple[tuple[int, int], ...]
    links: tuple[Link, ...]
    samples: tuple[LinkSample, ...]

    def validate(self) -> Self:
        if len(self.ends_ns) < 2 or any(b < a for a, b in pairwise(self.ends_ns)):
            raise DocumentError(f"ends_ns: {brief(self.ends_ns)} are not two or more in order")
        for i, sample in enumerate(self.samples):
            if len(sample.sent_bytes) != len(self.links):
                raise DocumentError(
                    f"samples[{i}].sent_bytes: {len(sample.sent_bytes)} numbers for "
                    f"{len(self.links)} links"
                )
        return self


def read_timelines(run: Path) -> list[tuple[RankTimeline, Dump | None]]:
    """Rank -> its timeline, for all files in a run folder. Raises DocumentError."""
    found = []
    for path in sorted((run / FOLDER).glob("rank-*.json")):
        timeline = RankTimeline.load(path)
        dump = path.with_name(f"rank_{timeline.rank}")
        found.append((timeline, read_dump(dump) if dump.is_file() else None))
    return sorted(found, key=lambda pair: pair[0].rank)
