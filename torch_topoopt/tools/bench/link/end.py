"""One end of the cables that `topoopt bench link` measures: answers requests, as JSON lines."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.links import sockets
from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress
from torch_topoopt.tools.bench.link.flows import TcpFlood, echo, latency_s, open_connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.discovery.agent import Channel

_PINGPONG = "fi_pingpong"  # of libfabric
_PINGPONG_S, _RETRY_S = 20.0, 0.2
_ERRORS = ("rx_errors", "tx_errors", "rx_missed_errors")


class LinkEnd:
    """The port of this host at one cable; another `listen` moves it to another cable."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._near = PortAddress(0, 0, "", None)
        self._listener: socket.socket | None = None

    def serve(self, channel: Channel) -> None:
        """Answers requests until the other side ends."""
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "facts": self._facts,
            "listen": self._listen,
            "flood": self._flood,
            "latency": self._latency,
            "errors": self._count_errors,
            "libfabric": self._libfabric,
        }
        while (question := channel.receive()) is not None:
            name = question.pop("ask", None)
            try:
                channel.send(answers[name](**question))
            except (OSError, FabricError) as error:
                timed_out = isinstance(error, TimeoutError)
                channel.send({"error": "no answer over the cable" if timed_out else str(error)})

    def _facts(self) -> dict[str, Any]:
        from torch_topoopt.tools.doctor.gather import gather

        facts = gather(None, self._server, probing=False)
        return {"facts": facts.to_json(), "pingpong": shutil.which(_PINGPONG) is not None}

    def _listen(self, address: str, interface: str, gbps: float | None) -> dict[str, Any]:
        if self._listener is not None:
            self._listener.close()
        # the rate limits nothing; it sets the unsent bytes of a connection
        self._near = PortAddress(0, 0, address, None, speed_gbps=gbps, interface=interface)
        self._listener = sockets.listen(address, 0, interface)
        with sockets.listen(address, 0, interface) as spare:  # for another program
            spare_port = spare.getsockname()[1]
        return {"tcp_port": self._listener.getsockname()[1], "spare_port": spare_port}

    def _open(self, far: list[Any] | None, count: int) -> list[socket.socket]:
        assert self._listener is not None
        dialled = None if far is None else (PortAddress(1, 0, far[0], None), int(far[1]))
        return open_connections(self._near, self._listener, dialled, count)

    def _flood(self, far: list[Any] | None, sends: list[bool], window_s: float) -> dict[str, Any]:
        return asdict(TcpFlood(self._open(far, len(sends)), sends).run(window_s))

    def _latency(self, far: list[Any] | None, size_bytes: int, limit_s: float) -> dict[str, Any]:
        (connection,) = self._open(far, 1)
        with connection:
            if far is None:
                echo(connection, size_bytes)
                return {}
            return {"seconds": latency_s(connection, size_bytes, limit_s)}

    def _count_errors(self) -> dict[str, Any]:
        """Frames that the card has dropped so far: damaged, or without room."""
        from pyroute2 import IPRoute

        with IPRoute() as route:
            index = socket.if_nametoindex(str(self._near.interface))
            (link,) = route.get_links(index)
            counters = link.get_attr("IFLA_STATS64") or {}
        return {"frames": sum(int(counters.get(name, 0)) for name in _ERRORS)}

    def _libfabric(
        self, far: str | None, provider: str, domain: str | None, size_bytes: int, tcp_port: int
    ) -> dict[str, Any]:
        """Echoes of libfabric's own program: seconds of a message one way."""
        words = [_PINGPONG, "-p", provider, "-e", "msg" if provider == "tcp" else "rdm"]
        words += ["-S", str(size_bytes), "-I", "20"]
        words += ["-d", domain] if domain else []
        words += ["-B" if far is None else "-P", str(tcp_port)]
        if far is not None:
            words += ["-6", far] if is_ipv6(far) else [far]
        deadline = time.monotonic() + _PINGPONG_S
        while True:
            try:
                done = subprocess.run(
                    words, capture_output=True, text=True, timeout=_PINGPONG_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise FabricError(f"{_PINGPONG}: no end within {_PINGPONG_S:g} s") from None
            if far is None or done.returncode == 0 or time.monotonic() > deadline:
                break
            time.sleep(_RETRY_S)  # the other end is not listening yet
        reason = done.stderr.strip().splitlines()
        seconds = pingpong_s(done.stdout)
        if done.returncode != 0 or seconds is None:
            raise FabricError(f"{_PINGPONG}: {reason[-1] if reason else 'failed'}")
        return {"seconds": seconds}


def pingpong_s(output: str) -> float | None:
    """The column usec/xfer of the program's only line of figures."""
    found = re.findall(r"^\d\S*\s.*", output, re.MULTILINE)
    return float(found[-1].split()[-2]) * 1e-6 if found else None
