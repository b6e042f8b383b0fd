"""Reconnects cables that a running job has lost.

A lost cable is opened as at the start: its source connects to its target's listener, which stays
open while the job runs, and both authenticate (handshake.py). Frames in flight at the loss were
resent over other links (csrc/transport/endpoint/local_cables.h).

A link that stays lost may have got another circuit, between spare ports of its two servers
(fabric/switches/spare_circuits.py). So after `SPARE_VARIABLE` seconds its source tries these in
turn, one at a time: both ends agree on the first that works.

A cable in use may also move to another source port, and so to another path of a switched network:
the old connection is used until both ends have the new one.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.environment import SPARE_VARIABLE
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.sockets import connections, describe, ends_of, link_of

if TYPE_CHECKING:
    from torch_topoopt.links.identity import Ends, Identity
    from torch_topoopt.links.proof import Outcome
    from torch_topoopt.links.sockets import PortPair, ServerPorts
    from torch_topoopt.links.source_ports import LinkWatcher
    from torch_topoopt.plan import Link, Plan

_DIAL_TIMEOUT_S = 1.0  # for connecting and for the proof
_RETRY_S = 0.25  # after an attempt that failed
_CLOSE_LIMIT_S = 5.0
_LEAST_SPARE_S, _MOST_SPARE_S = 1.0, 86400.0

log = logging.getLogger("torch_topoopt")


def spare_limit_s() -> float:
    """How long a link is lost before it may move to spare ports; raises FabricError."""
    text = os.environ.get(SPARE_VARIABLE, "10")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST_SPARE_S <= seconds <= _MOST_SPARE_S:
        raise FabricError(
            f"{SPARE_VARIABLE}: {text!r} is not a number of seconds in "
            f"{_LEAST_SPARE_S:g}..{_MOST_SPARE_S:g}"
        )
    return seconds


class CableSession(Protocol):
    """The user of the cables: _backend.Session."""

    @property
    def cables_event(self) -> int: ...

    def lost_cables(self) -> list[int]: ...

    def slow_cables(self) -> list[int]: ...

    def begin_move(self, cable: int) -> bool: ...

    def end_move(self, cable: int) -> None: ...

    def replace_cable(self, cable: int, fd: int, tls_key: bytes) -> None: ...


class CableKeeper:
    """A thread that connects and accepts lost cables of one server until close().

    It also ends with `session`, to which it holds a weak reference. A cable is one connection;
    their numbers follow the order of links in connections(plan), with those of one link in a row.
    The object owns `ports`, whose listeners are open. New connections are `encrypted` if the first
    ones were. `watcher` is notified of changes of links that this server connects.
    """

    def __init__(
        self,
        identity: Identity,
        ports: ServerPorts,
        plan: Plan,
        session: CableSession,
        *,
        encrypted: bool = False,
        watcher: LinkWatcher | None = None,
    ) -> None:
        self._ports = ports
        self._encrypted = encrypted
        self._watcher = watcher
        self._slow: set[int] = set()
        self._to_move: queue.SimpleQueue[Ends] = queue.SimpleQueue()
        self._postponed: list[Ends] = []
        self._moving: set[Ends] = set()
        every = (ends_of(link, k) for link in connections(plan) for k in range(ports.per_link))
        self._number = {ends: i for i, ends in enumerate(every)}
        self._dialling: set[Ends] = set()
        self._not_before: dict[Ends, float] = {}
        self._lost_since: dict[Ends, float] = {}
        self._attempts: dict[Ends, int] = {}  # since the limit
        self._between: dict[Ends, PortPair] = {}  # of the last attempt
        self._open_between: dict[Ends, PortPair] = {}  # of the last success
        self._spare_after_s = spare_limit_s()
        self._closing = False
        self._handshakes = Handshakes(identity)
        ports.expect(self._handshakes)
        self._handshakes.watch(session.cables_event)
        wake = self._handshakes.wake
        self._session = weakref.ref(session, lambda _: wake())
        self._thread = threading.Thread(target=self._run, name="topoopt-cables", daemon=True)
        self._thread.start()
        _keepers.add(self)

    def move(self, link: Link) -> None:
        """Reopens the first connection of a link that this server connects; from any thread."""
        self._to_move.put(ends_of(link))
        self._handshakes.wake()

    def close(self) -> None:
        """Ends the thread, and closes the listeners."""
        self._closing = True
        self._handshakes.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_LIMIT_S)
        self._ports.close()

    def abandon(self) -> None:
        """Closes the listeners in a forked process, which has no copy of the thread."""
        self._ports.close()

    def _run(self) -> None:
        with self._handshakes:
            while not self._closing and (session := self._session()) is not None:
                lost = session.lost_cables()
                wait_s = min(self._begin_moves(session, lost), self._dial(lost))
                self._look_at_speeds(session)
                del session
                for outcome in self._handshakes.poll(wait_s):
                    self._use(outcome)
        self._ports.close()

    def _dial(self, lost: list[int]) -> float:
        """Starts due connections; returns seconds until the next one is due."""
        outgoing = self._ports.outgoing_connections()
        wanted = [ends for ends in outgoing if self._number[ends] in lost]
        now = time.monotonic()
        self._lost_since = {ends: self._lost_since.get(ends, now) for ends in wanted}
        self._attempts = {ends: self._attempts.get(ends, 0) for ends in wanted}
        for ends in wanted:
            if ends in self._dialling or self._not_before.get(ends, 0.0) > now:
                continue
            self._not_before[ends] = now + _RETRY_S
            between, timeout_s = self._next_attempt(ends, now)
            self._between[ends] = between
            try:
                self._ports.dial(ends, self._handshakes, timeout_s, between)
            except OSError as error:  # the interface is down, or has lost its address
                log.debug("link from %s: %s", ends, error.strerror)
            else:
                self._dialling.add(ends)
        return _RETRY_S if wanted else float("inf")

    def _next_attempt(self, ends: Ends, now: float) -> tuple[PortPair, float]:
        """Ports, and a timeout. After the limit all ports have their turn: without a circuit they
        do not answer, so timeouts begin short and double after each round."""
        pairs = self._ports.port_pairs(link_of(ends))
        if len(pairs) == 1 or now - self._lost_since[ends] < self._spare_after_s:
            return self._open_between.get(ends, pairs[0]), _DIAL_TIMEOUT_S
        rounds, turn = divmod(self._attempts[ends], len(pairs))
        self._attempts[ends] += 1
        return pairs[turn], min(_RETRY_S * 2 ** min(rounds, 8), _DIAL_TIMEOUT_S)

    def _begin_moves(self, session: CableSession, lost: list[int]) -> float:
        """Dials cables to move, in use or lost; returns seconds until the next one is due."""
        wanted, self._postponed = self._postponed, []
        while not self._to_move.empty():
            wanted.append(self._to_move.get())
        for ends in dict.fromkeys(wanted):
            number = self._number[ends]
            if ends in self._dialling:
                self._postponed.append(ends)  # until the current attempt wakes this thread
            elif number in lost:
                pass
            elif not session.begin_move(number):  # it is changing between lost and in use
                self._postponed.append(ends)
            else:
                try:
                    between = self._open_between.get(ends)
                    self._ports.dial(ends, self._handshakes, _DIAL_TIMEOUT_S, between)
                except OSError as error:
                    session.end_move(number)
                    self._note_degraded(ends, str(error.strerror or error))
                else:
                    self._dialling.add(ends)
                    self._moving.add(ends)
        return _RETRY_S if self._postponed else float("inf")

    def _look_at_speeds(self, session: CableSession) -> None:
        if self._watcher is None:
            return
        slow = set(session.slow_cables())
        for ends in self._ports.outgoing_connections():
            if self._number[ends] in slow - self._slow:
                self._note_degraded(ends, "it is slow")
        self._slow = slow

    def _note_ports(self, ends: Ends) -> None:
        """A lost link is open again."""
        link, (near, far) = link_of(ends), self._between[ends]
        moved = (near.port, far.port) != (link.source_port, link.target_port)
        if moved and self._open_between.get(ends) != (near, far):
            log.warning(
                "the %s is open on port %d of server %d and port %d of server %d instead",
                *(describe(link), near.port, near.server, far.port, far.server),
            )
        self._open_between[ends] = near, far

    def _note_degraded(self, ends: Ends, why: str) -> None:
        if self._watcher is not None:
            self._watcher.degraded(link_of(ends), why)

    def _use(self, outcome: Outcome) -> None:
        dialled = None if outcome.accepted else outcome.ends
        if dialled not in self._dialling:
            dialled = None
        number = self._number[outcome.ends]
        session = self._session()
        if outcome.connection is None:
            log.debug("%s", outcome.error)
            if dialled in self._moving and session is not None:
                session.end_move(number)
        elif session is None:
            outcome.connection.close()
        else:
            if dialled is not None and dialled not in self._moving:
                self._note_ports(dialled)
            key = outcome.key if self._encrypted else b""
            session.replace_cable(number, outcome.connection.detach(), key)
        if dialled is None:
            return
        self._dialling.discard(dialled)
        self._moving.discard(dialled)
        if outcome.connection is None:
            self._note_degraded(dialled, outcome.error)
        elif self._watcher is not None:
            self._watcher.moved(link_of(dialled))


_keepers: weakref.WeakSet[CableKeeper] = weakref.WeakSet()


def _abandon_all() -> None:
    for keeper in list(_keepers):
        keeper.abandon()


os.register_at_fork(after_in_child=_abandon_all)
