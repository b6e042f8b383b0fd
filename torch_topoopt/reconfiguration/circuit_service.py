"""Moves circuits for the collectives of a job, on requests of its ranks.

Every rank connects to a socket that only this user may open; for the protocol see
csrc/collectives/group/circuit_client.h. When all members of a group have requested a collective,
its size is known (of an all-to-all its matrix), and the service chooses whether circuits move for
it. If so, a topology of the members' servers is installed once all members have reported that
nothing is in flight on the one before; at the end the plan's own circuits are restored. A topology
whose circuits the plan has, or that is installed already, is not moved to. Circuits that do not
come up, or fail while data travels over them, stop the collective on all members, with the reason,
after the plan's circuits are restored. Schedules are of servers: the ranks of one share them.

Collectives of several groups share the switch. They run together if all of them stay on the plan's
circuits, or if they move circuits of different servers; else the later one waits. A waiting one is
not overtaken by another that would make it wait longer. Since one that runs has all of its members,
it ends without any that waits. Groups that are ready to move at nearly the same time move together.

At the end of a collective, the service may install the first topology of the next one instead of
the plan's circuits: if the sequence of requests has repeated so far (request_sequence.py), the next
one is of all servers, these reach each other on that topology, and no other has been requested. If
another collective follows, or none in time, the plan's circuits are restored.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PART,
    PORT,
    SENDER,
    SLOT,
    SOURCE,
    TARGET,
)
from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective
from torch_topoopt.reconfiguration.hop_order import without_waiting
from torch_topoopt.reconfiguration.request_sequence import RequestSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.choice import Choice
    from torch_topoopt.reconfiguration.hop_order import Hop

_POLL_S = 0.5
_LEAST_AHEAD_S = 1.0  # limit of a topology that waits for its collective
_AHEAD_GAPS = 4  # the same, in times between this collective and the one before it
_END_S = 30.0
_FIRST_CHANNEL = 0x80000000  # kFirstCircuitChannel (csrc/transport/frames/frame.h)


class CircuitMover(Protocol):
    """Moves the circuits of a job; methods raise FabricError (fabric/switches/circuit_mover.py)."""

    def prepare(self, targets: Mapping[int, Sequence[int]]) -> int:
        """Prepares a topology of some servers and returns its number; port p of s sends to
        `targets[s][p]`."""
        ...

    def move(self, numbers: Iterable[int]) -> None:
        """Returns when exactly these topologies are installed, of different servers, and the plan's
        circuits between all others. On failure the plan's circuits are installed."""
        ...

    def restore(self) -> None:
        """Restores the plan's circuits; harmless if they are installed."""
        ...

    def events(self) -> socket.socket:
        """Readable when circuits may have failed; the caller reads and closes it."""
        ...

    def lost(self, number: int) -> str:
        """Circuits of the current topology that are down; "" if there are none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class MovedExchange:
    """One finished all-to-all; `matrix[i, j]` are the bytes of member i for member j. `error` is
    why it was stopped, or "". `of_all`: its group has all ranks."""

    matrix: NDArray[np.int64]
    choice: Choice
    seconds: float
    moving_s: float  # part of it, until circuits were up
    error: str = ""
    of_all: bool = True

    @property
    def total_bytes(self) -> int:
        return int(self.matrix.sum())

    @property
    def members(self) -> int:
        return len(self.matrix)


class CollectiveChoices(Protocol):
    """Chooses for collectives other than all-to-alls (collective_choice.py)."""

    @property
    def least_s(self) -> float:
        """Collectives that are predicted to be faster on the plan's circuits never move them."""
        ...

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        """`planned_s` are the predicted seconds on the plan's circuits; `servers` those of the
        group, in its order."""
        ...


@dataclass(frozen=True)
class MovedCollective:
    """Another finished collective, of a name of `phases.COLLECTIVES`."""

    collective: str
    total_bytes: int
    members: int
    choice: Choice
    seconds: float
    moving_s: float
    error: str = ""


@dataclass(frozen=True)
class _CollectiveRequest:
    """A rank's request of a collective; `arguments` differ if ranks have called different ones."""

    collective: str
    total_bytes: int
    arguments: str
    planned_s: float


@dataclass(frozen=True)
class _TopologyAhead:
    """A topology of all servers that is installed for the request that is expected next."""

    number: int
    request: Hashable
    limit_s: float


