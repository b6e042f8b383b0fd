"""The controller over HTTP/1.1 with JSON (schema: docs/guides/routes.md); h11 reads the protocol.

Everything runs in one event loop, a request at a time. 401: no token, 413: too large; for effects
and other refusals see `request_handler`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import sqlite3
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.route_control.controller.metrics import prometheus_text
from torch_topoopt.route_control.controller.precomputation import Precomputation
from torch_topoopt.route_control.controller.request_handler import (
    AssignmentOptions,
    RefusedError,
    RequestHandler,
)
from torch_topoopt.route_control.controller.state import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.route_control.controller.store import RouteStore

log = logging.getLogger("torch_topoopt")

_READ_BYTES = 65536


@dataclass(frozen=True)
class ServiceLimits:
    """Bytes of a request's head and body; seconds to send it, of a long poll, and until a lost
    host is noticed; and open connections."""

    head: int = 16384
    body: int = 16 * 2**20
    read_s: float = 10.0
    poll_s: float = 25.0
    notice_s: float = 5.0
    connections: int = 1024


def check_token(token: str) -> None:
    """Raises ValueError for a token of fewer than 16 bytes."""
    if len(token.encode()) < 16:
        raise ValueError("token: has fewer than 16 bytes; draw a longer one")


class RouteService:
    """Serves one state. Raises ValueError for a token of fewer than 16 bytes."""

    def __init__(
        self,
        store: RouteStore,
        token: str,
        scheme: str,
        limits: ServiceLimits | None = None,
        how: AssignmentOptions | None = None,
    ) -> None:
        check_token(token)
        self._clock = time.monotonic
        self._expected = f"Bearer {token}".encode()
        self._limits = limits or ServiceLimits()
        self._how = how or AssignmentOptions()
        self.handler = RequestHandler(store, scheme, self._publish, self._how, self._clock())
        self.precomputation = Precomputation(
            self.handler.learn, self.handler.prediction, self._how.precomputed, self._clock
        )
        self._open: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._moved: dict[str, asyncio.Event] = {}  # host -> set when a flow has another path

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listens; the caller closes the server, then calls `close`. Raises OSError."""
        server = await asyncio.start_server(self._connected, host, port)
        self._background.add(asyncio.create_task(self._end_silent()))
        if self._how.precomputed:
            self._background.add(asyncio.create_task(self.precomputation.run()))
        return server

    async def close(self) -> None:
        """Ends the open connections, long polls among them."""
        tasks = self._open | self._background
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            pass  # the peer is gone or too slow, or the service ends
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The requests of one connection, until one makes it unusable."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
        while True:
            try:
                async with asyncio.timeout(self._limits.read_s):
                    request, body = await self._read(parser, reader, writer)
                if request is None:
                    return
                status, kind, text = await self._answer(
                    request, body, reader.at_eof
                )  # may be a long poll
            except h11.RemoteProtocolError as error:
                status, kind, text = _problem(HTTPStatus(error.error_status_hint), "not HTTP/1.1")
            except RefusedError as refused:
                status, kind, text = _problem(refused.status, str(refused))
            self.handler.counts.answers[status] += 1
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
        """The next request, refused before its body is read if its token is wrong."""
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
                    raise RefusedError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: more than {most} bytes"
                    )
            elif isinstance(event, h11.EndOfMessage):
                return request, bytes(body)
            else:
                return None, b""

    def _authorise(self, request: h11.Request) -> None:
        given = [value for name, value in request.headers if name == b"authorization"]
        if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED, "Authorization: Bearer with the controller's token, please"
            )

    async def _answer(
        self, request: h11.Request, body: bytes, is_gone: Callable[[], bool]
    ) -> tuple[HTTPStatus, str, bytes]:
        try:
            url = urlsplit(request.target.decode("ascii"))
        except ValueError:
            return _problem(HTTPStatus.BAD_REQUEST, "address: not one of HTTP")
        try:
            if request.method == b"GET" and url.path == "/metrics":
                return HTTPStatus.OK, "text/plain; version=0.0.4", self._metrics().encode()
            if request.method == b"GET" and url.path == "/v1/assignments":
                text = await self._poll(*self.handler.poll(url.query), is_gone)
            elif request.method == b"GET":
                text = self.handler.look(url.path)
            else:
                text = self._changed(request.method.decode("ascii"), url.path, body)
        except ConflictError as error:
            return _problem(HTTPStatus.CONFLICT, str(error))
        except DocumentError as error:
            return _problem(HTTPStatus.BAD_REQUEST, str(error))
        except sqlite3.Error as error:
            log.error("controller: the state cannot be stored: %s", error)
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "the state cannot be stored")
        except RefusedError:
            raise
        except Exception:
            log.exception("controller: a fault of its own; nothing was changed")
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the controller")
        return HTTPStatus.OK, "application/json", text

    def _changed(self, method: str, path: str, body: bytes) -> bytes:
        begin_s = time.perf_counter()
        counts = self.handler.counts
        hits = counts.hits
        text = self.handler.change(method, path, body, self._clock())
        durations = counts.precomputed if counts.hits > hits else counts.computed
        durations.add(time.perf_counter() - begin_s)
        self.precomputation.wake()
        return text

    async def _poll(self, host: str, after: int, is_gone: Callable[[], bool]) -> bytes:
        """Waits until a flow of `host` has a path newer than epoch `after`, or the host is gone,
        which ends its lease."""
        handler = self.handler
        handler.leases.begin_wait(host)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.poll_s):
                    while not handler.newer(host, after) and not is_gone():
                        moved = self._moved.setdefault(host, asyncio.Event())
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(moved.wait(), self._limits.notice_s)
        finally:
            handler.leases.end_wait(host, self._clock())
        return handler.assignments(handler.newer(host, after))

    def _publish(self, hosts: set[str]) -> None:
        for host in hosts:
            if event := self._moved.pop(host, None):
                event.set()

    async def _end_silent(self) -> None:
        """Checks leases, as long as the service runs."""
        while True:
            await asyncio.sleep(self._how.lease_s / 4)
            try:
                self.handler.end_silent(self._clock())
                self.precomputation.wake()
            except sqlite3.Error as error:
                log.error("controller: the state cannot be stored: %s", error)
            except Exception:
                log.exception("controller: a fault of its own; nothing was changed")

    def _metrics(self) -> str:
        state = self.handler.state
        gauges: dict[str, tuple[str, float]] = {
            "epoch": ("Changes of the state so far.", state.epoch),
            "flows": ("Flows that have started and not ended.", len(state.flows)),
            "dead_links": ("Links reported down.", len(state.dead)),
            "precomputed": ("Assignments that are there.", state.precomputed.size()),
            "connections": ("Open connections.", len(self._open)),
        }
        return prometheus_text(self.handler.counts, gauges)


def _problem(status: HTTPStatus, what: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps({"error": what}).encode()
