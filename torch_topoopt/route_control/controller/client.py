"""A host's requests to the controller. Fall back to ECMP on ControllerUnavailable."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx

from torch_topoopt.route_control.network_file import NetworkFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.route_control.controller.messages import FlowReport

_POLL_S = 25.0  # the longest that the controller keeps a long poll


class ControllerUnavailable(Exception):  # noqa: N818 - a state, not a fault, as SwitchUnreachable
    """The controller is gone, slower than the limit, or cannot store its state."""


class ControllerRefused(ValueError):  # noqa: N818
    """The controller understood a request and refused it; the message is the controller's line."""


@dataclass(frozen=True)
class FlowAssignment:
    """`path` are switches by name, None without a live path; without a `source_port` the flow is
    left to ECMP. `source_ports` are all ports for the path, `source_port` first."""

    id: str
    path: tuple[str, ...] | None
    source_port: int | None
    rate_bits_per_s: float | None
    source_ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class Assignments:
    epoch: int
    flows: tuple[FlowAssignment, ...]


class ControllerClient:
    """`url` as http://HOST:PORT. A call raises ControllerUnavailable after `limit_s` seconds (a
    long poll: that long after its own end), and ControllerRefused for an invalid request.

    Ignores proxies of the environment. Close it, or use it in a `with`; for one thread only.
    """

    def __init__(self, url: str, token: str, limit_s: float = 1.0) -> None:
        self._limit_s = limit_s
        self._interrupted = False
        self._connected: socket.socket | None = None
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=limit_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def interrupt(self) -> None:
        """From any thread: ends another thread's call, and all later ones, with
        ControllerUnavailable."""
        self._interrupted = True
        connected = self._connected
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpx during a request."""
        if event == "connection.connect_tcp.complete":
            self._connected = info["return_value"].get_extra_info("socket")
        if self._interrupted:
            raise ControllerUnavailable("controller: the call was interrupted")

    def network(self) -> NetworkFile:
        """The controller's network file."""
        return NetworkFile.from_json(json.dumps(self._answered("GET", "/v1/network")))

    def set_ports(self, host: str, ports: Mapping[str, Mapping[int, Sequence[str]]]) -> Assignments:
        """Reports the path of each source port of `host`, by target host."""
        plain = {
            target: {str(p): list(path) for p, path in t.items()} for target, t in ports.items()
        }
        return self._send("PUT", f"/v1/hosts/{quote(host, safe='')}", {"ports": plain})

    def start(self, job: str, flows: Sequence[FlowReport]) -> Assignments:
        """Reports new flows; returns their paths, in the same order. Repeating the same report of a
        flow is allowed, because a rank may retry."""
        body = {"job": job, "flows": [flow._asdict() for flow in flows]}
        return self._send("POST", "/v1/flows", body)

    def end(self, ids: Sequence[str]) -> Assignments:
        return self._send("POST", "/v1/flows/end", {"ids": list(ids)})

    def set_links(
        self, down: Sequence[tuple[str, str]] = (), up: Sequence[tuple[str, str]] = ()
    ) -> Assignments:
        return self._send("POST", "/v1/links", {"down": list(down), "up": list(up)})

    def degraded(self, flow: str) -> Assignments:
        """Reports the path of `flow` as bad; returns another one, if there is one."""
        return self._send("POST", "/v1/paths/degraded", {"flow": flow})

    def wait(self, host: str, after: int) -> Assignments:
        """Flows of `host` whose paths are newer than epoch `after`; none after 25 s."""
        return self._call(
            "GET",
            "/v1/assignments",
            params={"host": host, "after": after},
            timeout=httpx.Timeout(self._limit_s, read=_POLL_S + self._limit_s),
        )

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Assignments:
        return self._call(method, path, json={"request": secrets.token_hex(16), **body})

    def _call(self, method: str, path: str, **how: Any) -> Assignments:
        value = self._answered(method, path, **how)
        try:
            return self._assignments(value)
        except (KeyError, TypeError):
            raise ControllerUnavailable(
                "controller: its answer is not one of a controller"
            ) from None

    @staticmethod
    def _assignments(value: Any) -> Assignments:
        flows = (
            FlowAssignment(
                flow["id"],
                None if flow["path"] is None else tuple(flow["path"]),
                flow["source_port"],
                flow["rate_bits_per_s"],
                tuple(flow["source_ports"]),
            )
            for flow in value["flows"]
        )
        return Assignments(value["epoch"], tuple(flows))

    def _answered(self, method: str, path: str, **how: Any) -> Any:
        try:
            extensions = {"trace": self._trace}
            answer = self._http.request(method, path, extensions=extensions, **how)
            value = answer.json()
        except httpx.HTTPError as error:
            raise ControllerUnavailable(f"controller: {error or type(error).__name__}") from None
        except ValueError:
            raise ControllerUnavailable("controller: its answer is not JSON") from None
        if answer.status_code >= 500:
            raise ControllerUnavailable(f"controller: {value.get('error')}")
        if answer.status_code >= 400:
            raise ControllerRefused(f"controller: {value.get('error')}")
        return value