@dataclass
class _RequestedCall:
    """A requested collective, by (channel, number)."""

    name: str
    members: tuple[int, ...]  # ranks
    servers: tuple[int, ...]  # of the members, each once, in the order of the first members on them
    requests: dict[int, list[int] | _CollectiveRequest] = field(default_factory=dict)
    matrix: NDArray[np.int64] | None = None  # of an all-to-all, after all requests
    choice: Choice | None = None
    runs: bool = False
    ready: set[int] = field(default_factory=set)
    ready_at: float = 0.0  # when the last member was
    topology: int = 0  # the next one
    # The mover's numbers of its topologies; None: the plan has its circuits.
    numbers: list[int | None] = field(default_factory=list)
    done: set[int] = field(default_factory=set)  # ranks that finished on the plan's circuits
    there: int | None = None  # the installed topology; None: the plan's circuits
    ahead: _TopologyAhead | None = None  # installed at the end; None: the plan's circuits
    began: float = 0.0
    moving_s: float = 0.0

    @property
    def complete(self) -> bool:
        return len(self.requests) == len(self.members)

    @property
    def scheduled(self) -> bool:
        """Whether it goes from topology to topology, even if the plan has all of them."""
        return self.choice is not None and self.choice.schedule is not None

    @property
    def moves(self) -> bool:
        return self.choice is not None and self.choice.moves > 0

    @property
    def waits_for_circuits(self) -> bool:
        return self.runs and self.scheduled and len(self.ready) == len(self.members)

    @property
    def is_there(self) -> bool:
        """Whether the circuits of the next topology are installed."""
        return self.next == self.there

    @property
    def next(self) -> int | None:
        """The mover's number of the next topology; None for the plan's circuits."""
        if self.topology < len(self.numbers):
            return self.numbers[self.topology]
        return None if self.ahead is None else self.ahead.number

    @property
    def ends(self) -> bool:
        """Whether all of its topologies are done."""
        return self.runs and self.scheduled and self.topology >= len(self.numbers)

    def key(self) -> Hashable:
        """Equal for the same request in every step; after all requests."""
        request = self.collective()
        if request is not None:
            return self.channel, request.collective, request.total_bytes
        return self.channel, None if self.matrix is None else self.matrix.tobytes()

    @property
    def channel(self) -> str:
        """Of the group."""
        return self.name.partition(" ")[0]

    def shares_servers(self, other: _RequestedCall) -> bool:
        return not set(self.servers).isdisjoint(other.servers)

    def excludes(self, other: _RequestedCall) -> bool:
        """Whether both may not run at the same time."""
        if self.moves and other.moves:
            return self.shares_servers(other)
        return self.moves or other.moves

    def rows(self) -> list[list[int]] | None:
        """Of an all-to-all, in the order of the members."""
        rows = [self.requests[rank] for rank in self.members]
        found = [row for row in rows if isinstance(row, list)]
        return found if len(found) == len(rows) else None

    def collective(self) -> _CollectiveRequest | None:
        """If all members have requested the same one."""
        requests = [self.requests[rank] for rank in self.members]
        first = requests[0]
        if not isinstance(first, _CollectiveRequest):
            return None
        same = all(
            isinstance(one, _CollectiveRequest) and one.arguments == first.arguments
            for one in requests
        )
        return first if same else None

    def ended(self, error: str, *, of_all: bool) -> MovedExchange | MovedCollective | None:
        """None if it was not started with a choice."""
        if self.choice is None or not self.runs:
            return None
        seconds = time.monotonic() - self.began
        if self.matrix is not None:
            return MovedExchange(self.matrix, self.choice, seconds, self.moving_s, error, of_all)
        request = self.collective()
        if request is None:
            return None
        return MovedCollective(
            request.collective,
            request.total_bytes,
            len(self.members),
            self.choice,
            seconds,
            self.moving_s,
            error,
        )


