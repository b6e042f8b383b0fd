"""Cutting a graph into the stages of a pipeline, to minimise the time of the slowest."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.op_graph import OpGraph

Found = TypeVar("Found")

_HALVINGS = 30  # of the bound on the longest stage


class Stages(NamedTuple):
    """The start of each stage but the first; of each, the number of servers, and its seconds."""

    cuts: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def longest_s(self) -> float:
        """Seconds of the slowest stage."""
        return max(self.seconds)


def cut_points(op_graph: OpGraph) -> tuple[int, ...]:
    """The cuts of a pipeline: the operators before which only one tensor is handed over.

    At a cut point i, operators from i on read the results of at most one of operators 0..i-1.
    """
    last_reader: dict[int, int] = {}
    for i, operator in enumerate(op_graph.operators):
        for operand in operator.operands:
            last_reader[operand.producer] = i
    open_until: dict[int, int] = {}  # producer -> last reader, of those that are still to be read
    cuts = []
    for i in range(1, len(op_graph.operators)):
        if i - 1 in last_reader:
            open_until[i - 1] = last_reader[i - 1]
        open_until = {producer: last for producer, last in open_until.items() if last >= i}
        if len(open_until) <= 1:
            cuts.append(i)
    return tuple(cuts)


def equal_stages(
    seconds: Sequence[float], cuts: tuple[int, ...], width: int, stages: int
) -> Stages | None:
    """`stages` of `width` servers each; None if there are too few `cuts`.

    `seconds` are those of the operators on that many servers.
    """
    found = _balanced(seconds, cuts, stages)
    if found is None:
        return None
    until = list(itertools.accumulate(seconds, initial=0.0))
    bounds = (0, *found, len(seconds))
    times = tuple(until[end] - until[begin] for begin, end in itertools.pairwise(bounds))
    return Stages(found, (width,) * stages, times)


def any_stages(
    seconds: Mapping[int, Sequence[float]], cuts: tuple[int, ...], servers: int, stages: int
) -> Stages | None:
    """`stages` of any numbers of servers, all together `servers`; None if there are too few cuts.

    `seconds` are those of the operators, by the number of servers of a stage.
    """
    if len(cuts) < stages - 1 or stages * min(seconds) > servers:
        return None
    until = {w: list(itertools.accumulate(of, initial=0.0)) for w, of in seconds.items()}
    bounds = [0, *cuts, len(next(iter(seconds.values())))]
    found = None
    low, high = 0.0, max(times[-1] for times in until.values())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        shorter = _widths_within(middle, until, bounds, servers, stages)
        if shorter is None:
            low = middle
        else:
            found, high = shorter, middle
    return found


def _widths_within(
    longest_s: float,
    until: Mapping[int, Sequence[float]],
    bounds: Sequence[int],
    servers: int,
    stages: int,
) -> Stages | None:
    """Stages within the limit; each is as long as allowed, which leaves the least."""
    ends = {w: [times[bound] for bound in bounds] for w, times in until.items()}
    # reached[s]: the furthest bound of the stages so far on s servers, and the last one's width
    reached: dict[int, int] = {0: 0}
    steps: list[dict[int, tuple[int, int]]] = []  # per stage: servers -> (bound, width)
    for left in range(stages - 1, -1, -1):
        last = len(bounds) - 1 - left  # leaves one bound for each later stage
        step: dict[int, tuple[int, int]] = {}
        for used, begin in reached.items():
            for width, times in ends.items():
                if used + width > servers:
                    continue
                end = min(bisect.bisect_right(times, times[begin] + longest_s) - 1, last)
                if end > begin and end > step.get(used + width, (0, 0))[0]:
                    step[used + width] = end, width
        steps.append(step)
        reached = {used: end for used, (end, _) in step.items()}
    if reached.get(servers) != len(bounds) - 1:
        return None
    return _followed_back(steps, bounds, servers, until)


def _followed_back(
    steps: Sequence[Mapping[int, tuple[int, int]]],
    bounds: Sequence[int],
    servers: int,
    until: Mapping[int, Sequence[float]],
) -> Stages:
    cuts, widths = [], []
    for step in reversed(steps):
        end, width = step[servers]
        cuts.append(bounds[end])
        widths.append(width)
        servers -= width
    cuts.reverse()
    widths.reverse()
    times = tuple(
        until[width][end] - until[width][begin]
        for width, begin, end in zip(widths, (0, *cuts), cuts, strict=False)
    )
    return Stages(tuple(cuts[:-1]), tuple(widths), times)


def _balanced(
    seconds: Sequence[float], cuts: tuple[int, ...], stages: int
) -> tuple[int, ...] | None:
    """The `stages` - 1 of `cuts` whose longest stage is shortest, by bisection of its seconds."""
    if len(cuts) < stages - 1:
        return None
    until = list(itertools.accumulate(seconds, initial=0.0))
    ends = [*(until[cut] for cut in cuts), until[-1]]
    low = 0.0
    found, high = _bounds_within(until[-1], ends, stages)
    while low < high:
        middle = (low + high) / 2
        shorter, limit_s = _bounds_within(middle if middle < high else low, ends, stages)
        if shorter is None:
            low = limit_s
        else:
            found, high = shorter, limit_s
    return None if found is None else tuple(cuts[bound] for bound in found)


def at_least_bound(
    within: Callable[[float], Found | None], low: float, high: float, halvings: int
) -> Found | None:
    """What `within` finds at the least bound in low..high where it finds something, by bisection;
    None if it finds nothing at `high`."""
    found = within(high)
    if found is None:
        return None
    for _ in range(halvings):
        middle = (low + high) / 2
        if (better := within(middle)) is None:
            low = middle
        else:
            found, high = better, middle
    return found


def _bounds_within(
    longest_s: float, ends: Sequence[float], stages: int
) -> tuple[tuple[int, ...] | None, float]:
    """`stages` - 1 bounds with every stage as long as `longest_s` allows, and the longest of these
    stages. If there are none: None, and the least limit that allows a longer stage.

    `ends` has the seconds before each bound, and at last those of all stages.
    """
    chosen: list[int] = []
    begin_s, at = 0.0, 0
    reached_s, next_s = 0.0, math.inf
    for later in range(stages - 1, 0, -1):  # stages that need a bound or the end
        most = len(ends) - later
        after_begin = (-begin_s).__add__
        end = bisect.bisect_right(ends, longest_s, at, most, key=after_begin)
        if end < most:
            next_s = min(next_s, ends[end] - begin_s)
        if end == at:
            return None, next_s
        reached_s = max(reached_s, ends[end - 1] - begin_s)
        begin_s, at = ends[end - 1], end
        chosen.append(end - 1)
    last_s = ends[-1] - begin_s
    if last_s > longest_s:
        return None, min(next_s, last_s)
    return tuple(chosen), max(reached_s, last_s)
