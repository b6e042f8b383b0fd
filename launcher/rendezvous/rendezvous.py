"""The rendezvous of the ranks of one machine, unreachable from other machines.

torch's own rendezvous for one machine ("c10d") keeps its state in a TCPStore that listens on all
addresses, has no password, and holds pickled objects that the agent loads: any client that connects
runs code as the launcher. Here the agent's own values stay in its memory, and the store that the
ranks share listens at one address only. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

BACKEND = "topoopt"  # its name in torch's launcher
_BACKLOG = 4096  # all ranks connect at once
_CONNECT_S = 60.0


class OneMachine(RendezvousHandler):  # type: ignore[misc]
    """The rendezvous of a single agent: it is always complete.

    The ranks find the store by MASTER_ADDR and MASTER_PORT, as with torch's static rendezvous. Each
    start of the ranks has a new store: torch gives keys no prefix, so after a restart ranks would
    find the addresses of those before.
    """

    def __init__(self, run_id: str, address: str, port: int) -> None:
        """Listens at `address` of this machine; `port` 0: a free one. Raises FabricError."""
        self._run_id = run_id
        self._address = address
        self._port = port
        self._of_ranks: Any = listening_store(address, port)
        self._used = False

    def get_backend(self) -> str:
        """Its name."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Yes: no rank may host one, for that would listen on all addresses."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns at once: rank 0 of one agent. Raises FabricError if the port is taken by now."""
        if self._used:
            self._of_ranks = None  # frees a requested port
            self._of_ranks = listening_store(self._address, self._port)
        self._used = True
        where = RendezvousStoreInfo(self._of_ranks.host, self._of_ranks.port)
        return RendezvousInfo(HashStore(), 0, 1, where)  # the first store is the agent's own

    def is_closed(self) -> bool:
        """Never: it ends with the launcher."""
        return False

    def set_closed(self) -> None:
        """There is no other agent to notify."""

    def num_nodes_waiting(self) -> int:
        """No other agent can join."""
        return 0

    def get_run_id(self) -> str:
        """That of the launcher's configuration."""
        return self._run_id

    def shutdown(self) -> bool:
        """There is no other agent to notify."""
        return True


def listening_store(address: str, port: int, timeout: timedelta | None = None) -> Any:
    """A TCPStore that this process hosts and that listens at `address` (or name) alone.

    TCPStore itself always listens on all addresses, so it is given a socket that does not, and it
    logs a C++ stack for every unauthenticated peer: torch's C++ warnings are off in this process.
    Another TCPStore of this process with the same port and `multi_tenant=True` shares it. Raises
    FabricError for an address that is not this machine's, or a port that is taken.
    """
    family, resolved = _resolve(address)
    try:
        listener = socket.create_server((resolved, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise FabricError(f"master-addr: {address} is not an address of this machine") from None
        if error.errno == errno.EADDRINUSE:
            raise FabricError(
                f"--master-port: {port} is in use at {address}; choose another, on all hosts"
            ) from None
        raise FabricError(f"master-port: {port} at {address}: {error.strerror}") from None
    port = listener.getsockname()[1]
    importlib.import_module("torch_topoopt._backend").quiet_torch_log()
    return TCPStore(
        resolved,
        port,
        is_master=True,
        timeout=timeout or timedelta(seconds=_CONNECT_S),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),  # now owned by the store
    )


def check_reachable(address: str) -> None:
    """Raises FabricError for a name that resolves to a loopback address.

    Linux distributions give a machine's own name 127.0.1.1, unreachable from other machines.
    """
    _, resolved = _resolve(address)
    if ipaddress.ip_address(resolved).is_loopback and address not in (resolved, "localhost"):
        raise FabricError(
            f"master-addr: {address!r} is {resolved} on this machine (see /etc/hosts), where no "
            "other machine can reach it; give the address of its management interface"
        )


def _resolve(address: str) -> tuple[socket.AddressFamily, str]:
    """Its IPv4 address if it has one."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name"
        raise FabricError(f"master-addr: {address!r}: {reason}") from None
    family, _, _, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(where[0])


def register() -> None:
    """Registers BACKEND with torch's launcher; its endpoint is address:port."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    address, _, port = parameters.endpoint.rpartition(":")
    return OneMachine(parameters.run_id, address, int(port))
