"""Stages of a pipeline that fit into memory where stages of equal times do not.

The first stage keeps the activations of most micro-batches, and the last one has the output layer.
"""

from __future__ import annotations

import bisect
import itertools
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.stages import at_least_bound

if TYPE_CHECKING:
    from collections.abc import Sequence


_HALVINGS = 20  # of the bound on the longest stage


class CellMemory(NamedTuple):
    """Bytes of a cell: `state` of its parameters, `kept` of each micro-batch under way, and `again`
    while it is computed again."""

    state: float
    kept: float
    again: float


def cells_within(
    seconds: Sequence[float],
    memory: Sequence[CellMemory],
    kept: Sequence[float],
    room: Sequence[float],
) -> tuple[int, ...] | None:
    """The number of cells of each stage, for the least time of the longest; None if none fits.

    Stage i keeps `kept[i]` micro-batches, and has `room[i]` bytes for its cells.
    """
    sums = _Sums(
        list(itertools.accumulate(seconds, initial=0.0)),
        list(itertools.accumulate((one.state for one in memory), initial=0.0)),
        list(itertools.accumulate((one.kept for one in memory), initial=0.0)),
    )
    within = partial(_stages_within, sums=sums, kept=kept, room=room)
    longest_s = sums.seconds[-1]
    return at_least_bound(within, longest_s / len(kept), longest_s, _HALVINGS)


class _Sums(NamedTuple):
    """Of the cells before each one."""

    seconds: list[float]
    state: list[float]
    kept: list[float]


def _stages_within(
    longest_s: float, sums: _Sums, kept: Sequence[float], room: Sequence[float]
) -> tuple[int, ...] | None:
    """Every stage is as long as time and memory allow, which leaves the least for later ones."""
    seconds, state, activations = sums
    cells, stages = len(seconds) - 1, len(kept)
    counts, begin = [], 0
    for stage in range(stages):
        most = cells - (stages - 1 - stage)  # leaves a cell for each later stage
        end = min(most, bisect.bisect_right(seconds, seconds[begin] + longest_s) - 1)
        count, start = kept[stage], state[begin] + kept[stage] * activations[begin]
        while end > begin and state[end] + count * activations[end] - start > room[stage]:
            end -= 1
        if end == begin:
            return None
        counts.append(end - begin)
        begin = end
    return tuple(counts) if begin == cells else None
