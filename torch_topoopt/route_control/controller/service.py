"""The controller over HTTP/1.1 with JSON (docs/routes.md has the schema); h11 reads the protocol.

Everything runs in one event loop, a request at a time, and is stored before it is answered. Bad
requests change nothing: 400 (malformed), 401 (no token), 404, 405, 409 (replayed), 413 (too large).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import sqlite3
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from torch_topoopt.plan.codec import DocumentError, brief
from torch_topoopt.route_control.controller import messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.route_control.controller.store import RouteStore

log = logging.getLogger("torch_topoopt")

_READ_BYTES = 65536
_DIGITS = 18  # of an epoch


@dataclass(frozen=True)
class ServiceLimits:
    """Bytes of a request's head and body, seconds to send it, seconds of a long poll, and open
    connections."""

    head: int = 16384
    body: int = 16 * 2**20
    read_s: float = 10.0
    poll_s: float = 25.0
    connections: int = 1024


class _Refused(Exception):  # noqa: N818 - an answer, not a fault of the service
    def __init__(self, status: HTTPStatus, what: str) -> None:
        super().__init__(what)
        self.status = status


def check_token(token: str) -> None:
    """Raises ValueError for a token of fewer than 16 bytes."""
    if len(token.encode()) < 16:
        raise ValueError("token: has fewer than 16 bytes; draw a longer one")


class RouteService:
    """Serves one state. Raises ValueError for a token of fewer than 16 bytes."""

    def __init__(
        self, store: RouteStore, token: str, scheme: str, limits: ServiceLimits | None = None
    ) -> None:
        check_token(token)
        self.state = store.load(scheme)
        self._store = store
        self._scheme = scheme
        self._expected = f"Bearer {token}".encode()
        self._limits = limits or ServiceLimits()
        self._open: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()  # set and replaced whenever a flow has another path
        self._answers: dict[int, int] = {}

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listens; the caller closes the server, then calls `close`. Raises OSError."""
        return await asyncio.start_server(self._connected, host, port)

    async def close(self) -> None:
        """Ends the connections that are open, long polls among them."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self._limits.connections:
            writer.close()
            return
        self._open.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError, h11.LocalProtocolError, asyncio.CancelledError):
            pass  # the other side is gone or too slow, or the service ends
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Request after request of one connection, until one cannot be followed by another."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
        while True:
            try:
                async with asyncio.timeout(self._limits.read_s):
                    request, body = await self._read(parser, reader, writer)
                if request is None:
                    return
                status, kind, text = await self._answer(request, body)  # may be a long poll
            except h11.RemoteProtocolError as error:
                status, kind, text = _problem(HTTPStatus(error.error_status_hint), "not HTTP/1.1")
            except _Refused as refused:
                status, kind, text = _problem(refused.status, str(refused))
            self._answers[status] = self._answers.get(status, 0) + 1
            done = parser.their_state is not h11.DONE
            headers = [("Content-Type", kind), ("Content-Length", str(len(text)))]
            headers += [("Connection", "close")] if done else []
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=text),
                h11.EndOfMessage(),
            ):
                writer.write(parser.send(event) or b"")
            async with asyncio.timeout(self._limits.read_s):
                await writer.drain()
            if done or parser.our_state is not h11.DONE:
                return
            parser.start_next_cycle()

    async def _read(
        self, parser: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[h11.Request | None, bytes]:
        """The next request, refused before its body is read if its token is not the right one."""
        request: h11.Request | None = None
        body = bytearray()
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                if parser.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    writer.write(parser.send(go_on) or b"")
                parser.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = event
                self._authorise(request)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._limits.body:
                    most = self._limits.body
                    raise _Refused(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: more than {most} bytes"
                    )
            elif isinstance(event, h11.EndOfMessage):
                return request, bytes(body)
            else:
                return None, b""

    def _authorise(self, request: h11.Request) -> None:
        given = [value for name, value in request.headers if name == b"authorization"]
        if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED, "Authorization: Bearer with the controller's token, please"
            )

    async def _answer(self, request: h11.Request, body: bytes) -> tuple[HTTPStatus, str, bytes]:
        try:
            url = urlsplit(request.target.decode("ascii"))
            method = request.method.decode("ascii")
            if method == "GET" and url.path == "/metrics":
                return HTTPStatus.OK, "text/plain; version=0.0.4", self._metrics().encode()
            answer = (
                await self._get(url.path, url.query)
                if method == "GET"
                else self._change(method, url.path, body)
            )
        except DocumentError as error:
            return _problem(HTTPStatus.BAD_REQUEST, str(error))
        except ValueError as error:  # of the address, or a scheme that finds no assignment in time
            self._forget()
            return _problem(HTTPStatus.BAD_REQUEST, str(error))
        except sqlite3.Error as error:
            self._forget()
            log.error("controller: the state cannot be stored: %s", error)
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "the state cannot be stored")
        return HTTPStatus.OK, "application/json", json.dumps(answer).encode()

    def _forget(self) -> None:
        """What was not stored was not done."""
        self._store.roll_back()
        self.state = self._store.load(self._scheme)

    async def _get(self, path: str, query: str) -> dict[str, Any]:
        if path == "/v1/health":
            return {"epoch": self.state.epoch, "flows": len(self.state.flows)}
        if path != "/v1/assignments":
            raise _Refused(HTTPStatus.NOT_FOUND, "no such address")
        given = parse_qs(query, max_num_fields=4)
        host, after = (given.get(name, [""])[0] for name in ("host", "after"))
        if host not in self.state.file.tor_of:
            raise DocumentError(f"host: {brief(host)} is not a host of the network file")
        if not (after.isascii() and after.isdigit() and len(after) <= _DIGITS):
            raise DocumentError(f"after: {brief(after)} is not an epoch")
        return await self._poll(host, int(after))

    async def _poll(self, host: str, after: int) -> dict[str, Any]:
        """Waits until a flow of `host` has a path that is newer than epoch `after`."""

        def newer() -> list[str]:
            flows = self.state.flows.items()
            return [n for n, f in flows if f.report.source == host and f.changed > after]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.poll_s):
                while not newer():
                    await self._moved.wait()
        return self._assignments(newer())

    def _change(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if path.startswith("/v1/hosts/"):
            if method != "PUT":
                raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "hosts: only PUT is understood")
            host, ports = unquote(path.removeprefix("/v1/hosts/")), messages.read_ports(body)
            self._check_new(ports.request)
            changed = self.state.set_ports(host, ports.ports)
            self._store.save_ports(host, self.state)
            return self._done(ports.request, changed, ())
        changes = {
            "/v1/flows": self._start,
            "/v1/flows/end": self._end,
            "/v1/links": self._links,
            "/v1/paths/degraded": self._degraded,
        }
        if path not in changes:
            raise _Refused(HTTPStatus.NOT_FOUND, "no such address")
        if method != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{path}: only POST is understood")
        return changes[path](body)

    def _start(self, body: bytes) -> dict[str, Any]:
        message = messages.read_flows(body)
        self._check_new(message.request)
        ids = [flow.id for flow in message.flows]
        changed = self.state.start(message.job, message.flows)
        return self._done(message.request, changed, ids)

    def _end(self, body: bytes) -> dict[str, Any]:
        message = messages.read_end(body)
        self._check_new(message.request)
        changed = self.state.end(message.ids)
        return self._done(message.request, changed, (), message.ids)

    def _links(self, body: bytes) -> dict[str, Any]:
        message = messages.read_links(body)
        self._check_new(message.request)
        return self._done(message.request, self.state.set_links(message.down, message.up), ())

    def _degraded(self, body: bytes) -> dict[str, Any]:
        message = messages.read_degraded(body)
        self._check_new(message.request)
        return self._done(message.request, self.state.degrade(message.flow), [message.flow])

    def _check_new(self, request: str) -> None:
        if self._store.seen(request):
            raise _Refused(HTTPStatus.CONFLICT, f"request: {brief(request)} was here before")

    def _done(
        self, request: str, changed: set[str], asked: Iterable[str], ended: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Stores what happened, wakes the long polls, and answers with the flows asked for."""
        asked = list(asked)
        in_order = dict.fromkeys((*asked, *changed))  # new flows as they were reported
        self._store.save(request, self.state, in_order, ended)
        if changed:
            self._moved.set()
            self._moved = asyncio.Event()
        return self._assignments(asked)

    def _assignments(self, flows: Iterable[str]) -> dict[str, Any]:
        return {
            "epoch": self.state.epoch,
            "flows": [
                {
                    "id": flow,
                    "path": self.state.path_names(flow),
                    "source_port": self.state.source_port(flow),
                    "rate_bits_per_s": None,
                }
                for flow in flows
            ],
        }

    def _metrics(self) -> str:
        """Prometheus' text format."""
        lines = []
        for name, what, value in (
            ("epoch", "Changes of the state so far.", self.state.epoch),
            ("flows", "Flows that have started and not ended.", len(self.state.flows)),
            ("dead_links", "Links reported down.", len(self.state.dead)),
            ("connections", "Open connections.", len(self._open)),
        ):
            lines += [f"# HELP topoopt_controller_{name} {what}"]
            lines += [
                f"# TYPE topoopt_controller_{name} gauge",
                f"topoopt_controller_{name} {value}",
            ]
        lines += ["# HELP topoopt_controller_answers_total Answers by their status."]
        lines += ["# TYPE topoopt_controller_answers_total counter"]
        for status, count in sorted(self._answers.items()):
            lines += [f'topoopt_controller_answers_total{{status="{int(status)}"}} {count}']
        return "\n".join(lines) + "\n"


def _problem(status: HTTPStatus, what: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps({"error": what}).encode()
