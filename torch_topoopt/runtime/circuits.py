"""This rank's connection to the circuit service of its job, if there is one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.links.rank_layout import RankLayout

_CONNECT_S = 10.0


def circuit_client(session: Any, layout: RankLayout, rank: int, numbers: Sequence[int]) -> Any:
    """A _backend.CircuitClient; None without TOPOOPT_CIRCUITS, or on one server.

    `numbers` are those of torch.distributed, which differ between the jobs of a process. Raises
    FabricError if the service does not answer.
    """
    path = os.environ.get(CIRCUITS_VARIABLE)
    if not path or len(layout.ranks_of) == 1:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(path)
        connection.sendall(b"rank %d %d\n" % (numbers[rank], layout.server_of[rank]))
        exchanges, least_s = _requested(connection)
    except OSError as error:
        connection.close()
        raise FabricError(f"{CIRCUITS_VARIABLE}: {path}: {error.strerror or error}") from None
    return session.circuit_client(connection.detach(), exchanges, least_s, list(numbers))


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
