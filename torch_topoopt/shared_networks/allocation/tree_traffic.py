"""The part of a job's traffic that crosses an upper level of the trees between boards.

Every row, and every column, of boards has a tree. Boards in the same run of `boards_per_leaf`
positions share a switch of the lowest level; a byte between two others crosses an upper level. A
byte between boards in different rows and columns passes one tree of each kind (section IV-C).
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.shared_networks.allocation.boards import SubMesh

DEFAULT_BOARDS_PER_LEAF = 16
"""A board has two ports in the tree of a row of accelerators; half of a 64-port switch is 32."""


class TreeBytes(NamedTuple):
    """Bytes that enter a tree, and the part of them that crosses an upper level."""

    entering: float
    upper: float

    @property
    def fraction(self) -> float:
        """The fraction of the bytes entering a tree that crosses an upper level."""
        return self.upper / self.entering if self.entering else 0.0


def all_to_all_bytes(own: SubMesh, boards_per_leaf: int) -> TreeBytes:
    """Traffic of an all-to-all in which every board sends one byte in total, spread evenly."""
    entering = upper = 0.0
    for places in (own.rows, own.columns):
        count = len(places)
        leaves = Counter(place // boards_per_leaf for place in places).values()
        entering += 1 - 1 / count
        upper += 1 - sum(size * size for size in leaves) / (count * count)
    return TreeBytes(own.size * entering, own.size * upper)


def all_reduce_bytes(own: SubMesh, boards_per_leaf: int) -> TreeBytes:
    """Traffic of an AllReduce over two edge-disjoint Hamiltonian cycles of the job's torus (section
    V-A), which use every edge alike: one byte for each edge between two boards."""
    entering = upper = 0
    for places, lines in ((own.rows, len(own.columns)), (own.columns, len(own.rows))):
        for first, second in _neighbours(places):
            entering += lines
            upper += lines * (first // boards_per_leaf != second // boards_per_leaf)
    return TreeBytes(float(entering), float(upper))


def total(every: Iterable[TreeBytes]) -> TreeBytes:
    """The sum of many."""
    listed = list(every)
    return TreeBytes(sum(b.entering for b in listed), sum(b.upper for b in listed))


def _neighbours(places: Sequence[int]) -> list[tuple[int, int]]:
    """Edges of the ring through all places: none for one, and one edge each way for two."""
    return [*pairwise(places), (places[-1], places[0])] if len(places) > 1 else []
