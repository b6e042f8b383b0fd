"""The events of a rank's steps in order: computation, calls of collectives, and waits for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.profile.script.document import CollectiveCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.profile.script.document import Operation, Phase
    from torch_topoopt.profile.script.rank_time import Reading
    from torch_topoopt.profile.script.recorder import SeenCall


@dataclass(frozen=True)
class Computation:
    """Seconds of a rank on a processor, and of waiting for anything but processors and messages."""

    processor_s: float
    waiting_s: float


@dataclass(frozen=True)
class CallWait:
    """The rank waits until call number `call` of the step has ended."""

    call: int


StepEvent = Computation | CollectiveCall | CallWait


def bytes_by_operation(events: Iterable[StepEvent]) -> Counter[Operation]:
    """The bytes of a rank's calls in one step."""
    sizes: Counter[Operation] = Counter()
    for event in events:
        if isinstance(event, CollectiveCall):
            sizes[event.operation] += event.size_bytes
    return sizes


class PendingCall(dist.Work):  # type: ignore[misc]
    """The Work of a collective without messages: it has ended, and it reports who waits for it."""

    def __init__(self, log: EventLog, number: int, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._log = log
        self._number = number
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        self._log.waited(self._number)
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class EventLog:
    """Collects the events of one rank, step by step.

    DistributedDataParallel waits for its calls in C++, which no Work reports. So calls in a
    backward pass end with it, unless the script waits for them earlier.
    """

    def __init__(self, rank: int, read: Callable[[], Reading]) -> None:
        self.steps: list[list[list[Any]]] = []
        self._rank = rank
        self._read = read
        self._since = read()
        self._events: list[list[Any]] = []
        self._pending: dict[int, PendingCall] = {}
        self._waited: set[int] = set()
        self._calls = 0  # of all steps
        self._first = 0  # call of this step
        self._of_backward: list[int] = []

    def pause(self) -> None:
        """Ends a computation: the time until `resume` does not count."""
        processor_s, waiting_s = self._read().since(self._since)
        self._events.append(["computation", processor_s, waiting_s])

    def resume(self) -> None:
        self._since = self._read()

    def called(
        self, calls: Sequence[SeenCall], members: tuple[int, ...], tensors: list[torch.Tensor]
    ) -> PendingCall:
        """Records the calls of one operator, between `pause` and `resume`; returns their Work."""
        in_backward = torch._C._current_graph_task_id() != -1
        for seen in calls:
            peer = None if seen.peer is None else members[seen.peer]
            phase: Phase = "backward" if in_backward else "forward"
            parts = seen.part_bytes
            call = CollectiveCall(
                self._rank, 0, phase, seen.operation, seen.size_bytes, members, peer, parts
            )
            self._events.append(["call", asdict(call)])
            self._calls += 1
        number = self._calls - 1
        if in_backward:
            if not self._of_backward:
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
            self._of_backward.append(number)
        work = PendingCall(self, number, tensors)
        self._pending[number] = work  # C++ keeps no Python's part, without which it waits for ever
        return work

    def waited(self, number: int) -> None:
        """Records that the rank waits for a call of this step; for each call once."""
        if number not in self._pending or number in self._waited:
            return
        self._waited.add(number)
        self.pause()
        self._events.append(["wait", number - self._first])
        self.resume()

    def end_step(self, *, keep: bool) -> None:
        """Ends a step, whose events are dropped unless `keep`."""
        self.pause()
        if keep:
            self.steps.append(self._events)
        self._events, self._first = [], self._calls
        self._pending.clear()
        self._waited.clear()
        self.resume()

    def _backward_ended(self) -> None:
        for number in self._of_backward:
            self.waited(number)
        self._of_backward.clear()
