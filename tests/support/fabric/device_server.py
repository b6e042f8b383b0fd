"""The common part of the test servers of devices: they listen, a thread per connection, an end.

A server subclasses `DeviceServer` and speaks its protocol on one connection in `serve`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Self

from support.limits import limit_s

if TYPE_CHECKING:
    from pathlib import Path

_END_S = limit_s(20.0)


class DeviceServer:
    """Listens at `port` of `host` until `close`, or as a context manager.

    With `certificate` (a file with key and certificate) connections are TLS. Connections come from
    the moment this constructor is called: what `serve` needs is there before.
    """

    def __init__(self, certificate: Path | None = None, host: str = "127.0.0.1") -> None:
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def serve(self, connection: socket.socket) -> None:
        """Speaks on one connection until it ends; OSError is an end like any other."""
        raise NotImplementedError

    def is_away(self) -> bool:
        """Whether the device restarts just now: it accepts no connection."""
        return False

    def drop(self) -> None:
        """Ends every connection, as a device that restarts does."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                # below TLS: its goodbye would wait for the other side
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Stops listening, ends what there is; harmless a second time."""
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(_END_S)  # so that no connection comes after the last was dropped
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(_END_S)
            assert not thread.is_alive()

    def _start(self, target: Any, *given: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.is_away():
                connection.close()
                continue
            with contextlib.suppress(OSError):  # the client has gone already
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            # the handshake belongs to the connection's own thread
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self._connections.append(connection)
        self._start(self._run, connection)

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.serve(connection)
