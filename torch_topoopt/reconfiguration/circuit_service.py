"""Moves circuits for the collectives of a job, on requests of its ranks.

Every rank, alone on its server, connects to a socket that only this user may open; for the protocol
see csrc/collectives/group/circuit_client.h. When all members of a group have requested a
collective, its size is known (of an all-to-all its matrix), and the service chooses whether
circuits move for it. If so, a topology of the members' servers is installed once all members have
reported that nothing is in flight on the one before; at the end the plan's own circuits are
restored. A topology whose circuits the plan has, or that is installed already, is not moved to.
Circuits that do not come up, or fail while data travels over them, stop the collective on
all members, with the reason, after the plan's circuits are restored.

Collectives of several groups share the switch. They run together if all of them stay on the plan's
circuits, or if they move circuits of different servers; else the later one waits. A waiting one is
not overtaken by another that would make it wait longer. Since one that runs has all of its members,
it ends without any that waits. Groups that are ready to move at nearly the same time move together.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.choice import Choice
    from torch_topoopt.reconfiguration.hop_order import Hop

_POLL_S = 0.5
_END_S = 30.0
_FIRST_CHANNEL = 0x80000000  # kFirstCircuitChannel (csrc/transport/frames/frame.h)


class CircuitMover(Protocol):
    """Moves the circuits of a job; methods raise FabricError (fabric/netns/circuit_mover.py)."""

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
    """One finished all-to-all; `matrix[i, j]` are the bytes of server i for server j. `error` is
    why it was stopped, or ""."""

    matrix: NDArray[np.int64]
    choice: Choice
    seconds: float
    moving_s: float  # part of it, until circuits were up
    error: str = ""

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


@dataclass
class _RequestedCall:
    """A requested collective, by (channel, number)."""

    name: str
    servers: tuple[int, ...]  # of the members, in their order
    requests: dict[int, list[int] | _CollectiveRequest] = field(default_factory=dict)
    matrix: NDArray[np.int64] | None = None  # of an all-to-all, after all requests
    choice: Choice | None = None
    runs: bool = False
    ready: set[int] = field(default_factory=set)
    ready_at: float = 0.0  # when the last member was
    topology: int = 0  # the next one
    # The mover's numbers of its topologies; None: the plan has its circuits.
    numbers: list[int | None] = field(default_factory=list)
    done: set[int] = field(default_factory=set)  # servers that finished on the plan's circuits
    there: int | None = None  # the installed topology; None: the plan's circuits
    began: float = 0.0
    moving_s: float = 0.0

    @property
    def complete(self) -> bool:
        return len(self.requests) == len(self.servers)

    @property
    def scheduled(self) -> bool:
        """Whether it goes from topology to topology, even if the plan has all of them."""
        return self.choice is not None and self.choice.schedule is not None

    @property
    def moves(self) -> bool:
        return self.choice is not None and self.choice.moves > 0

    @property
    def waits_for_circuits(self) -> bool:
        return self.runs and self.scheduled and len(self.ready) == len(self.servers)

    @property
    def is_there(self) -> bool:
        """Whether the circuits of the next topology are installed."""
        return self.next == self.there

    @property
    def next(self) -> int | None:
        """The mover's number of the next topology; None for the plan's circuits."""
        return self.numbers[self.topology] if self.topology < len(self.numbers) else None

    def shares_servers(self, other: _RequestedCall) -> bool:
        return not set(self.servers).isdisjoint(other.servers)

    def excludes(self, other: _RequestedCall) -> bool:
        """Whether both may not run at the same time."""
        if self.moves and other.moves:
            return self.shares_servers(other)
        return self.moves or other.moves

    def rows(self) -> list[list[int]] | None:
        """Of an all-to-all, in the order of the servers."""
        rows = [self.requests[server] for server in self.servers]
        found = [row for row in rows if isinstance(row, list)]
        return found if len(found) == len(rows) else None

    def collective(self) -> _CollectiveRequest | None:
        """If all members have requested the same one."""
        requests = [self.requests[server] for server in self.servers]
        first = requests[0]
        if not isinstance(first, _CollectiveRequest):
            return None
        same = all(
            isinstance(one, _CollectiveRequest) and one.arguments == first.arguments
            for one in requests
        )
        return first if same else None

    def ended(self, error: str) -> MovedExchange | MovedCollective | None:
        """None if it was not started with a choice."""
        if self.choice is None or not self.runs:
            return None
        seconds = time.monotonic() - self.began
        if self.matrix is not None:
            return MovedExchange(self.matrix, self.choice, seconds, self.moving_s, error)
        request = self.collective()
        if request is None:
            return None
        return MovedCollective(
            request.collective,
            request.total_bytes,
            len(self.servers),
            self.choice,
            seconds,
            self.moving_s,
            error,
        )


class CircuitService:
    """Serves the `servers` ranks of one job from a thread of its own, until it is closed.

    `choose` is called once for every all-to-all, with its matrix of bytes and its servers, and
    `choose_collective` for others; ranks do not request what has None. `ended` is called from the
    thread for each finished one that was started. Raises FabricError as the mover does.
    """

    def __init__(
        self,
        servers: int,
        mover: CircuitMover,
        choose: Callable[[NDArray[np.int64], tuple[int, ...]], Choice] | None,
        ended: Callable[[MovedExchange | MovedCollective], None] = lambda exchange: None,
        choose_collective: CollectiveChoices | None = None,
    ) -> None:
        self._servers = servers
        self._mover = mover
        self._choose = choose
        self._choose_collective = choose_collective
        self._ended = ended
        self._calls: dict[str, _RequestedCall] = {}  # in the order of the requests
        self._ranks: dict[int, _Rank] = {}
        # By id() of the schedule, which is kept so that the id stays unique, and servers.
        self._prepared: dict[tuple[int, tuple[int, ...]], tuple[object, list[int | None]]] = {}
        self._numbers: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], int] = {}
        self._sent: dict[int, set[int]] = {}  # id() of a schedule -> servers that know its hops
        self._move_s = 0.0  # duration of the last move
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
            self._listener.listen(servers)
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

    def _read(self, rank: _Rank) -> None:
        lines = rank.lines()
        if lines is None:
            return self._drop(rank)
        for line in lines:
            what, _, rest = line.partition(" ")
            if what == "server" and rank.server < 0:
                self._greet(rank, int(rest))
                continue
            channel, number, *words = rest.split(" ")
            name = f"{channel} {number}"
            if what == "ask":
                all_servers = tuple(range(self._servers))
                self._ask(rank, name, all_servers, [int(word) for word in words])
            elif what == "collective":
                collective, size, arguments, planned_s, *servers = words
                request = _CollectiveRequest(collective, int(size), arguments, float(planned_s))
                self._ask(rank, name, tuple(map(int, servers)), request)
            elif what == "ready":
                self._on_ready(rank, name, int(words[0]))
            elif what == "done":
                self._on_done(rank, name)
            elif what == "lost":
                self._stop(name, f"server {rank.server}: {' '.join(words)}")
            elif what == "leave":
                self._stop(name, " ".join(words))

    def _greet(self, rank: _Rank, server: int) -> None:
        rank.server = server
        self._ranks[server] = rank
        for known in self._sent.values():  # by an earlier process group of that rank
            known.discard(server)
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
        if self._ranks.get(rank.server) is rank:
            del self._ranks[rank.server]
            for call in tuple(self._calls.values()):
                if rank.server in call.servers:
                    self._stop(call.name, f"server {rank.server} has left")

    # ---- collectives ---------------------------------------------------------------------------

    def _ask(
        self,
        rank: _Rank,
        name: str,
        servers: tuple[int, ...],
        request: list[int] | _CollectiveRequest,
    ) -> None:
        call = self._calls.setdefault(name, _RequestedCall(name, servers))
        call.requests[rank.server] = request

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
            if not any(call.excludes(other) for other in earlier):
                self._start(call)
            if call.name in self._calls:
                earlier.append(call)

    def _start(self, call: _RequestedCall) -> None:
        call.began = time.monotonic()
        call.runs = True
        if call.choice is None:  # on the plan's circuits, ranks compare their calls
            del self._calls[call.name]
        if call.choice is None or call.choice.schedule is None:
            return self._notify(call.servers, f"stay {call.name}")
        self._hold_cables()
        try:
            call.numbers = self._topologies(call.choice, call.servers)
        except FabricError as error:
            return self._stop(call.name, str(error))
        words = [id(call.choice.schedule), self._channel_of(call.name)]
        if call.matrix is not None:
            words += call.matrix.ravel().tolist()
        self._notify(call.servers, f"move {call.name} {' '.join(map(str, words))}")

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

    def _channel_of(self, name: str) -> int:
        """The channel of the group's data, until one of its collectives is stopped."""
        group = name.partition(" ")[0]
        if group not in self._channels:
            self._channels[group] = self._next_channel
            self._next_channel += 1
        return self._channels[group]

    def _topologies(self, choice: Choice, servers: tuple[int, ...]) -> list[int | None]:
        """The mover's numbers of the schedule's topologies on these servers, whose ranks get its
        hops."""
        schedule = choice.schedule
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
        if unknown := set(servers) - known:
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
        call.done.add(rank.server)
        if len(call.done) == len(call.servers):
            self._end(call)

    def _on_ready(self, rank: _Rank, name: str, topology: int) -> None:
        call = self._calls.get(name)
        if call is None or not (call.runs and call.scheduled) or topology != call.topology:
            return
        call.ready.add(rank.server)
        call.ready_at = time.monotonic()

    def _move_all(self) -> float:
        """Moves circuits for all collectives that wait for them, in one change of the switch.

        It waits for others that may be ready soon, but not longer than a move takes. Returns the
        seconds after which it is to be called again.
        """
        waiting = [call for call in self._moving() if call.waits_for_circuits]
        if not waiting:
            return math.inf
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
            self._stop_all(" ".join([str(error), *getattr(error, "__notes__", ())]))
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
        self._notify(call.servers, f"moved {call.name} {topology}")
        if call.topology > len(call.numbers):
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
            self._channels.pop(name.partition(" ")[0], None)
        if call.there is not None:
            others = [other.there for other in self._moving() if other is not call]
            try:
                self._mover.move(number for number in others if number is not None)
            except FabricError as error:
                lost = f"; the circuits of the plan are not back: {error}"
        self._notify(call.servers, f"stop {name} {' '.join((why + lost).split())}")
        self._end(call, why + lost)
        if lost:
            self._stop_all(why + lost)

    def _end(self, call: _RequestedCall, error: str = "") -> None:
        del self._calls[call.name]
        self._hold_cables()
        if ended := call.ended(error):
            self._ended(ended)

    def _hold_cables(self) -> None:
        """Ranks do not judge cables while circuits move: others than the members' may be dark."""
        held = any(call.moves for call in self._moving())
        if held is not self._held:
            self._held = held
            self._notify(tuple(self._ranks), "hold" if held else "free")

    def _notify(self, servers: Iterable[int], line: str) -> None:
        for server in servers:
            if server in self._ranks:
                self._send(self._ranks[server], line)

    def _send(self, rank: _Rank, line: str) -> None:
        with suppress(OSError):  # disconnected; its end of the connection will report it
            rank.connection.sendall(line.encode() + b"\n")


class _Rank:
    """The connection of one rank; `server` is -1 until its first message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.server = -1
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
