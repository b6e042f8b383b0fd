"""This rank's connection to the circuit service of its job, if there is one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.links.rank_layout import RankLayout

_CONNECT_S = 10.0


def circuit_client(session: Any, layout: RankLayout, rank: int) -> Any:
    """A _backend.CircuitClient; None without TOPOOPT_CIRCUITS, or with several ranks on a server.

    Raises FabricError if the service does not answer.
    """
    path = os.environ.get(CIRCUITS_VARIABLE)
    servers = len(layout.ranks_of)
    if not path or len(layout.server_of) != servers:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(path)
        connection.sendall(b"server %d\n" % layout.server_of[rank])
        exchanges, least_s = _requested(connection)
    except OSError as error:
        connection.close()
        raise FabricError(f"{CIRCUITS_VARIABLE}: {path}: {error.strerror or error}") from None
    return session.circuit_client(connection.detach(), servers, exchanges, least_s)


def _requested(connection: socket.socket) -> tuple[bool, float]:
    """The service's first line. Lines that follow are left for the client."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("it has ended")
        line += byte
    _, exchanges, least_s = line.split()
    return exchanges == b"1", float(least_s)
