"""`--serve`: a running job on a web page of this machine.

The page requests only itself and a stream of server-sent events. Both are below a path with a
random token, and only requests that name the address itself are answered. So neither another user
nor another web site in the same browser can read them.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib.resources
import ipaddress
import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.result_json import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_SECURITY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PLACE = b"/* the figures */null"
_MOST_READERS = 16
_IDLE_S = 10.0  # a connected client has to send its request within this time
_COMMENT_S = 5.0  # between messages of a stream, which otherwise would not notice a lost reader


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--serve",
        action="store_true",
        help="also show the job on a web page of this machine; its address, with a token that "
        "keeps others out, is printed",
    )
    group.add_argument(
        "--serve-port",
        type=int,
        default=0,
        metavar="PORT",
        help="with --serve (default: a free one)",
    )
    group.add_argument(
        "--serve-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="with --serve: an address that other machines reach (default: %(default)s, this "
        "machine alone); HTTP is not encrypted",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError for an invalid address."""
    if not 0 <= arguments.serve_port < 1 << 16:
        raise InputError(f"serve-port: {arguments.serve_port} is not in 0..65535")
    try:
        ipaddress.ip_address(arguments.serve_host)
    except ValueError:
        raise InputError(
            f"serve-host: {arguments.serve_host!r} is not an IP address, such as 127.0.0.1"
        ) from None


class LivePage:
    """The page while it is served; `publish` updates the figures of all readers."""

    def __init__(self, host: str, port: int) -> None:
        self._token = secrets.token_urlsafe(24)
        self._changed = threading.Condition()
        self._state, self._version, self._closed = b"null", 0, False
        self._readers = threading.BoundedSemaphore(_MOST_READERS)
        page = importlib.resources.files("torch_topoopt.report").joinpath("templates/live.html")
        self._page = page.read_bytes()
        try:
            self._server = _Server((host, port), self._handler())
        except OSError as error:
            raise InputError(f"serve-port: {host}:{port}: {error.strerror}") from None
        name = f"[{host}]" if ":" in host else host
        self._names = {f"{name}:{self.port}", f"localhost:{self.port}"}
        self.url = f"http://{name}:{self.port}/{self._token}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="topoopt page", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def publish(self, figures: object) -> None:
        state = json.dumps(plain(figures), allow_nan=False).encode()
        with self._changed:
            self._state, self._version = state, self._version + 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _page_now(self) -> bytes:
        """The page with the current figures in it, so that it is never empty."""
        state = self._next(-1)[0].replace(b"<", b"\\u003c")
        return self._page.replace(_PLACE, state, 1)

    def _next(self, version: int) -> tuple[bytes, int, bool]:
        """The state, and its version if it is not `version`; returns after a while in any case."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version != version, _COMMENT_S)
            return self._state, self._version, self._closed

    def _handler(live) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the request's
        class PageHandler(BaseHTTPRequestHandler):
            timeout = _IDLE_S

            def do_GET(self) -> None:
                token, _, what = self.path.removeprefix("/").partition("/")
                known = hmac.compare_digest(token.encode(), live._token.encode())
                if not known or self.headers.get("Host", "") not in live._names:
                    self.send_error(HTTPStatus.NOT_FOUND)
                elif what == "":
                    self._answer("text/html; charset=utf-8", live._page_now())
                elif what == "state":
                    self._answer("application/json", live._next(-1)[0])
                elif what == "events":
                    self._stream()
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)

            def _answer(self, kind: str, body: bytes) -> None:
                self._head(kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _head(self, kind: str) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Content-Security-Policy", _SECURITY)

            def _stream(self) -> None:
                if not live._readers.acquire(blocking=False):
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many readers")
                    return
                try:
                    self._head("text/event-stream")
                    self.end_headers()
                    version, closed = -1, False
                    while not closed:
                        state, now, closed = live._next(version)
                        self.wfile.write(b"data: %s\n\n" % state if now != version else b":\n\n")
                        version = now
                    self.wfile.write(b"event: end\ndata:\n\n")
                except OSError:
                    pass  # the reader has gone
                finally:
                    live._readers.release()

            def log_message(self, format: str, *arguments: object) -> None:
                """Requests are not shown: the terminal is the job's, and paths hold the token."""

        return PageHandler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a client that disconnects."""


@contextlib.contextmanager
def served(arguments: argparse.Namespace) -> Iterator[LivePage | None]:
    """The page, with --serve."""
    if not arguments.serve:
        yield None
        return
    page = LivePage(arguments.serve_host, arguments.serve_port)
    try:
        yield page
    finally:
        page.close()
