"""The parts of a tensor that every rank has and needs: parts of samples and of features.

Features are the last dimension. A shard (i, j) of a placement, sample part i and parameter part j,
is on its rank number i * parts + j. With one rank per server, ranks are the servers of a placement;
with several, they divide the samples of their server (`on_ranks`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["whole", "part", "sum"]
Interval = tuple[int, int]


@dataclass(frozen=True)
class TensorLayout:
    """Samples are shared evenly by `len(ranks) // parts` rows of ranks, of `parts` each.

    `kind` is the content of the ranks of a row: all features ("whole"), a part of the features each
    ("part"), or a tensor of all features each, to be summed up ("sum").
    """

    ranks: tuple[int, ...]
    parts: int = 1
    kind: Kind = "whole"

    @property
    def samples(self) -> int:
        """The number of parts that the samples are in."""
        return len(self.ranks) // self.parts

    @property
    def features(self) -> int:
        """The number of parts that the features are in."""
        return self.parts if self.kind == "part" else 1

    def region(self, index: int) -> tuple[int, int]:
        """The sample part and the feature part of rank number `index`."""
        row, part = divmod(index, self.parts)
        return row, part if self.kind == "part" else 0


def made_by(placement: Placement) -> TensorLayout:
    """The layout of the result of an operator with that placement."""
    kind: dict[str | None, Kind] = {"columns": "part", "rows": "sum"}
    return TensorLayout(
        placement.servers, placement.parameter, kind.get(placement.parameter_kind, "whole")
    )


def read_by(placement: Placement, *, whole: bool) -> TensorLayout:
    """The layout of the operands of such an operator. Each of its parameter parts needs the `whole`
    of the features, or the corresponding part."""
    parts = placement.parameter
    return TensorLayout(placement.servers, parts, "whole" if whole or parts == 1 else "part")


def on_ranks(strategy: Sequence[Placement], per_server: int) -> tuple[Placement, ...]:
    """The same for the ranks of servers that have `per_server` each, which share its samples.

    Rank a of server s is number s * per_server + a.
    """
    if per_server == 1:
        return tuple(strategy)
    return tuple(_on_ranks(placement, per_server) for placement in strategy)


def _on_ranks(placement: Placement, per_server: int) -> Placement:
    inner = placement.parameter * placement.attribute
    rows = [
        placement.servers[first : first + inner]
        for first in range(0, len(placement.servers), inner)
    ]
    ranks = tuple(s * per_server + a for row in rows for a in range(per_server) for s in row)
    return Placement.of(placement.operator, ranks, placement.degrees)


@dataclass(frozen=True)
class Overlap:
    """A region that shard `source` of one layout has and shard `target` of another needs.

    `rows` are units of 1 / `Grid.rows` of all samples, `columns` of 1 / `Grid.columns` of all
    features, counted from the beginning of the tensor.
    """

    source: int
    target: int
    rows: Interval
    columns: Interval


@dataclass(frozen=True)
class Grid:
    """The units in which regions of two layouts have integer bounds."""

    rows: int
    columns: int

    @classmethod
    def of(cls, a: TensorLayout, b: TensorLayout) -> Grid:
        """The grid of these two layouts."""
        return cls(math.lcm(a.samples, b.samples), math.lcm(a.features, b.features))

    def region(self, layout: TensorLayout, index: int) -> tuple[Interval, Interval]:
        """The rows and the columns of a shard."""
        row, part = layout.region(index)
        height, width = self.rows // layout.samples, self.columns // layout.features
        return (row * height, (row + 1) * height), (part * width, (part + 1) * width)

    def overlaps(self, source: TensorLayout, target: TensorLayout) -> Iterator[Overlap]:
        """All shards."""
        for i in range(len(source.ranks)):
            rows, columns = self.region(source, i)
            for j in range(len(target.ranks)):
                other_rows, other_columns = self.region(target, j)
                high = max(rows[0], other_rows[0]), min(rows[1], other_rows[1])
                wide = max(columns[0], other_columns[0]), min(columns[1], other_columns[1])
                if high[0] < high[1] and wide[0] < wide[1]:
                    yield Overlap(i, j, high, wide)
