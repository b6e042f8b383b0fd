"""A SONiC-OCS device for tests: the real protocol over real HTTPS (or HTTP) sockets.

`OcsDevice` is the switch itself, `OcsServer` its RESTCONF server. What happens on port conflicts
follows the summary table of the public demo instructions of the OCS prototype of SONiC; names and
types follow sonic-ocs.yang of 2024-11-21, errors RFC 8040 section 7. Not from public text: the path
`disabled`, `enabled`, `tuning`, `connected` of a new cross-connect takes `settle_s`, and what one
request with both new and existing ids does (counted here: the new ones).
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from torch_topoopt.fabric.circuits import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DATA = "/restconf/data/sonic-ocs:sonic-ocs/"
_BULK_UPDATE = "/restconf/operations/sonic-ocs:bulk-update"
_ROW = re.compile(r"OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST=([^/]+)")
MEDIA_TYPE = "application/yang-data+json"

Config = dict[str, tuple[str, str]]  # cross_connect_id -> (a_side, b_side)


@dataclass
class _Light:
    """What the hardware has made of a cross-connect; `valid` is False once its port was taken."""

    circuit: Circuit
    enabled_at: float
    connected_at: float
    valid: bool = True


@dataclass
class OcsDevice:
    """The switch: `config` is its CONFIG_DB, `light` its hardware. Methods hold `lock`."""

    size: int = 8
    settle_s: float = 0.02
    port_field: str = "config_status"  # "state" in other versions of the model
    port_table: bool = True
    config: Config = field(default_factory=dict)
    saved: Config = field(default_factory=dict)
    light: dict[str, _Light] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    broken: set[Circuit] = field(default_factory=set)
    ignoring: bool = False
    fails_after: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def ports(self) -> list[str]:
        return [f"{n}{side}" for n in range(1, self.size + 1) for side in "AB"]

    def circuits(self) -> frozenset[Circuit]:
        """What is configured, seen from beside the device."""
        with self.lock:
            return frozenset(Circuit(a, b) for a, b in self.config.values())

    def status(self) -> dict[str, str]:
        """cross_connect_id -> enabled, disabled or invalid."""
        with self.lock:
            return {key: self._status(light) for key, light in self.light.items()}

    def save(self) -> None:
        """`config save`: what a restart comes back with."""
        with self.lock:
            self.saved = dict(self.config)

    def restart(self) -> None:
        with self.lock:
            self.config = {}
            self.light = {}
            self.bulk_update((), [(key, *sides) for key, sides in self.saved.items()])

    def bulk_update(
        self, delete: Iterable[str], add: Iterable[tuple[str, str, str]]
    ) -> tuple[int, int, list[str]]:
        """(deleted, added, failed ids); `add` holds (id, a_side, b_side)."""
        with self.lock:
            if self.ignoring:
                return len(list(delete)), len(list(add)), []
            deleted, added, failed = 0, 0, []
            for key in delete:
                if key not in self.config:
                    continue  # skipped, as documented
                if self._breaks_off():
                    failed.append(key)
                    continue
                del self.config[key]
                self.light.pop(key, None)
                deleted += 1
            created = []
            for key, a_side, b_side in add:
                known = {a_side, b_side} <= set(self.ports)
                if not known or a_side[-1] != "A" or b_side[-1] != "B" or self._breaks_off():
                    failed.append(key)
                    continue
                added += 1
                if key not in self.light:  # an existing id takes the update path: no hardware
                    created.append((key, Circuit(a_side, b_side)))
                self.config[key] = (a_side, b_side)
            self._create(created)
            return deleted, added, failed

    def leave_in_hardware(self, circuit: Circuit) -> None:
        """A stale entry: light, and an entry in the state table, that no configuration asks for."""
        with self.lock:
            self._create([(str(circuit), circuit)])

    def _breaks_off(self) -> bool:
        if self.fails_after is None:
            return False
        self.fails_after -= 1
        return self.fails_after < 0

    def _create(self, created: list[tuple[str, Circuit]]) -> None:
        """Alone, a new cross-connect yields to who has its port; two or more take it away."""
        now = time.monotonic()
        for key, circuit in created:
            light = _Light(circuit, now + self.settle_s / 2, now + self.settle_s)
            rivals = [
                other
                for other in self.light.values()
                if other.valid and set(other.circuit.ports) & set(circuit.ports)
            ]
            if rivals and len(created) == 1:
                light.valid = False
            else:
                for rival in rivals:
                    rival.valid = False
            self.light[key] = light

    def _status(self, light: _Light) -> str:
        if not light.valid:
            return "invalid"
        blocked = any(self._override(port) != "normal" for port in light.circuit.ports)
        if blocked or light.circuit in self.broken or time.monotonic() < light.enabled_at:
            return "disabled"
        return "enabled"

    def _override(self, port: str) -> str:
        return self.overrides.get(port, "normal")

    def port_rows(self) -> list[dict[str, str]]:
        """OCS_PORT."""
        return [
            {
                "simplex_port_id": port,
                "label": f"label of {port}",
                self.port_field: self._override(port),
            }
            for port in self.ports
        ]

    def port_state_rows(self) -> list[dict[str, str]]:
        """OCS_PORT_TABLE."""
        with self.lock:
            leads = {}
            for light in self.light.values():
                if light.valid:
                    a_side, b_side = light.circuit.ports
                    leads |= {a_side: (b_side, light), b_side: (a_side, light)}
            rows = []
            for port in self.ports:
                row = {"simplex_port_id": port, "connector_type": "Duplex LC", "connector_pin": "0"}
                status = "blocked" if self._override(port) != "powered_off" else "powered_off"
                if port in leads:
                    row["target_simplex_port_id"] = leads[port][0]
                    light = leads[port][1]
                    if self._override(port) == "normal":
                        tuned = time.monotonic() >= light.connected_at
                        dark = light.circuit in self.broken
                        status = "connected" if tuned and not dark else "tuning"
                rows.append(row | {"oper_status": status})
            return rows


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
