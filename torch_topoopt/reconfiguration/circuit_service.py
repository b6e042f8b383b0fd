"""Moves circuits for the collectives of a job, on requests of its ranks.

Every rank connects to a socket that only this user may open; for the protocol see
csrc/collectives/group/circuit_client.h. When all members of a group have requested a collective,
its size is known (of an all-to-all its matrix), and the service chooses whether circuits move for
it. If so, a topology of the members' servers is installed once all members have reported that
nothing is in flight on the one before. A topology whose circuits the plan has, or that is installed
already, is not moved to. Circuits that do not come up, or fail while data travels over them, stop
the collective on all members, with the reason, after the plan's circuits are restored. Schedules
are of servers: the ranks of one share them.

Collectives of several groups share the switch. They run together if all of them stay on the plan's
circuits, or if they move circuits of different servers; else the later one waits. A waiting one is
not overtaken by another that would make it wait longer. Since one that runs has all of its members,
it ends without any that waits. Groups that are ready to move at nearly the same time move together.

A collective ends when its data is there. Its circuits stay until others are needed: the first
topology of the collective that all ranks of a group are expected to request next
(expected_calls.py), or the plan's circuits if nothing is expected, if the next one uses them, or
if a rank has messages for a server that the installed circuits do not lead to. So they move while
ranks compute.
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
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.circuit_messages import (
    RankConnection,
    numbers_of,
    program_line,
)
from torch_topoopt.reconfiguration.expected_calls import ExpectedCalls, FirstTopology
from torch_topoopt.reconfiguration.installed_circuits import InstalledCircuits
from torch_topoopt.reconfiguration.requested_calls import CollectiveRequest, RequestedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.choice import Choice
    from torch_topoopt.reconfiguration.installed_circuits import CircuitMover
    from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange

_POLL_S = 0.5
_END_S = 30.0
_FIRST_CHANNEL = 0x80000000  # kFirstCircuitChannel (csrc/transport/frames/frame.h)


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


class CircuitService:
    """Serves the `ranks` ranks of one job from a thread of its own, until it is closed.

    `choose` is called once for every all-to-all, with its matrix of bytes and its servers, and
    `choose_collective` for others; ranks do not request what has None. `ended` is called from the
    thread for each finished one that was started. Without `ahead`, each begins and ends with the
    plan's circuits. Raises FabricError as the mover does.
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
        self._circuits = InstalledCircuits(mover)
        self._choose = choose
        self._choose_collective = choose_collective
        self._ended = ended
        self._calls: dict[str, RequestedCall] = {}  # in the order of the requests
        self._ranks: dict[int, RankConnection] = {}
        # By id() of the schedule, which is kept so that the id stays unique, and servers.
        self._prepared: dict[tuple[int, tuple[int, ...]], tuple[object, list[int | None]]] = {}
        self._sent: dict[int, set[int]] = {}  # id() of a schedule -> ranks that know its hops
        self._expected = ExpectedCalls()
        self._moves_ahead = ahead
        self._ahead: dict[int, frozenset[int]] | None = {}  # cache; None: to be found
        self._last_end = 0.0
        self._restores = False  # until the plan's circuits are installed, none moves away from them
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
            self._circuits.close()

    def _serve_until_closed(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._events, selectors.EVENT_READ)
        patience_s = _POLL_S
        while not self._closing:
            for key, _ in self._selector.select(patience_s):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    connection.settimeout(_END_S)
                    rank = RankConnection(connection)
                    self._selector.register(connection, selectors.EVENT_READ, rank)
                elif key.fileobj is self._events:
                    self._look()
                else:
                    self._read(key.data)
            self._start_all()
            if (now := time.monotonic()) >= self._expected.limit:
                self._give_up_ahead(now)
            left_s = min(self._move_all(), self._expected.limit - time.monotonic())
            patience_s = min(_POLL_S, max(0.0, left_s))

    def _read(self, rank: RankConnection) -> None:
        lines = rank.lines()
        if lines is None:
            return self._drop(rank)
        for line in lines:
            what, _, rest = line.partition(" ")
            if what == "rank" and rank.number < 0:
                rank.number, rank.server = map(int, rest.split(" "))
                self._greet(rank)
            elif what == "restore":
                self._on_restore(rank)
            else:
                self._on_call(rank, what, rest)

    def _on_call(self, rank: RankConnection, what: str, rest: str) -> None:
        channel, number, *words = rest.split(" ")
        name = f"{channel} {number}"
        if what == "ask":
            self._ask(rank, name, words, list(numbers_of(words[2])))
        elif what == "collective":
            collective, size, arguments, planned_s = words[2:-1]
            request = CollectiveRequest(collective, int(size), arguments, float(planned_s))
            self._ask(rank, name, words, request)
        elif what == "ready":
            self._on_ready(rank, name, int(words[0]))
        elif what == "done":
            self._on_done(rank, name)
        elif what == "lost":
            self._stop(name, f"server {rank.server}: {' '.join(words)}")
        elif what == "leave":
            self._stop(name, " ".join(words))

    def _greet(self, rank: RankConnection) -> None:
        self._ranks[rank.number] = rank
        for known in self._sent.values():  # by an earlier process group of that rank
            known.discard(rank.number)
        others = self._choose_collective
        least_s = math.inf if others is None else others.least_s
        rank.send(f"asks {int(self._choose is not None)} {least_s:.9g}")
        self._send_reach()

    def _look(self) -> None:
        """Handles lost circuits; changes during a move are expected."""
        self._read_events()
        for call in self._moving():
            if call.there is not None and (why := self._circuits.lost(call.there)):
                self._stop(call.name, why)
        used = {call.there for call in self._moving()}
        unused = self._circuits.topologies.keys() - used
        if lost := {number for number in unused if self._circuits.lost(number)}:
            self._give_up_ahead()
            self._install_or_stop(self._circuits.topologies.keys() - lost)

    def _read_events(self) -> None:
        while True:
            try:
                self._events.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # overflow: some circuits are lost
                    raise

    def _drop(self, rank: RankConnection) -> None:
        """Removes a rank that has disconnected from all exchanges."""
        self._selector.unregister(rank.connection)
        rank.connection.close()
        if self._ranks.get(rank.number) is rank:
            del self._ranks[rank.number]
            self._restores = True
            for call in tuple(self._calls.values()):
                if rank.number in call.members:
                    self._stop(call.name, f"server {rank.server} has left")

    # ---- collectives ---------------------------------------------------------------------------

    def _ask(
        self,
        rank: RankConnection,
        name: str,
        words: list[str],
        request: list[int] | CollectiveRequest,
    ) -> None:
        """`words` begin with the ranks of the members and their servers, and end with the servers
        of earlier messages."""
        if name not in self._calls:
            members, servers = numbers_of(words[0]), tuple(dict.fromkeys(numbers_of(words[1])))
            self._calls[name] = RequestedCall(name, members, servers)
        self._calls[name].requests[rank.number] = request
        used = () if words[-1] == "-" else numbers_of(words[-1])
        self._calls[name].used[rank.number] = frozenset(used)

    def _on_restore(self, rank: RankConnection) -> None:
        """A rank has messages for servers that it does not reach."""
        running = {server for call in self._moving() for server in call.servers}
        servers = frozenset[int]().union(*self._circuits.topologies.values()) - running
        for other in self._ranks.values():
            if other is rank or other.server in servers:
                self._expected.doubt(other.number)
        self._give_up_ahead()
        self._restores = True

    def _moving(self) -> list[RequestedCall]:
        return [call for call in self._calls.values() if call.runs and call.scheduled]

    def _start_all(self) -> None:
        """Starts each that all members have requested, unless an earlier one excludes it."""
        earlier = [call for call in self._calls.values() if call.runs]
        for call in tuple(self._calls.values()):
            if call.runs or not call.complete:
                continue
            if call.choice is None:
                call.choice = self._chosen(call)
                self._expected.add(call.key(), call.used, time.monotonic())
                self._ahead = None
            waits = self._restores and call.moves
            if not waits and not any(call.excludes(other) for other in earlier):
                self._start(call)
            if call.name in self._calls:
                earlier.append(call)

    def _start(self, call: RequestedCall) -> None:
        call.began = time.monotonic()
        call.runs = True
        self._ahead = None
        try:
            if call.scheduled:
                call.numbers = self._topologies(call)
            else:
                self._install(())
        except FabricError as error:
            return self._stop(call.name, str(error))
        if call.choice is None:  # on the plan's circuits, ranks compare their calls
            del self._calls[call.name]
        if call.choice is None or call.choice.schedule is None:
            return self._notify(call.members, f"stay {call.name}")
        self._send_reach()
        number, first = call.numbers[0], None
        if number is not None:
            first = FirstTopology(number, call.members, frozenset(call.servers))
        self._expected.begin(call.key(), first)
        words = [id(call.choice.schedule), self._channel_of(call.channel)]
        if call.matrix is not None:
            words += call.matrix.ravel().tolist()
        self._notify(call.members, f"move {call.name} {' '.join(map(str, words))}")

    def _chosen(self, call: RequestedCall) -> Choice | None:
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

    def _channel_of(self, group: str) -> int:
        """The channel of the group's data, until one of its collectives is stopped."""
        if group not in self._channels:
            self._channels[group] = self._next_channel
            self._next_channel += 1
        return self._channels[group]

    def _topologies(self, call: RequestedCall) -> list[int | None]:
        """The mover's numbers of the topologies of the call's schedule; the members get its
        hops."""
        assert call.choice is not None
        schedule = call.choice.schedule
        assert schedule is not None
        key = (id(schedule), call.servers)
        if key not in self._prepared:
            links = schedule.links.tolist()
            numbers = [
                None if present else self._circuits.number_of(topology, call.servers)
                for topology, present in zip(links, call.choice.present_topologies, strict=True)
            ]
            self._prepared[key] = (schedule, numbers)
        known = self._sent.setdefault(id(schedule), set())
        if unknown := set(call.members) - known:
            known |= unknown
            self._notify(sorted(unknown), program_line(schedule))
        return self._prepared[key][1]

    def _on_done(self, rank: RankConnection, name: str) -> None:
        call = self._calls.get(name)
        if call is None:
            return
        call.done.add(rank.number)
        if len(call.done) == len(call.members):
            self._end(call)

    def _on_ready(self, rank: RankConnection, name: str, topology: int) -> None:
        call = self._calls.get(name)
        if call is None or not (call.runs and call.scheduled) or topology != call.topology:
            return
        call.ready.add(rank.number)
        call.ready_at = time.monotonic()

    # ---- moves ---------------------------------------------------------------------------------

    def _move_all(self) -> float:
        """Moves circuits for all collectives that wait for them, and ahead of expected ones, in one
        change of the switch.

        It waits for others that may be ready soon, but not longer than a move takes. Returns the
        seconds after which it is to be called again.
        """
        waiting = [call for call in self._moving() if call.waits_for_circuits]
        if there := [call for call in waiting if self._needs_no_move(call)]:
            for call in there:
                self._on_moved(call)
            return 0.0
        numbers = self._wanted(waiting)
        if not waiting and numbers == self._circuits.topologies.keys():
            again, self._restores = self._restores and not numbers, self._restores and bool(numbers)
            return 0.0 if again else math.inf
        began = time.monotonic()
        since = min((call.ready_at for call in waiting), default=self._last_end)
        left_s = since + self._circuits.move_s - began
        soon = any(self._may_be_ready_soon(call) for call in self._calls.values())
        if left_s > 0 and soon and not self._restores:
            return left_s
        if not self._install_or_stop(numbers, [rank for call in waiting for rank in call.members]):
            return 0.0
        for call in waiting:
            call.moving_s += time.monotonic() - began
            self._on_moved(call)
        if any(call.there is not None and call not in waiting for call in self._moving()):
            self._look()  # their circuits may have been lost in the meantime
        return 0.0

    def _wanted(self, waiting: list[RequestedCall]) -> set[int]:
        """The topologies to be installed: those of calls that are `waiting` for them, of calls that
        use theirs or have not had their first one, and those ahead of expected calls."""
        ahead = self._topologies_ahead()
        others, taken = set[int](), set[int]().union(*ahead.values())
        for call in self._moving():
            (taken if call in waiting else others).update(call.servers)
        stay = {
            number
            for number, servers in self._circuits.topologies.items()
            if taken.isdisjoint(servers) and not others.isdisjoint(servers)
        }
        return {call.next for call in waiting if call.next is not None} | stay | ahead.keys()

    def _needs_no_move(self, call: RequestedCall) -> bool:
        if call.ends and self._moves_ahead:
            return True
        return self._circuits.have(call.servers, call.next)

    def _topologies_ahead(self) -> dict[int, frozenset[int]]:
        """Those for servers without a collective; the plan's circuits are for all others."""
        if not self._moves_ahead or self._restores:
            self._expected.wait((), 0.0)
            self._ahead = None
            return {}
        if self._ahead is None:
            self._ahead = self._found_ahead()
        return self._ahead

    def _found_ahead(self) -> dict[int, frozenset[int]]:
        calls = [call for call in self._calls.values() if call.complete]
        if any(call.runs and not call.scheduled for call in calls):
            return {}
        ranks_of: dict[int, list[int]] = {}
        for rank in self._ranks.values():
            ranks_of.setdefault(rank.server, []).append(rank.number)
        waiting = {rank for call in calls if not call.runs for rank in call.members}
        running = {server for call in calls if call.runs for server in call.servers}
        found = self._expected.topologies(
            ranks_of, waiting, running, self._circuits.topologies, self._reached_alone
        )
        servers = frozenset[int]().union(*found.values())
        ranks = {rank for server in servers for rank in ranks_of.get(server, ())}
        self._expected.wait(ranks - waiting, time.monotonic())
        return found

    def _reached_alone(self, number: int, server: int) -> frozenset[int]:
        """Servers that this one reaches over one topology."""
        return self._circuits.reached(server, [number]) or frozenset()

    def _install(self, numbers: Iterable[int], inside: Iterable[int] = ()) -> None:
        """Installs exactly these topologies. The ranks `inside` of a collective that waits for them
        have no other messages. Raises FabricError."""
        after, before = set(numbers), set(self._circuits.topologies)
        if changed := self._circuits.servers_changed(after):
            self._send_reach((before, after), changed, set(inside))
        try:
            self._circuits.move(after)
        finally:
            self._read_events()
            self._send_reach()

    def _install_or_stop(self, numbers: Iterable[int], inside: Iterable[int] = ()) -> bool:
        """False if that fails. Then those ahead of expected calls go first, and if there are none,
        all calls are stopped whose circuits move."""
        try:
            self._install(numbers, inside)
        except FabricError as error:
            if self._ahead:
                self._give_up_ahead()
            else:
                self._stop_all(" ".join([str(error), *getattr(error, "__notes__", ())]))
            return False
        return True

    def _send_reach(
        self,
        installed: tuple[set[int], ...] = (),
        changed: frozenset[int] = frozenset(),
        inside: set[int] | frozenset[int] = frozenset(),
    ) -> None:
        """Notifies ranks of the servers that they reach, if it is not what they know: over all of
        the sets of topologies `installed` (none: the current ones), and while circuits of `changed`
        servers move."""
        sets = installed or (set(self._circuits.topologies),)
        held = any(sets) or any(call.moves for call in self._moving())
        servers = frozenset(rank.server for rank in self._ranks.values())
        for rank in self._ranks.values():
            if rank.number in inside:
                continue
            reached = servers - changed if rank.server not in changed else frozenset({rank.server})
            for numbers in sets:
                reached &= self._circuits.reached(rank.server, numbers) or servers
            rank.send_reach(reached if held else None, changes=bool(changed))

    def _give_up_ahead(self, now: float = math.inf) -> None:
        """Doubts expectations with a limit before `now`, so that their topologies go."""
        self._expected.give_up(now)
        self._ahead = None

    def _may_be_ready_soon(self, call: RequestedCall) -> bool:
        """Whether some members are, or some have requested it and nothing makes it wait."""
        if call.runs:
            return call.scheduled and not call.waits_for_circuits
        return not call.complete and not any(map(call.shares_servers, self._moving()))

    def _on_moved(self, call: RequestedCall) -> None:
        topology, call.there = call.topology, call.next
        call.ready.clear()
        call.topology += 1
        self._notify(call.members, f"moved {call.name} {topology}")
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
            self._channels.pop(call.channel, None)
        if call.there is not None:
            try:
                self._install(self._circuits.topologies.keys() - {call.there})
            except FabricError as error:
                lost = f"; the circuits of the plan are not back: {error}"
        self._notify(call.members, f"stop {name} {' '.join((why + lost).split())}")
        self._end(call, why + lost)
        if lost:
            self._stop_all(why + lost)

    def _end(self, call: RequestedCall, error: str = "") -> None:
        del self._calls[call.name]
        self._last_end = time.monotonic()
        self._expected.end(call.members, self._last_end)
        self._ahead = None
        self._send_reach()
        if ended := call.ended(error, of_all=len(call.members) == self._rank_count):
            self._ended(ended)

    def _notify(self, ranks: Iterable[int], line: str) -> None:
        for rank in ranks:
            if rank in self._ranks:
                self._ranks[rank].send(line)