class CircuitService:
    """Serves the `ranks` ranks of one job from a thread of its own, until it is closed.

    `choose` is called once for every all-to-all, with its matrix of bytes and its servers, and
    `choose_collective` for others; ranks do not request what has None. `ended` is called from the
    thread for each finished one that was started. Without `ahead`, each begins with the plan's
    circuits. Raises FabricError as the mover does.
    """

    def __init__(
        self,
        ranks: int,
        mover: CircuitMover,
        choose: Callable[[NDArray[np.int64], tuple[int, ...]], Choice] | None,
        ended: Callable[[MovedExchange | MovedCollective], None] = lambda exchange: None,
        choose_collective: CollectiveChoices | None = None,
        *,
        ahead: bool = True,
    ) -> None:
        self._rank_count = ranks
        self._mover = mover
        self._choose = choose
        self._choose_collective = choose_collective
        self._ended = ended
        self._calls: dict[str, _RequestedCall] = {}  # in the order of the requests
        self._ranks: dict[int, _Rank] = {}
        # By id() of the schedule, which is kept so that the id stays unique, and servers.
        self._prepared: dict[tuple[int, tuple[int, ...]], tuple[object, list[int | None]]] = {}
        self._numbers: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], int] = {}
        self._sent: dict[int, set[int]] = {}  # id() of a schedule -> ranks that know its hops
        self._move_s = 0.0  # duration of the last move
        self._sequence = RequestSequence()
        self._moves_ahead = ahead
        # Request of all servers -> its first topology, if all reach each other on it.
        self._first: dict[Hashable, int] = {}
        self._gaps_s: dict[Hashable, float] = {}  # request -> since the end of the one before
        self._last_end = time.monotonic()
        self._ahead: _TopologyAhead | None = None  # installed
        self._ahead_until = math.inf
        self._held = False  # ranks do not judge cables
        self._channels: dict[str, int] = {}  # group channel -> channel of its chunks
        self._next_channel = _FIRST_CHANNEL
        self._closing = False
        with ExitStack() as stack:
            self._folder = tempfile.mkdtemp(prefix="topoopt-circuits-")
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self.path = os.path.join(self._folder, "socket")
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(self.path)
            self._listener.listen(ranks)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._events = stack.enter_context(mover.events())
            self._events.setblocking(False)
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._serve, name="circuits", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread, after the plan's circuits are restored and the mover is closed."""
        self._closing = True
        with suppress(OSError), socket.socket(socket.AF_UNIX) as wake:
            wake.settimeout(_POLL_S)
            wake.connect(self.path)
        self._thread.join(_END_S)
        self._stack.close()

    # ---- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        finally:  # on any exit, so that waiting ranks are notified
            for rank in tuple(self._ranks.values()):
                self._drop(rank)
            with suppress(FabricError):
                self._mover.restore()
            self._mover.close()

    def _serve_until_closed(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._events, selectors.EVENT_READ)
        patience_s = _POLL_S
        while not self._closing:
            for key, _ in self._selector.select(patience_s):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    connection.settimeout(_END_S)
                    rank = _Rank(connection)
                    self._selector.register(connection, selectors.EVENT_READ, rank)
                elif key.fileobj is self._events:
                    self._look()
                else:
                    self._read(key.data)
            self._start_all()
            patience_s = min(_POLL_S, self._move_all())
            left_s = self._ahead_until - time.monotonic()
            if left_s <= 0:
                self._give_up_ahead()
            patience_s = min(patience_s, max(0.0, left_s))

    def _read(self, rank: _Rank) -> None:
        lines = rank.lines()
        if lines is None:
            return self._drop(rank)
        for line in lines:
            what, _, rest = line.partition(" ")
            if what == "rank" and rank.number < 0:
                rank.number, rank.server = map(int, rest.split(" "))
                self._greet(rank)
                continue
            channel, number, *words = rest.split(" ")
            name = f"{channel} {number}"
            if what == "ask":
                self._ask(rank, name, words, list(_numbers(words[2])))
            elif what == "collective":
                collective, size, arguments, planned_s = words[2:]
                request = _CollectiveRequest(collective, int(size), arguments, float(planned_s))
                self._ask(rank, name, words, request)
            elif what == "ready":
                self._on_ready(rank, name, int(words[0]))
            elif what == "done":
                self._on_done(rank, name)
            elif what == "lost":
                self._stop(name, f"server {rank.server}: {' '.join(words)}")
            elif what == "leave":
                self._stop(name, " ".join(words))

    def _greet(self, rank: _Rank) -> None:
        self._ranks[rank.number] = rank
        for known in self._sent.values():  # by an earlier process group of that rank
            known.discard(rank.number)
        others = self._choose_collective
        least_s = math.inf if others is None else others.least_s
        self._send(rank, f"asks {int(self._choose is not None)} {least_s:.9g}")
        if self._held:
            self._send(rank, "hold")

    def _look(self) -> None:
        """Handles lost circuits; changes during a move are expected."""
        self._read_events()
        for call in self._moving():
            if call.there is None:
                continue
            try:
                why = self._mover.lost(call.there)
            except FabricError as error:
                why = str(error)
            if why:
                self._stop(call.name, why)
        if self._ahead is not None and self._is_lost(self._ahead.number):
            self._give_up_ahead()

    def _is_lost(self, number: int) -> bool:
        try:
            return bool(self._mover.lost(number))
        except FabricError:
            return True

    def _read_events(self) -> None:
        while True:
            try:
                self._events.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # overflow: some circuits are lost
                    raise

    def _drop(self, rank: _Rank) -> None:
        """Removes a rank that has disconnected from all exchanges."""
        self._selector.unregister(rank.connection)
        rank.connection.close()
        if self._ranks.get(rank.number) is rank:
            del self._ranks[rank.number]
            self._give_up_ahead()
            for call in tuple(self._calls.values()):
                if rank.number in call.members:
                    self._stop(call.name, f"server {rank.server} has left")

    # ---- collectives ---------------------------------------------------------------------------

    def _ask(
        self,
        rank: _Rank,
        name: str,
        words: list[str],
        request: list[int] | _CollectiveRequest,
    ) -> None:
        """`words` begin with the ranks of the members and their servers."""
        if name not in self._calls:
            members, servers = _numbers(words[0]), tuple(dict.fromkeys(_numbers(words[1])))
            self._calls[name] = _RequestedCall(name, members, servers)
        self._calls[name].requests[rank.number] = request

    def _moving(self) -> list[_RequestedCall]:
        return [call for call in self._calls.values() if call.runs and call.scheduled]

    def _start_all(self) -> None:
        """Starts each that all members have requested, unless an earlier one excludes it."""
        earlier = [call for call in self._calls.values() if call.runs]
        for call in tuple(self._calls.values()):
            if call.runs or not call.complete:
                continue
            if call.choice is None:
                call.choice = self._chosen(call)
                self._follow_sequence(call)
            if not any(call.excludes(other) for other in earlier):
                self._start(call)
            if call.name in self._calls:
                earlier.append(call)

    def _start(self, call: _RequestedCall) -> None:
        call.began = time.monotonic()
        call.runs = True
        if self._ahead is not None:
            if call.scheduled and len(call.servers) == self._server_count():
                call.there, self._ahead, self._ahead_until = self._ahead.number, None, math.inf
            else:
                self._give_up_ahead()
        if call.choice is None:  # on the plan's circuits, ranks compare their calls
            del self._calls[call.name]
        if call.choice is None or call.choice.schedule is None:
            return self._notify(call.members, f"stay {call.name}")
        self._hold_cables()
        try:
            call.numbers = self._topologies(call.choice, call)
        except FabricError as error:
            return self._stop(call.name, str(error))
        of_all = len(call.servers) == self._server_count()
        if of_all and call.numbers[0] is not None and _connected(call.choice.schedule.links[0]):
            self._first[call.key()] = call.numbers[0]
        words = [id(call.choice.schedule), self._channel_of(call.channel)]
        if call.matrix is not None:
            words += call.matrix.ravel().tolist()
        self._notify(call.members, f"move {call.name} {' '.join(map(str, words))}")

    def _chosen(self, call: _RequestedCall) -> Choice | None:
        """None if ranks have requested different collectives."""
        rows = call.rows()
        if rows is not None and self._choose is not None:
            call.matrix = np.array(rows, dtype=np.int64)
            return self._choose(call.matrix, call.servers)
        request = call.collective()
        if request is None or self._choose_collective is None:
            return None
        return self._choose_collective(
            request.collective, request.total_bytes, request.planned_s, call.servers
        )

    def _server_count(self) -> int:
        return len({rank.server for rank in self._ranks.values()})

    def _follow_sequence(self, call: _RequestedCall) -> None:
        """Notes the next request, and gives up a topology that was installed for another one."""
        key = call.key()
        self._gaps_s[key] = time.monotonic() - self._last_end
        if self._ahead is not None and self._ahead.request != key:
            self._sequence.doubt(self._ahead.request)
        self._sequence.add(key)

    def _expected(self, call: _RequestedCall) -> _TopologyAhead | None:
        """The topology to install at the end of this one, if it is the only one."""
        if not self._moves_ahead or len(self._calls) > 1 or not call.moves:
            return None
        if len(call.servers) < self._server_count():
            return None
        request = self._sequence.expected()
        number = self._first.get(request)
        if number is None:
            return None
        limit_s = max(_LEAST_AHEAD_S, _AHEAD_GAPS * self._gaps_s.get(request, 0.0))
        return _TopologyAhead(number, request, limit_s)

    def _give_up_ahead(self) -> None:
        """Restores the plan's circuits, if a topology is installed for a later collective."""
        if self._ahead is None:
            return
        if time.monotonic() >= self._ahead_until:
            self._sequence.doubt(self._ahead.request)
        self._ahead, self._ahead_until = None, math.inf
        with suppress(FabricError):  # the next move reports it
            self._mover.restore()
        self._read_events()
        self._hold_cables()

    def _channel_of(self, group: str) -> int:
        """The channel of the group's data, until one of its collectives is stopped."""
        if group not in self._channels:
            self._channels[group] = self._next_channel
            self._next_channel += 1
        return self._channels[group]

    def _topologies(self, choice: Choice, call: _RequestedCall) -> list[int | None]:
        """The mover's numbers of the schedule's topologies on the call's servers; the members get
        its hops."""
        schedule, servers = choice.schedule, call.servers
        assert schedule is not None
        key = (id(schedule), servers)
        if key not in self._prepared:
            links = schedule.links.tolist()
            numbers = [
                None if present else self._number_of(topology, servers)
                for topology, present in zip(links, choice.present_topologies, strict=True)
            ]
            self._prepared[key] = (schedule, numbers)
        known = self._sent.setdefault(id(schedule), set())
        if unknown := set(call.members) - known:
            known |= unknown
            self._notify(sorted(unknown), _program(schedule))
        return self._prepared[key][1]

    def _number_of(self, links: list[list[int]], servers: tuple[int, ...]) -> int:
        """The mover's number of a topology, which schedules share."""
        key = (servers, tuple(map(tuple, links)))
        if key not in self._numbers:
            targets = {
                server: [servers[target] for target in ports]
                for server, ports in zip(servers, links, strict=True)
            }
            self._numbers[key] = self._mover.prepare(targets)
        return self._numbers[key]

    def _on_done(self, rank: _Rank, name: str) -> None:
        call = self._calls.get(name)
        if call is None:
            return
        call.done.add(rank.number)
        if len(call.done) == len(call.members):
            self._end(call)

    def _on_ready(self, rank: _Rank, name: str, topology: int) -> None:
        call = self._calls.get(name)
        if call is None or not (call.runs and call.scheduled) or topology != call.topology:
            return
        call.ready.add(rank.number)
        call.ready_at = time.monotonic()

    def _move_all(self) -> float:
        """Moves circuits for all collectives that wait for them, in one change of the switch.

        It waits for others that may be ready soon, but not longer than a move takes. Returns the
        seconds after which it is to be called again.
        """
        waiting = [call for call in self._moving() if call.waits_for_circuits]
        if not waiting:
            return math.inf
        for call in waiting:
            call.ahead = self._expected(call) if call.ends else None
        if there := [call for call in waiting if call.is_there]:
            for call in there:
                self._on_moved(call)
            return 0.0
        left_s = min(call.ready_at for call in waiting) + self._move_s - time.monotonic()
        if left_s > 0 and any(self._may_be_ready_soon(call) for call in self._calls.values()):
            return left_s
        installed = [call.next if call in waiting else call.there for call in self._moving()]
        began = time.monotonic()
        try:
            self._mover.move(number for number in installed if number is not None)
        except FabricError as error:
            notes = getattr(error, "__notes__", ())
            if waiting[0].ahead is not None and not notes:  # its data is there, and so is the plan
                waiting[0].ahead = None
                self._on_moved(waiting[0])
            else:
                self._stop_all(" ".join([str(error), *notes]))
            return 0.0
        self._move_s = time.monotonic() - began
        self._read_events()
        for call in waiting:
            call.moving_s += self._move_s
            self._on_moved(call)
        if any(call.there is not None and call not in waiting for call in self._moving()):
            self._look()  # their circuits may have been lost in the meantime
        return 0.0

    def _may_be_ready_soon(self, call: _RequestedCall) -> bool:
        """Whether some members are, or some have requested it and nothing makes it wait."""
        if call.runs:
            return call.scheduled and not call.waits_for_circuits
        return not call.complete and not any(map(call.shares_servers, self._moving()))

    def _on_moved(self, call: _RequestedCall) -> None:
        topology, call.there = call.topology, call.next
        call.ready.clear()
        call.topology += 1
        self._notify(call.members, f"moved {call.name} {topology}")
        if call.topology > len(call.numbers):
            if call.ahead is not None:
                self._ahead = call.ahead
                self._ahead_until = time.monotonic() + call.ahead.limit_s
            self._end(call)

    def _stop_all(self, why: str) -> None:
        """After a failed move, which has restored the plan's circuits."""
        for call in self._moving():
            if call.there is not None or call.waits_for_circuits:
                call.there = None
                self._stop(call.name, why)

    def _stop(self, name: str, why: str) -> None:
        call = self._calls.get(name)
        if call is None:
            return
        lost = ""
        if call.runs and call.scheduled:
            self._channels.pop(call.channel, None)
        if call.there is not None:
            others = [other.there for other in self._moving() if other is not call]
            try:
                self._mover.move(number for number in others if number is not None)
            except FabricError as error:
                lost = f"; the circuits of the plan are not back: {error}"
        self._notify(call.members, f"stop {name} {' '.join((why + lost).split())}")
        self._end(call, why + lost)
        if lost:
            self._stop_all(why + lost)

    def _end(self, call: _RequestedCall, error: str = "") -> None:
        del self._calls[call.name]
        self._last_end = time.monotonic()
        self._hold_cables()
        if ended := call.ended(error, of_all=len(call.members) == self._rank_count):
            self._ended(ended)

    def _hold_cables(self) -> None:
        """Ranks do not judge cables while circuits move: others than the members' may be dark."""
        held = self._ahead is not None or any(call.moves for call in self._moving())
        if held is not self._held:
            self._held = held
            self._notify(tuple(self._ranks), "hold" if held else "free")

    def _notify(self, ranks: Iterable[int], line: str) -> None:
        for rank in ranks:
            if rank in self._ranks:
                self._send(self._ranks[rank], line)

    def _send(self, rank: _Rank, line: str) -> None:
        with suppress(OSError):  # disconnected; its end of the connection will report it
            rank.connection.sendall(line.encode() + b"\n")


