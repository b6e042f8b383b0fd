"""The effect of each request: it is read, changes the state, is stored, and only then answered.

No sockets or clocks here. A refused request changes nothing: 400 (malformed), 404, 405,
409 (replayed, or another flow of the same id).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from json.encoder import encode_basestring_ascii as quoted
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from torch_topoopt.plan.codec import DocumentError, brief
from torch_topoopt.route_control.controller import messages
from torch_topoopt.route_control.controller.leases import Leases
from torch_topoopt.route_control.controller.metrics import Counts
from torch_topoopt.route_control.controller.prediction import TrafficPrediction
from torch_topoopt.route_control.controller.store import packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.route_control.controller.state import RouteState
    from torch_topoopt.route_control.controller.store import RouteStore

    Change = Callable[[bytes, float], bytes]

_MOST_ANSWERS = 256  # to repeated reports
_path_of = attrgetter("path")  # of an AssignedFlow
_DIGITS = 18  # of an epoch
_MOST_TEXTS = 200_000  # of flows in answers


class RefusedError(Exception):
    """An answer, not a fault of the controller."""

    def __init__(self, status: HTTPStatus, what: str) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True)
class AssignmentOptions:
    """Seconds that a host may be silent before its flows end; whether flows get rates; and the
    number of assignments computed ahead after each change."""

    lease_s: float = 60.0
    limits_rates: bool = False
    precomputed: int = 4096


@dataclass(frozen=True)
class _KnownAnswer:
    """The paths of a report's flows, as stored, and the texts of the flows in the answer."""

    flows: messages.ReportedFlows
    paths: list[tuple[int, ...] | None]
    paths_stored: tuple[bytes, bytes]
    texts: list[str]


