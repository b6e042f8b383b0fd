"""A SONiC-OCS device for tests: the real protocol over real HTTPS (or HTTP) sockets.

`OcsServer` is the RESTCONF server of an OcsDevice. Names and types follow sonic-ocs.yang of
2024-11-21, errors RFC 8040 section 7.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import re
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    from support.fabric.sonic_ocs_device import OcsDevice

_DATA = "/restconf/data/sonic-ocs:sonic-ocs/"
_BULK_UPDATE = "/restconf/operations/sonic-ocs:bulk-update"
_ROW = re.compile(r"OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST=([^/]+)")
MEDIA_TYPE = "application/yang-data+json"


class OcsServer:
    """Serves an OcsDevice at `address`; a context manager.

    `certificate`: a file with key and certificate; None: plain HTTP. Faults, each by its name:
    `drop(count, after)`, `reboot(seconds)`, `reboot_during(seconds)`, `slow_s`, `refuse(status,
    text)`.
    """

    user = "admin"
    password = "YourPaSsWoRd"

    def __init__(
        self, device: OcsDevice, certificate: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.device = device
        self._host = host
        self.slow_s = 0.0
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.read_only: set[str] = set()
        self._drops: list[bool] = []
        self._refusals: list[tuple[int, bytes]] = []
        self._back_at = 0.0
        self._reboot_s: float | None = None
        self._server = _Listener((host, 0), _Handler)
        self._server.owner = self
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # the handshake belongs to the connection's own thread, not to accept()
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def address(self) -> str:
        return f"{self._scheme}://{self._host}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def drop(self, count: int = 1, *, after: bool) -> None:
        """The next requests that change something lose their connection: `after` they took
        effect, or before."""
        self._drops += [after] * count

    def reboot_during(self, seconds: float) -> None:
        """Restarts when the next request that changes something comes, instead of an answer."""
        self._reboot_s = seconds

    def reboot(self, seconds: float) -> None:
        """Answers nothing for so long, and comes back with what was saved."""
        self._back_at = time.monotonic() + seconds
        self.device.restart()

    def refuse(self, status: int, body: dict[str, Any] | str) -> None:
        """The next request that changes something is answered with this error instead."""
        text = body if isinstance(body, str) else json.dumps(body)
        self._refusals.append((status, text.encode()))

    @property
    def away(self) -> bool:
        return time.monotonic() < self._back_at


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    owner: OcsServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    server: _Listener

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self._admitted():
            self._get(self.path.removeprefix(_DATA))

    def do_POST(self) -> None:
        self._change("POST", _BULK_UPDATE)

    def do_PATCH(self) -> None:
        self._change("PATCH", _DATA + "OCS_CROSS_CONNECT")

    def do_DELETE(self) -> None:
        self._change("DELETE", None)

    def _admitted(self) -> bool:
        """Whether the request may go on; answers it otherwise."""
        owner = self.server.owner
        if owner.away:
            self._vanish()
            return False
        owner.asked.append(f"{self.command} {self.path}")
        if owner.slow_s:
            time.sleep(owner.slow_s)
        given = self.headers.get("Authorization", "")
        pair = base64.b64encode(f"{owner.user}:{owner.password}".encode()).decode()
        if given != f"Basic {pair}":
            self._error(401, "protocol", "access-denied", "Authentication failed")
            return False
        return True

    def _vanish(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def _get(self, name: str) -> None:
        device = self.server.owner.device
        with device.lock:
            sides = device.config.items()
            tables: dict[str, list[dict[str, str]]] = {
                "OCS_PORT": device.port_rows(),
                "OCS_CROSS_CONNECT": [
                    {"cross_connect_id": key, "a_side": a, "b_side": b} for key, (a, b) in sides
                ],
                "OCS_CROSS_CONNECT_TABLE": [
                    {"cross_connect_id": key, "status": s} for key, s in device.status().items()
                ],
            }
            if device.port_table:
                tables["OCS_PORT_TABLE"] = device.port_state_rows()
        if not tables.get(name):
            self._error(404, "application", "invalid-value", "Resource not found")
            return
        rows = f"{name.removesuffix('_TABLE')}_LIST"
        self._answer(200, {f"sonic-ocs:{name}": {rows: tables[name]}})

    def _change(self, method: str, path: str | None) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._admitted():
            return
        owner = self.server.owner
        if owner.user in owner.read_only:
            self._error(403, "protocol", "access-denied", "User is not authorized")
            return
        if owner._refusals:
            status, body = owner._refusals.pop(0)
            self._reply(status, body)
            return
        if owner._drops and not owner._drops[0]:
            owner._drops.pop(0)
            self._vanish()
            return
        if path is not None and self.path != path:
            self._error(404, "application", "invalid-value", "Resource not found")
            return
        try:
            status, answer = self._perform(method, content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._error(400, "protocol", "malformed-message", f"cannot read it: {error}")
            return
        if owner._reboot_s is not None:
            owner.reboot(owner._reboot_s)
            owner._reboot_s = None
            self._vanish()
            return
        if owner._drops:
            owner._drops.pop(0)
            self._vanish()
            return
        self._answer(status, answer)

    def _perform(self, method: str, content: bytes) -> tuple[int, dict[str, Any] | None]:
        owner = self.server.owner
        device = owner.device
        if method == "DELETE":
            row = _ROW.fullmatch(self.path.removeprefix(_DATA))
            if row is None:
                raise ValueError(f"no resource {self.path}")
            device.bulk_update([row[1]], [])
            return 204, None
        if self.headers.get("Content-Type") != MEDIA_TYPE:
            raise ValueError(f"Content-Type {self.headers.get('Content-Type')}")
        body = json.loads(content)
        owner.bodies.append(body)
        if method == "PATCH":
            rows = body["sonic-ocs:OCS_CROSS_CONNECT"]["OCS_CROSS_CONNECT_LIST"]
            device.bulk_update([], _rows(rows))
            return 204, None
        given = body["sonic-ocs:input"]
        deleted, added, failed = device.bulk_update(
            given.get("delete", []), _rows(given.get("add", []))
        )
        output: dict[str, Any] = {"deleted_count": deleted, "added_count": added}
        return 200, {"sonic-ocs:output": output | ({"failed_keys": failed} if failed else {})}

    def _answer(self, status: int, body: dict[str, Any] | None) -> None:
        self._reply(status, b"" if body is None else json.dumps(body).encode())

    def _error(self, status: int, kind: str, tag: str, message: str) -> None:
        error = {"error-type": kind, "error-tag": tag, "error-message": message}
        self._answer(status, {"ietf-restconf:errors": {"error": [error]}})

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="Authentication required"')
        if body:
            self.send_header("Content-Type", MEDIA_TYPE)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _rows(rows: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(row["cross_connect_id"], row["a_side"], row["b_side"]) for row in rows]
