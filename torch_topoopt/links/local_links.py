"""Connects the ranks of one server with each other, pairwise, by AF_UNIX sockets.

The names are abstract: they belong to the network namespace, need no file, and vanish with their
socket. The kernel identifies the connecting process; only processes of the same user are admitted,
and both ends send their plan and ranks.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

from torch_topoopt.links.identity import Kind
from torch_topoopt.links.rank_port import RankPort
from torch_topoopt.links.unauthenticated_peers import peer_credentials

if TYPE_CHECKING:
    from torch_topoopt.links.identity import Ends


class LocalPort(RankPort):
    """The connections of one rank with others on its server, while they are being opened."""

    kind = Kind.LOCAL

    def __init__(self, rank: int) -> None:
        self.name = f"torch_topoopt/rank/{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{self.name}")
        super().__init__(rank, listener)

    def _dial(self, name: str, timeout_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(f"\0{name}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _trusts(self, connection: socket.socket) -> bool:
        return peer_credentials(connection)[1] == os.getuid()

    def _admit(self, connection: socket.socket, ends: Ends) -> None:
        """Does nothing: the connection carries a descriptor, and shared memory the data."""

    def _hint(self) -> str:
        return "; ranks of one server must run on one machine, in one network namespace"

    @staticmethod
    def _describe(source: int, target: int) -> str:
        return describe(source, target)


def describe(source: int, target: int) -> str:
    return f"connection from rank {source} to rank {target} of the same server"