class RequestHandler:
    """One state and its file. `publish` is called with the hosts of flows with changed paths.
    Times are seconds of one clock that does not jump.

    `change` and `end_silent` raise sqlite3.Error if the state cannot be stored; they then restore
    the state before.
    """

    def __init__(
        self,
        store: RouteStore,
        scheme: str,
        publish: Callable[[set[str]], None],
        how: AssignmentOptions,
        now_s: float,
    ) -> None:
        self._how = how
        self.state = store.load(scheme, limits_rates=how.limits_rates)
        self.prediction = TrafficPrediction()
        self.leases = Leases(how.lease_s, self.state.flows_of, now_s)
        self.counts = Counts()
        self._store = store
        self._scheme = scheme
        self._publish = publish
        self._reader = messages.FlowsReader()
        self._answers: dict[int, _KnownAnswer] = {}  # by id() of a report's flows
        self._tails: dict[object, str] = {}  # of flows in answers
        self._to_learn: list[Callable[[], None]] = []
        self._network = self.state.file.to_json().encode()
        self._changes: dict[str, Change] = {
            "/v1/flows": self._start,
            "/v1/flows/end": self._end,
            "/v1/links": self._links,
            "/v1/paths/degraded": self._degraded,
        }

    def look(self, path: str) -> bytes:
        """The answer to a GET other than of assignments."""
        if path == "/v1/network":
            return self._network
        if path != "/v1/health":
            raise RefusedError(HTTPStatus.NOT_FOUND, "no such address")
        return _text({"epoch": self.state.epoch, "flows": len(self.state.flows)})

    def poll(self, query: str) -> tuple[str, int]:
        """Host and epoch of a long poll."""
        try:
            given = parse_qs(query, max_num_fields=4)
        except ValueError:
            raise DocumentError("query: has more than 4 fields") from None
        host, after = (given.get(name, [""])[0] for name in ("host", "after"))
        if host not in self.state.file.tor_of:
            raise DocumentError(f"host: {brief(host)} is not a host of the network file")
        if not (after.isascii() and after.isdigit() and len(after) <= _DIGITS):
            raise DocumentError(f"after: {brief(after)} is not an epoch")
        return host, int(after)

    def newer(self, host: str, after: int) -> list[str]:
        """Flows of `host` with a path that is newer than epoch `after`."""
        flows = self.state.flows
        return [name for name in self.state.flows_of.get(host, ()) if flows[name].changed > after]

    def learn(self) -> RouteState:
        """The state, after the prediction has learned all events since the last call."""
        learning, self._to_learn = self._to_learn, []
        for step in learning:
            step()
        return self.state

    def assignments(self, flows: Sequence[str]) -> bytes:
        return self._assignments(flows)

    def change(self, method: str, path: str, body: bytes, now_s: float) -> bytes:
        """The answer to a request that changes the state."""
        is_host = path.startswith("/v1/hosts/")
        if not is_host and path not in self._changes:
            raise RefusedError(HTTPStatus.NOT_FOUND, "no such address")
        if method != ("PUT" if is_host else "POST"):
            wanted = "hosts: only PUT" if is_host else f"{path}: only POST"
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{wanted} is understood")
        try:
            if is_host:
                host = unquote(path.removeprefix("/v1/hosts/"))
                return self._ports(host, body, now_s)
            return self._changes[path](body, now_s)
        except (DocumentError, RefusedError):
            self._store.roll_back()  # the id of the request; nothing else has been changed yet
            raise
        except Exception:
            self._forget()
            raise

    def end_silent(self, now_s: float) -> None:
        """Ends the flows of hosts whose lease has expired."""
        hosts = self.leases.ended(self.state.flows_of, now_s)
        ids = [flow for host in hosts for flow in self.state.flows_of[host]]
        if not ids:
            return
        try:
            self._done(self.state.end(ids), (), ids)
            self._note(partial(self.prediction.ended, now_s, ids))
        except Exception:
            self._forget()
            raise
        self.counts.lease_ends += len(ids)

    def _forget(self) -> None:
        """Restores the last stored state."""
        self._answers.clear()
        self._store.roll_back()
        self.state = self._store.load(self._scheme, limits_rates=self._how.limits_rates)

    def _ports(self, host: str, body: bytes, now_s: float) -> bytes:
        message = messages.read_ports(body)
        self._check_new(message.request)
        changed = self.state.set_ports(host, message.ports)
        self._answers.clear()
        self._store.save_ports(host, self.state)
        self.leases.heard([host], now_s)
        return self._done(changed, ())

    def _start(self, body: bytes, now_s: float) -> bytes:
        message = self._reader.read(body)
        self._check_new(message.request)
        state, flows = self.state, message.flows
        count = len(state.flows)
        changed = state.start(message.job, flows)
        started = changed[: len(state.flows) - count]
        self.leases.heard(flows.source_hosts, now_s)
        new, new_body = flows, message.body
        if len(started) < len(flows):  # the host repeats some
            there = frozenset(started)
            new = messages.ReportedFlows(flow for flow in flows if flow.id in there)
            new_body = messages.flows_body(message.job, new)
        if new:
            known = self._known_answer(new)
            self._store.save_report(new_body, new.names, known.paths_stored, state.epoch)
        if new is flows and new:
            self._stored(changed, (), flows)
            answer = self._answer(known.texts)
        else:
            answer = self._done(changed, flows.names)
        if new:
            learn = self.prediction.started
            self._note(lambda: learn(now_s, message.job, new, state.numbers))
        return answer

    def _known_answer(self, flows: messages.ReportedFlows) -> _KnownAnswer:
        """The answer to a report whose flows have started. If the host repeats its report, only
        flows with other paths than the last time get another text."""
        paths = [*map(_path_of, map(self.state.flows.__getitem__, flows.names))]
        known = self._answers.get(id(flows))
        if known is not None and known.flows is flows:
            if known.paths == paths:
                return known
            texts, old = known.texts.copy(), known.paths
            moved = [i for i, path in enumerate(paths) if path is not old[i]]
            for i, text in zip(moved, self._texts([flows.names[i] for i in moved]), strict=True):
                texts[i] = text
        else:
            texts = self._texts(flows.names)
        known = _KnownAnswer(flows, paths, packed(paths), texts)
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        if not self.state.limits_rates:
            self._answers[id(flows)] = known
        return known

    def _end(self, body: bytes, now_s: float) -> bytes:
        message = messages.read_end(body)
        self._check_new(message.request)
        flows = self.state.flows
        sources = {flows[name].report.source for name in message.ids if name in flows}
        changed = self.state.end(message.ids)
        self.leases.heard(sources, now_s)
        answer = self._done(changed, (), message.ids)
        self._note(partial(self.prediction.ended, now_s, message.ids))
        return answer

    def _links(self, body: bytes, _: float) -> bytes:
        message = messages.read_links(body)
        self._check_new(message.request)
        return self._done(self.state.set_links(message.down, message.up), ())

    def _degraded(self, body: bytes, now_s: float) -> bytes:
        message = messages.read_degraded(body)
        self._check_new(message.request)
        changed = self.state.degrade(message.flow)
        self.leases.heard([self.state.flows[message.flow].report.source], now_s)
        self._store.save_flows(self.state, [message.flow])  # also if it keeps its path
        return self._done(changed, [message.flow])

    def _note(self, step: Callable[[], None]) -> None:
        if self._how.precomputed:
            self._to_learn.append(step)

    def _check_new(self, request: str) -> None:
        if not self._store.begin(request):
            raise RefusedError(HTTPStatus.CONFLICT, f"request: {brief(request)} was here before")

    def _done(self, changed: list[str], asked: Sequence[str], ended: Iterable[str] = ()) -> bytes:
        """Stores the change, wakes the long polls, and returns the requested flows."""
        self._stored(changed, ended)
        return self._assignments(asked)

    def _stored(
        self,
        changed: list[str],
        ended: Iterable[str],
        new: messages.ReportedFlows | None = None,
    ) -> None:
        """`changed` begins with the flows of `new`."""
        known = self.state.precomputed
        self.counts.hits += known.hits
        self.counts.misses += known.misses
        known.hits = known.misses = 0
        others = changed if new is None else changed[len(new) :]
        # The rates of new flows are not part of their report.
        unsaved = changed if self.state.limits_rates else others
        self._store.save(self.state, unsaved, ended)
        if changed:
            hosts = {self.state.flows[name].report.source for name in others}
            self._publish(hosts.union(new.source_hosts if new else ()))

    def _assignments(self, flows: Sequence[str]) -> bytes:
        return self._answer(self._texts(flows))

    def _answer(self, texts: Sequence[str]) -> bytes:
        return f'{{"epoch": {self.state.epoch}, "flows": [{", ".join(texts)}]}}'.encode()

    def _texts(self, flows: Sequence[str]) -> list[str]:
        """As json.dumps, which takes three times as long: there may be thousands."""
        ports_on, known = self.state.ports_on, self._tails
        parts = []
        for name, flow in zip(flows, map(self.state.flows.__getitem__, flows), strict=True):
            report, _, path, _, _, rate = flow
            ports = ports_on(report, path)
            # Most flows have no rate, and many no ports: their path is the key.
            key = (path, ports, rate) if ports or rate is not None else path
            tail = known.get(key) or self._tail(key, path, ports, rate)
            parts.append(f'{{"id": {quoted(name)}, {tail}}}')
        return parts

    def _tail(
        self,
        key: object,
        path: tuple[int, ...] | None,
        ports: tuple[int, ...],
        rate: float | None,
    ) -> str:
        """The fields of a flow after its id."""
        names = None if path is None else [self.state.file.numbered[i] for i in path]
        text = (
            f'"path": {json.dumps(names)}, "source_port": {ports[0] if ports else "null"}, '
            f'"source_ports": {list(ports)}, '
            f'"rate_bits_per_s": {"null" if rate is None else repr(rate)}'
        )
        if len(self._tails) >= _MOST_TEXTS:
            self._tails.clear()
        self._tails[key] = text
        return text


def _text(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
