"""Finds the ranges of a layer's features that different operators read.

A joint projection makes the features of queries, keys and values one after the other, or those of
each head together. Parts of the layer need the corresponding parts of each range.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.profile.tracing.split_dimensions import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.profile.tracing.records import Read, TracedOperator


class _Features(NamedTuple):
    """Features begin..end - 1. Blocks of heads, if there are several, take up `blocks` of them."""

    begin: int
    end: int
    blocks: int


def feature_sections(operators: Sequence[TracedOperator]) -> dict[int, tuple[int, ...]]:
    """The sizes of the ranges, by index of the operator that makes the features last.

    Operators whose readers all read all features are left out. Ranges that a view mixes are one,
    if each head has its own block of it; else there are none, and the features have no parts.
    """
    read: list[set[_Features]] = [set() for _ in operators]
    for operator in reversed(operators):
        for (_, offset, _), one in operator.reads.items():
            made = one.producer
            if made is None or len(made.shapes) != 1 or len(made.shapes[0]) not in (2, 3):
                continue
            if not one.size_bytes:
                continue
            whole = made.shapes[0][-1]
            found = _features(one, offset, whole)
            if found[:2] == (0, whole) and is_elementwise(operator):
                read[made.index] |= read[operator.index]
            else:
                read[made.index].add(found)
    sections: dict[int, tuple[int, ...]] = {}
    for operator, its in zip(operators, read, strict=True):
        if any(one[:2] != (0, operator.shapes[0][-1]) for one in its):
            sections[operator.index] = _sections(its, operator.shapes[0][-1])
    return sections


def _features(read: Read, offset: int, whole: int) -> _Features:
    inner = [(n, s) for n, s in zip(read.shape, read.strides, strict=True) if n > 1 and s < whole]
    begin = offset % whole
    end = begin + 1 + sum((n - 1) * s for n, s in inner)
    stride, count = max(((s, n) for n, s in inner), default=(0, 0))
    return _Features(begin, end, stride * count if stride > 1 else 0)


def _sections(read: Iterable[_Features], whole: int) -> tuple[int, ...]:
    """Empty if equal parts of the ranges have no corresponding parts of all that is read."""
    ranges: list[list[_Features]] = []
    end = 0
    for one in sorted(read):
        if one.begin >= end:
            ranges.append([])
        ranges[-1].append(one)
        end = max(end, one.end)
    if end > whole or not all(map(_has_parts, ranges)):
        return ()
    bounds = {0, whole, *(its[0].begin for its in ranges), *(_end(its) for its in ranges)}
    return tuple(b - a for a, b in itertools.pairwise(sorted(bounds)))


def _end(its: Sequence[_Features]) -> int:
    return max(one.end for one in its)


def _has_parts(its: Sequence[_Features]) -> bool:
    """Whether one range is all that is read of it, or each head has a block of its own."""
    size = _end(its) - its[0].begin
    alike = len({(one.begin, one.end) for one in its}) == 1
    return all(one.blocks == size if one.blocks else alike for one in its)