class _Rank:
    """The connection of one rank; `number` and `server` are -1 until its first message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.number = self.server = -1
        self._begun = b""

    def lines(self) -> list[str] | None:
        """Received messages, after at least one read; None when the connection has ended."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [line.decode() for line in lines]


def _connected(links: NDArray[np.int32]) -> bool:
    """Whether each server reaches all others: port p of server s sends to `links[s, p]`."""
    servers = len(links)
    reached = np.eye(servers, dtype=bool)
    reached[np.arange(servers)[:, None], links] = True
    for _ in range(servers.bit_length()):
        reached = reached @ reached
    return bool(reached.all())


def _numbers(words: str) -> tuple[int, ...]:
    """Those of a list with commas."""
    return tuple(map(int, words.split(",")))


def _program(schedule: AllToAllSchedule | SteppedCollective) -> str:
    """The line with its hops (circuit_client.h)."""
    if isinstance(schedule, SteppedCollective):
        made = schedule.timeline
        words = ["blocks", str(id(schedule)), str(made.pieces), str(made.blocks)]
        topologies: Iterable[Sequence[tuple[int, ...]]] = schedule.hops()
    else:
        words = ["schedule", str(id(schedule))]
        topologies = map(without_waiting, hops_of(schedule))
    for hops in topologies:
        words += [str(len(hops)), *(str(word) for hop in hops for word in hop)]
    return " ".join(words)


def hops_of(schedule: AllToAllSchedule) -> list[list[Hop]]:
    """Per topology its hops, by slots."""
    whole = schedule.whole()
    sends = whole.sends[np.argsort(whole.sends[:, SLOT], kind="stable")].astype(np.int64)
    topology = whole.topology_of(sends)
    receivers = whole.links[topology, sends[:, SENDER], sends[:, PORT]]
    hops = np.column_stack([sends[:, SENDER], receivers, sends[:, [SOURCE, TARGET, PART]]])
    of_topologies: list[list[Hop]] = [[] for _ in range(schedule.reconfigurations)]
    for number, hop in zip(topology.tolist(), hops.tolist(), strict=True):
        of_topologies[number].append(tuple(hop))
    return of_topologies
