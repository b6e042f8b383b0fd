"""Assignments computed in advance (paper, section 3.4.2), in idle time.

A thread repeats the controller's operations on a copy of the assignment. It computes in C++,
without the interpreter, so it delays no answer. First come the predicted next events, in sequence
and each alone; then single failures, of switches and of cables, those with most flows first. A
change in between ends the round, and the next one begins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.route_control.controller.precomputed import Operation, StateNode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from torch_topoopt.route_control.controller.prediction import PredictedEvent, TrafficPrediction
    from torch_topoopt.route_control.controller.state import RouteState
    from torch_topoopt.route_control.network_file import NetworkFile

    Job = Callable[[], Any]

log = logging.getLogger("torch_topoopt")

_EVENTS = 8  # predicted ones that are considered
_MOST_NUMBERS = 2_000_000  # in all results together, about 8 bytes each
_NICENESS = 10


class Precomputation:
    """For the state that `learn` returns (it may be replaced), after `prediction` has learned past
    events. At most `most` assignments are computed after each change. `clock` is that of the
    prediction."""

    def __init__(
        self,
        learn: Callable[[], RouteState],
        prediction: TrafficPrediction,
        most: int,
        clock: Callable[[], float],
    ) -> None:
        self._learn = learn
        self._prediction = prediction
        self._most = most
        self._clock = clock
        self._state: RouteState | None = None
        self._copy: _core.PathAssignment | None = None  # only jobs use it
        self._failures: _Failures | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Notes that the state has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Round after round, until cancelled."""
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1, "precomputation", _be_nice)
        try:
            while True:
                work = self.work()
                found = None
                try:
                    while (job := _next(work, found)) is not None:
                        found = await loop.run_in_executor(pool, job)
                except Exception:
                    log.exception("controller: nothing is precomputed until the next change")
                    self._give_up()
                await self._wake.wait()
                self._wake.clear()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _give_up(self) -> None:
        """Makes a new copy the next time."""
        if self._state is not None:
            self._state.replays = None
        self._state = None

    def run_now(self) -> None:
        """One round, in this thread."""
        work = self.work()
        found = None
        while (job := _next(work, found)) is not None:
            found = job()

    def compute_now(self, operation: Operation) -> None:
        """One change of the current state, in this thread."""
        state = self._learn()
        if state is not self._state:
            self._state, self._copy = state, state.copied()
        self._caught_up(state)()
        (result,) = self._computed([operation])
        state.precomputed.node.after[operation] = result, StateNode()

    def work(self) -> Generator[Job, Any, None]:
        """Jobs for the thread; each is sent the result of the last one."""
        state = self._learn()
        if state is not self._state:
            self._state, self._copy = state, state.copied()
        root = state.precomputed.node
        yield self._caught_up(state)
        assert self._copy is not None
        left, numbers = self._most, 0
        for is_first in (True, False):  # shares take long, so the next event comes first
            if not is_first and self._prediction.wants_shares():
                shares = yield self._copy.shares
                if root is not state.precomputed.node:
                    return
                self._prediction.set_shares(self._clock(), shares)
            for node, operations in self._plan(state, is_first):
                if all(operation in node.after for operation in operations):
                    continue
                yield self._caught_up(state)  # adds the kinds of these operations
                if root is not state.precomputed.node:
                    return
                results = yield lambda o=operations: self._computed(o)  # type: ignore[misc]
                if root is not state.precomputed.node:
                    return
                for operation, result in zip(operations, results, strict=False):
                    _, node = node.after.setdefault(operation, (result, StateNode()))
                    numbers += len(result)
                    left -= 1
                if left <= 0 or numbers > _MOST_NUMBERS:
                    return

    def _plan(
        self, state: RouteState, is_first: bool
    ) -> Iterator[tuple[StateNode, list[Operation]]]:
        """Sequences of changes to compute, the most likely first; at first only the next event."""
        root = state.precomputed.node
        events = self._prediction.events(self._clock(), _EVENTS)
        operations = [_operation(state, event) for event in events]
        yield root, operations[:1]
        if is_first:
            return
        yield root, _without_repetitions(operations)
        for operation in operations[1:]:
            yield root, [operation]
        if self._failures is None:
            self._failures = _Failures(state.file)
        for cables in self._failures.busiest_first(state):
            yield root, [state.dying(cables)]

    def _caught_up(self, state: RouteState) -> Job:
        """Repeats the assignment's operations on the copy."""
        replays, state.replays = state.replays or [], []

        def replay() -> None:
            assert self._copy is not None
            for step in replays:
                self._copy = step(self._copy)

        return replay

    def _computed(self, operations: Sequence[Operation]) -> list[_core.AssignmentResult]:
        assert self._copy is not None
        assignment = self._copy.copy()
        return [
            assignment.change(_core.AssignmentChange(*operation), 1) for operation in operations
        ]


def _next(work: Generator[Job, Any, None], found: Any) -> Job | None:
    try:
        return work.send(found)
    except StopIteration:
        return None


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # this thread only


def _operation(state: RouteState, event: PredictedEvent) -> Operation:
    return state.ending(event.ids) if event.ids else state.starting(event.reports)


def _without_repetitions(operations: Sequence[Operation]) -> list[Operation]:
    """Events that can follow one another: no flow ends twice."""
    ended: set[int] = set()
    chain = []
    for operation in operations:
        if ended.isdisjoint(operation.ended):
            ended.update(operation.ended)
            chain.append(operation)
    return chain


class _Failures:
    """Single failures in a network: of all cables of a switch, and of one cable."""

    def __init__(self, file: NetworkFile) -> None:
        self._cables = sorted(file.cables, key=sorted)
        of_switch: dict[str, list[int]] = {switch.name: [] for switch in file.switches}
        for number, cable in enumerate(self._cables):
            for switch in cable:
                of_switch[switch].append(number)
        self._groups = [*of_switch.values(), *([number] for number in range(len(self._cables)))]
        self._switches = len(of_switch)

    def busiest_first(self, state: RouteState) -> Iterator[list[frozenset[str]]]:
        """Failures that affect flows."""
        loads = state.cable_loads(self._cables)
        of_switches = [loads[group].sum() for group in self._groups[: self._switches]]
        flows = np.concatenate((np.array(of_switches, int), loads))
        for i in np.argsort(-flows, kind="stable"):
            if flows[i]:
                yield [self._cables[number] for number in self._groups[i]]
