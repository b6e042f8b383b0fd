"""Which flows will end and start next (paper, section 3.4.2). Pure: callers pass the time.

A flow ends when its bytes are sent at its max-min fair share, which varies with the paths. Until
shares are known, a phase lasts as long as the last time. The flows of one report are a phase of a
job. It starts again one period after its last start: the period of its reports, else the median of
the last few. A phase with a period whose flows have never ended is one of persistent flows, which
never stop.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.route_control.controller.messages import FlowReport

    Ids = tuple[str, ...]

_STARTS = 6  # remembered per phase
_OVERDUE = 2.0  # times its length, predicted or the last one, after which no end is expected
_LATE = 3.0  # periods after its predicted start, when a phase is no longer expected
_MOST_PHASES = 10_000  # without flows; those with the oldest start are dropped


@dataclass(frozen=True)
class PredictedEvent:
    """Flows that end in one request (`ids`), or start in one (`reports` of `job`)."""

    at_s: float
    ids: Ids = ()
    job: str = ""
    reports: tuple[FlowReport, ...] = ()


@dataclass
class _Phase:
    """`ended_as` are the requests that ended it last time, `ending` those of this time."""

    job: str
    reports: tuple[FlowReport, ...]
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STARTS))
    active: set[str] = field(default_factory=set)
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    ended_as: tuple[Ids, ...] = ()
    ending: list[Ids] = field(default_factory=list)
    has_period: bool = False
    lasted_s: float = 0.0  # the last time
    next_start_s: float = math.inf
    given_up_s: float = math.inf

    def begin(self, now_s: float, reports: tuple[FlowReport, ...], numbers: np.ndarray) -> None:
        self.reports, self.numbers, self.ending = reports, numbers, []
        self.active = {report.id for report in reports}
        self.has_period = any(report.period_s is not None for report in reports)
        self.starts_s.append(now_s)
        period_s = self.period_s()
        if period_s is not None:
            self.next_start_s = now_s + period_s
            self.given_up_s = self.next_start_s + _LATE * period_s

    def period_s(self) -> float | None:
        given = [report.period_s for report in self.reports if report.period_s is not None]
        if given:
            return max(given)
        starts = list(self.starts_s)
        if len(starts) < 2:
            return None
        return median(b - a for a, b in itertools.pairwise(starts))

    def is_persistent(self) -> bool:
        return self.has_period and not self.ended_as

    def next_end(self) -> Ids:
        """The flows that the next request will end: as last time, else all."""
        for ids in self.ended_as:
            if self.active.issuperset(ids):
                return ids
        return tuple(report.id for report in self.reports if report.id in self.active)


class TrafficPrediction:
    """Learns from starts and ends. Flows between hosts of one ToR are not limited by the network;
    they have no number, and their ends are not predicted."""

    def __init__(self) -> None:
        self._phases: dict[tuple[str, Ids], _Phase] = {}  # in the order of their last start
        self._of: dict[str, _Phase] = {}  # of current flows
        self._idle = 0
        self._updated_s = 0.0
        self._left_bits = np.zeros(0)  # by the numbers of flows
        self._bits_per_s = np.zeros(0)

    def started(
        self, now_s: float, job: str, reports: Sequence[FlowReport], numbers: Mapping[str, int]
    ) -> None:
        """New flows, of one request. `numbers` has those of flows between ToRs."""
        key = job, tuple(report.id for report in reports)
        phase = self._phases.pop(key, None)
        if phase is None:
            phase = _Phase(job, ())
        elif not phase.active:
            self._idle -= 1
        self._phases[key] = phase
        own = np.array([numbers[i] for i in key[1] if i in numbers], int)
        phase.begin(now_s, tuple(reports), own)
        self._of.update(dict.fromkeys(key[1], phase))
        self._send(now_s)
        size = int(own.max(initial=-1)) + 1
        if size > len(self._left_bits):
            more = np.zeros(max(size, 2 * len(self._left_bits)) - len(self._left_bits))
            self._left_bits = np.concatenate((self._left_bits, more))
            self._bits_per_s = np.concatenate((self._bits_per_s, more))
        bits = [8.0 * report.bytes for report in reports if report.id in numbers]
        self._left_bits[own] = bits
        self._bits_per_s[own] = math.nan  # until shares are set

    def ended(self, now_s: float, ids: Sequence[str]) -> None:
        """Flows that one request ended."""
        phases = {id(p): p for i in ids if (p := self._of.pop(i, None)) is not None}
        for phase in phases.values():
            phase.ending.append(tuple(ids))
            phase.active.difference_update(ids)
            if not phase.active:
                phase.ended_as, phase.ending = tuple(phase.ending), []
                phase.lasted_s = now_s - phase.starts_s[-1]
                self._idle += 1
        if self._idle > _MOST_PHASES:
            for key in [key for key, phase in self._phases.items() if not phase.active]:
                del self._phases[key]
                self._idle -= 1
                if self._idle <= _MOST_PHASES // 2:
                    break

    def set_shares(self, now_s: float, bits_per_s: np.ndarray) -> None:
        """Sets the flows' rates from now on, by number; accounts bits sent until now."""
        self._send(now_s)
        size = min(len(bits_per_s), len(self._bits_per_s))
        self._bits_per_s[:size] = bits_per_s[:size]

    def wants_shares(self) -> bool:
        """Whether an end depends on them."""
        return any(p.active and not p.is_persistent() for p in self._phases.values())

    def events(self, now_s: float, most: int) -> list[PredictedEvent]:
        """The next `most`, in order; those that are late come first."""
        found = self._ends(now_s, most)
        for phase in self._phases.values():
            if not phase.active and now_s <= phase.given_up_s and phase.next_start_s < math.inf:
                start = PredictedEvent(phase.next_start_s, job=phase.job, reports=phase.reports)
                found.append(start)
        return heapq.nsmallest(most, found, key=lambda event: event.at_s)

    def _ends(self, now_s: float, most: int) -> list[PredictedEvent]:
        """One for each phase whose flows are expected to end, the next of them. Long overdue flows
        are excluded: they wait for something other than the network."""
        phases = [
            phase
            for phase in self._phases.values()
            if phase.active and len(phase.numbers) and not phase.is_persistent()
        ]
        if not phases:
            return []
        numbers = np.concatenate([phase.numbers for phase in phases])
        begins = np.cumsum([0, *(len(phase.numbers) for phase in phases[:-1])])
        rates = self._bits_per_s[numbers]
        flow_s = np.full(len(numbers), math.inf)  # for flows without a path, whose share is 0
        np.divide(self._left_bits[numbers], rates, out=flow_s, where=rates != 0)
        last_s = self._updated_s + np.maximum.reduceat(flow_s, begins)
        starts_s = np.array([phase.starts_s[-1] for phase in phases])
        lasted_s = np.array([phase.lasted_s for phase in phases])
        as_last_time_s = np.where(lasted_s > 0, starts_s + lasted_s, math.inf)
        last_s = np.where(np.isnan(last_s), as_last_time_s, last_s)  # shares are still unknown
        longest_s = np.maximum(last_s - starts_s, lasted_s)
        last_s[now_s - starts_s > _OVERDUE * longest_s] = math.inf
        found: dict[Ids, PredictedEvent] = {}
        for i in np.argsort(last_s, kind="stable")[:most]:
            ids = phases[i].next_end()
            if last_s[i] < math.inf and ids not in found and all(name in self._of for name in ids):
                found[ids] = PredictedEvent(float(last_s[i]), ids)
        return list(found.values())

    def _send(self, now_s: float) -> None:
        sent = np.nan_to_num(self._bits_per_s) * (now_s - self._updated_s)
        self._left_bits -= sent  # below 0: it should have ended
        self._updated_s = now_s
