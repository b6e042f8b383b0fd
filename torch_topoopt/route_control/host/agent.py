"""Applies the controller's paths to the connections of one host, or reports a fallback to ECMP.

One thread calls the controller, another one waits for updates (a long poll). Nothing else waits for
them, except that a starting job waits for the first answer, for a limited time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.links.sockets import describe
from torch_topoopt.plan.units import counted
from torch_topoopt.route_control.controller.client import (
    Assignments,
    ControllerClient,
    ControllerRefused,
    ControllerUnavailable,
)
from torch_topoopt.route_control.host.flow_ports import FlowPorts
from torch_topoopt.route_control.host.reports import FlowReports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.plan import Link
    from torch_topoopt.route_control.controller.messages import FlowReport
    from torch_topoopt.route_control.host.link_flows import LinkFlow
    from torch_topoopt.route_control.host.settings import ControllerSettings

_FIRST_PAUSE_S = 0.5  # after a call that failed, doubled each time
_LONGEST_PAUSE_S = 4.0
_COUNT_S = 2.0  # between two counts of the sent bytes of links without planned bytes
_SAME_FLOW_S = 2.0  # a flow is reported as degraded at most once in this time
_CLOSE_LIMIT_S = 2.5

log = logging.getLogger("torch_topoopt")


@dataclass(frozen=True)
class Connections:
    """The agent's operations on open connections. All return at once.

    `move` reopens a link, `limit` caps the rate of its connection in Gb/s (None: no cap), and
    `sent_bytes` are the bytes that each link has sent so far.
    """

    move: Callable[[Link], None]
    limit: Callable[[Link, float | None], None]
    sent_bytes: Callable[[], Mapping[Link, int]]


@dataclass(frozen=True)
class _Degraded:
    link: Link
    why: str


@dataclass(frozen=True)
class _Gone:
    """The end of a long poll."""

    poll: ControllerClient
    error: ControllerUnavailable | ControllerRefused


class RouteAgent:
    """The flows of one server of a job. For `fabric` it provides the source ports of links, and
    watches them. `note` gets events: a word, and values for a log."""

    def __init__(
        self,
        settings: ControllerSettings,
        job: str,
        server: int,
        flows: Sequence[LinkFlow],
        note: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._job = job
        self._server = server
        self._links = {flow.id: flow.link for flow in flows}
        self._ids = {flow.link: flow.id for flow in flows}
        self._reports = FlowReports(
            flows, settings.host, settings.threshold_bytes, self._say_unnamed
        )
        self._note = note
        self._ports = FlowPorts([flow.link for flow in flows], self._say_refused)
        self._connections: Connections | None = None
        self._following = False
        self._alone = False  # and this has been reported
        self._left: dict[Link, str] = {}  # left to ECMP, with the reason
        self._degraded_at: dict[Link, float] = {}
        self._applied: dict[Link, int] = {}  # epoch of its newest answer
        self._paths: dict[Link, tuple[str, ...]] = {}  # as noted; () with ECMP
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._answered = threading.Event()
        self._saying = threading.Lock()
        self._closing = threading.Event()
        self._poll: ControllerClient | None = None
        self._thread = threading.Thread(target=self._run, name="topoopt-routes", daemon=True)

    # ---- called by the job -----------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the controller has answered, is unavailable, or is too slow."""
        self._thread.start()
        if self._answered.wait(self._settings.limit_s):
            return
        with self._saying:
            if not self._answered.is_set():
                self._say_alone(f"no answer within {self._settings.limit_s:g} s")

    def follow(self, connections: Connections) -> None:
        """Registers the open connections."""
        for link in self._ids:
            self._ports.end_move(link, made=True)
        self._connections = connections
        for link in self._ids:  # an answer may have arrived in the meantime
            self._move(link)

    def close(self) -> None:
        """Ends the flows, if the controller is available, and both threads."""
        self._closing.set()
        self._events.put(None)
        if poll := self._poll:
            poll.interrupt()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_LIMIT_S)

    # ---- called by the fabric --------------------------------------------------------------------

    def ports_of(self, link: Link) -> tuple[int, ...]:
        return self._ports.ports_of(link)

    def limit_gbps(self, link: Link) -> float | None:
        return self._ports.limit_gbps(link)

    def taken(self, link: Link, port: int, refused: Sequence[int]) -> None:
        self._ports.taken(link, port, refused)

    def moved(self, link: Link) -> None:
        self._ports.end_move(link, made=True)
        port = self._ports.port(link)
        log.info("controller: %s leaves from port %d now", describe(link), port)
        self._note("moved", link=describe(link), source_port=port)
        self._move(link)  # it may have got other ports in the meantime

    def degraded(self, link: Link, why: str) -> None:
        self._ports.end_move(link, made=False)
        self._events.put(_Degraded(link, why))

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        settings = self._settings
        while not self._closing.is_set():
            try:
                with ControllerClient(
                    settings.url, settings.token.reveal(), settings.limit_s
                ) as client:
                    self._follow(client)
            except (ControllerUnavailable, ControllerRefused, ValueError) as error:
                pause_s = _FIRST_PAUSE_S if self._following else pause_s
                self._following = False
                self._fall_back(str(error).removeprefix("controller: "))
            self._end_poll()
            self._answered.set()
            self._wait_alone(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _follow(self, client: ControllerClient) -> None:
        """Reports the flows and applies the answers, until the job ends."""
        self._applied.clear()
        host = self._reports.name_ends(client.network())
        self._reports.new({})
        epoch = self._report(client, list(self._reports.made.values()))
        self._following = True
        with self._saying:
            self._say_back()
            self._answered.set()
        if host is None or not (self._reports.made or self._reports.counted):
            self._closing.wait()
            return
        self._poll = ControllerClient(
            self._settings.url, self._settings.token.reveal(), self._settings.limit_s
        )
        poller = threading.Thread(
            target=self._wait_for_news,
            args=(self._poll, host, epoch),
            name="topoopt-news",
            daemon=True,
        )
        poller.start()
        while not self._closing.is_set():
            event = self._next(_COUNT_S if self._reports.counted else None)
            if isinstance(event, _Gone) and event.poll is self._poll:
                raise event.error
            if isinstance(event, Assignments):
                self._apply(event)
            elif isinstance(event, _Degraded):
                self._report_degraded(client, event)
            if self._connections is not None and self._reports.counted:
                self._report(client, self._reports.new(self._connections.sent_bytes()))
        self._end(client)

    def _wait_for_news(self, poll: ControllerClient, host: str, after: int) -> None:
        with poll:
            try:
                while self._poll is poll and not self._closing.is_set():
                    news = poll.wait(host, after)
                    if news.epoch < after:
                        raise ControllerUnavailable("it has lost its state")
                    after = news.epoch
                    self._events.put(news)
            except (ControllerUnavailable, ControllerRefused) as error:
                self._events.put(_Gone(poll, error))

    def _end_poll(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.interrupt()

    def _next(self, limit_s: float | None) -> object:
        try:
            return self._events.get(timeout=limit_s)
        except queue.Empty:
            return None

    def _wait_alone(self, seconds: float) -> None:
        """Without the controller, a degraded link gets another connection by ECMP."""
        until = time.monotonic() + seconds
        while not self._closing.is_set() and (left := until - time.monotonic()) > 0:
            event = self._next(left)
            if isinstance(event, _Degraded) and self._is_due(event.link):
                self._leave(event.link, event.why)
                self._move(event.link, anyway=True)

    # ---- requests and answers --------------------------------------------------------------------

    def _report(self, client: ControllerClient, reports: Sequence[FlowReport]) -> int:
        """Reports flows and applies the answer; returns its epoch."""
        if not reports:
            return 0
        try:
            answer = client.start(self._job, reports)
        except ControllerRefused:  # an earlier job may have left other flows with these ids
            for report in reports:
                with contextlib.suppress(ControllerRefused):
                    client.end([report.id])
            answer = client.start(self._job, reports)
        self._apply(answer)
        return answer.epoch

    def _report_degraded(self, client: ControllerClient, event: _Degraded) -> None:
        report = self._reports.made.get(event.link)
        if report is None or not self._is_due(event.link):
            return
        log.warning(
            "%s: %s; the controller is asked for another path", describe(event.link), event.why
        )
        self._note("degraded", link=describe(event.link), why=event.why)
        before = self._ports.assigned(event.link)
        answer = client.degraded(report.id)
        self._apply(answer)
        if any(flow.source_ports == before for flow in answer.flows if flow.id == report.id):
            log.warning("%s: the controller has no other path for it", describe(event.link))

    def _is_due(self, link: Link) -> bool:
        now = time.monotonic()
        if now - self._degraded_at.get(link, -_SAME_FLOW_S) < _SAME_FLOW_S:
            return False
        self._degraded_at[link] = now
        return True

    def _apply(self, news: Assignments) -> None:
        for flow in news.flows:
            link = self._links.get(flow.id)
            if link is None or link not in self._reports.made:
                continue  # belongs to another job of this host
            if news.epoch < self._applied.get(link, 0):
                continue
            self._applied[link] = news.epoch
            limit_gbps = None if flow.rate_bits_per_s is None else flow.rate_bits_per_s / 1e9
            limited = limit_gbps != self._ports.limit_gbps(link)
            self._ports.assign(link, flow.source_ports, limit_gbps)
            self._note_path(link, (flow.path or ()) if flow.source_ports else ())
            if flow.source_ports:
                self._left.pop(link, None)
            elif flow.path is None:
                self._leave(link, "the controller has no path for it")
            elif len(flow.path) > 1:
                self._leave(link, "no source port is known for its path")
            self._move(link)
            if limited and self._connections is not None:
                self._connections.limit(link, limit_gbps)

    def _move(self, link: Link, *, anyway: bool = False) -> None:
        if self._connections is not None and self._ports.begin_move(link, anyway=anyway):
            self._connections.move(link)

    def _end(self, client: ControllerClient) -> None:
        ids = [report.id for report in self._reports.made.values()]
        with contextlib.suppress(ControllerUnavailable, ControllerRefused):
            client.end(ids)

    def _fall_back(self, why: str) -> None:
        """Open connections stay, without a rate cap; new ones are left to ECMP."""
        for link in self._ids:
            limited = self._ports.limit_gbps(link) is not None
            self._ports.assign(link, (), None)
            self._note_path(link, ())
            if limited and self._connections is not None:
                self._connections.limit(link, None)
        with self._saying:
            self._say_alone(why)

    # ---- messages --------------------------------------------------------------------------------

    def _say_alone(self, why: str) -> None:
        if self._alone or self._closing.is_set():
            return
        self._alone = True
        log.warning(
            "controller %s: %s; server %d goes on with ECMP", self._settings.url, why, self._server
        )
        self._note("ecmp", why=why)

    def _say_back(self) -> None:
        count = len(self._reports.made)
        if self._alone:
            self._alone = False
            log.warning(
                "controller %s: is back; server %d follows it with %s",
                self._settings.url,
                self._server,
                counted(count, "flow"),
            )
            self._note("controller is back", flows=count)
        else:
            log.info("controller: server %d has reported %s", self._server, counted(count, "flow"))
            self._note("controlled", flows=count)

    def _leave(self, link: Link, why: str) -> None:
        """Reports why a link is left to ECMP, once per fallback."""
        if self._left.get(link) == why:
            return
        self._left[link] = why
        log.warning("%s: %s; goes on with ECMP", describe(link), why)
        self._note("ecmp", link=describe(link), why=why)

    def _note_path(self, link: Link, path: tuple[str, ...]) -> None:
        """The switches that a link was assigned; none: ECMP chooses."""
        if self._paths.get(link) == path:
            return
        self._paths[link] = path
        ends = [link.source, link.source_port, link.target, link.target_port]
        self._note("path", link=describe(link), ends=ends, path=list(path))

    def _say_refused(self, link: Link, ports: Sequence[int]) -> None:
        names = ", ".join(map(str, ports))
        self._leave(link, f"the source ports of its path are in use ({names})")

    def _say_unnamed(self, link: Link, address: str) -> None:
        self._leave(link, f"no host of the controller's network has the address {address}")
