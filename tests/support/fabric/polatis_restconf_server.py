"""A Polatis switch on RESTCONF, for tests: RFC 8040 over HTTP/1.1 (or HTTPS), Basic authentication.

Resources and names are those of the vendor's YANG; JSON is that of RFC 7951 (decimal64 is a string,
uint32 a number). Entity tags, If-Match and If-None-Match are kept (`tags`; some devices have none).
Writing to the whole of cross-connects is there as well, and does what it does on the device.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from support.fabric.polatis_device import ConnectionCut, DeviceError, PolatisServer, data_tree

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from support.fabric.polatis_device import PolatisDevice

MEDIA_TYPE = "application/yang-data+json"
# RFC 8040, section 7
_HTTP_STATUS = {
    "in-use": 409,
    "data-exists": 409,
    "data-missing": 409,
    "invalid-value": 400,
    "malformed-message": 400,
    "unknown-element": 400,
    "operation-not-supported": 405,
    "access-denied": 403,
}


class PolatisRestconfServer(PolatisServer):
    """Listens at `address`. `asked` are the requests; `answer_all`: this instead of an answer."""

    def __init__(
        self, device: PolatisDevice, certificate: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.tags = True
        self.asked: list[str] = []
        self.answer_all: tuple[int, str, bytes] | None = None
        super().__init__(device, certificate, host)
        self.address = f"http{'' if certificate is None else 's'}://{host}:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        _Handler(connection, connection.getpeername(), self)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    server: PolatisRestconfServer
    user: str

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        server = self.server
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if server.device.is_away():
                raise ConnectionCut
            server.asked.append(f"{self.command} {self.path}")
            server.device.before_request(server.asked[-1])
            if server.mute:
                return
            if server.answer_all is not None:
                self._answer(*server.answer_all)
            elif self._log_in():
                self._route(content)
        except DeviceError as error:
            self._error(_HTTP_STATUS[error.tag], error.tag, str(error))
        except ConnectionCut:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _log_in(self) -> bool:
        kind, _, pair = self.headers.get("Authorization", "").partition(" ")
        user, _, password = base64.b64decode(pair).decode().partition(":")
        if kind == "Basic" and self.server.device.users.get(user) == password:
            self.user = user
            return True
        # a careless device says what it was given
        self._error(401, "access-denied", f"Bad credentials {user}:{password} ({pair})")
        return False

    def _route(self, content: bytes) -> None:
        if not self.path.startswith("/api/data/"):
            self._error(404, "invalid-value", "No such resource")
            return
        names: list[str] = []
        key: str | None = None
        for segment in self.path.removeprefix("/api/data/").split("/"):
            name, _, key_text = segment.partition("=")
            names.append(name.rpartition(":")[2])
            key = unquote(key_text) if key_text else None
        if self.command == "GET":
            self._get(names, key)
        elif names[0] != "cross-connects":
            raise DeviceError("operation-not-supported", f"{names[0]} cannot be written")
        else:
            self._write(names, key, content)

    def _get(self, names: list[str], key: str | None) -> None:
        node: Any = data_tree(self.server.device, self.user)
        for name in names:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, list) and key is not None:
            node = [e for e in node if key == str(next(iter(e.values())))]
        if not node:
            self._error(404, "invalid-value", "Instance does not exist")
            return
        tag = None
        if self.server.tags:
            tag = self._pair_tag(int(key)) if key and names[0] == "cross-connects" else None
            tag = tag or f'"{self.server.device.revision}"'
        if tag is not None and self.headers.get("If-None-Match") == tag:
            self._answer(304, MEDIA_TYPE, b"", tag)
            return
        body = json.dumps({f"optical-switch:{names[-1]}": node}).encode()
        self._answer(200, MEDIA_TYPE, body, tag)

    def _write(self, names: list[str], key: str | None, content: bytes) -> None:
        device = self.server.device
        if names[1:] not in ([], ["pairs" if device.old_yang else "pair"]):
            raise DeviceError("unknown-element", f"Unknown element {names[-1]}")
        with device.lock:
            if self.command == "DELETE":
                self._delete(key)
                return
            pairs = self._read_pairs(names, content)
            there = device.pairs(self.user)
            if key is None and self.command == "PUT":
                for ingress in set(there) - {i for i, _ in pairs}:
                    device.disconnect(self.user, ingress)
            elif key is not None:
                if [str(i) for i, _ in pairs] != [key]:
                    raise DeviceError("invalid-value", "The key is not that of the resource")
                if not self._holds(int(key)):
                    return
            for ingress, egress in pairs:
                if self.command == "POST" and ingress in there:
                    raise DeviceError("data-exists", f"Pair {ingress} exists")
                if there.get(ingress) not in (None, egress):
                    device.disconnect(self.user, ingress)
                device.connect(self.user, ingress, egress)
            new = any(i not in there for i, _ in pairs)
            self._answer(201 if new and self.command != "PATCH" else 204, MEDIA_TYPE, b"")

    def _delete(self, key: str | None) -> None:
        device = self.server.device
        for ingress in [int(key)] if key else list(device.pairs(self.user)):
            if key and not self._holds(ingress):
                return
            if not device.disconnect(self.user, ingress) and key:
                self._error(404, "invalid-value", "Instance does not exist")
                return
        self._answer(204, MEDIA_TYPE, b"")

    def _holds(self, ingress: int) -> bool:
        """Whether If-Match and If-None-Match allow the request; answers 412 otherwise."""
        if not self.server.tags:
            return True
        tag = self._pair_tag(ingress)
        if self.headers.get("If-Match") not in (None, "*", tag) or (
            self.headers.get("If-None-Match") == "*" and tag is not None
        ):
            self._error(412, "operation-failed", "Precondition failed")
            return False
        return True

    def _pair_tag(self, ingress: int) -> str | None:
        made_at = self.server.device.made_at(ingress)
        return None if made_at is None else f'"{ingress}-{made_at}"'

    def _read_pairs(self, names: list[str], content: bytes) -> list[tuple[int, int]]:
        if not re.fullmatch(rf"{re.escape(MEDIA_TYPE)}(;.*)?", self.headers["Content-Type"] or ""):
            raise DeviceError("malformed-message", "Content-Type must be yang-data+json")
        list_name = "pairs" if self.server.device.old_yang else "pair"
        try:
            body = json.loads(content)
            if names[1:] == [] and self.command != "POST":
                body = body["optical-switch:cross-connects"]
            entries = body.get(f"optical-switch:{list_name}", body.get(list_name))
            return [(int(e["ingress"]), int(e["egress"])) for e in entries]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DeviceError("malformed-message", f"Cannot read the body: {error}") from None

    def _error(self, status: int, tag: str, text: str) -> None:
        error = {"error-type": "application", "error-tag": tag, "error-message": text}
        body = {"ietf-restconf:errors": {"error": [error]}}
        self._answer(status, MEDIA_TYPE, json.dumps(body).encode())

    def _answer(self, status: int, media_type: str, body: bytes, tag: str | None = None) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="Polatis"')
        if tag is not None:
            self.send_header("ETag", tag)
        if body:
            self.send_header("Content-Type", media_type)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
