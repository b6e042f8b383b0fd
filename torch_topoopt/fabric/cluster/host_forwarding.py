"""The settings of a real host that forwards for the others of its job, while the job runs.

Its state file has the earlier values of kernel settings. It is written before any change. So the
next job on this host, or `topoopt fabric down`, undoes the changes of a killed one. Each network
namespace has a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.kernel_tables import RETRANSMIT_SOON, KernelTables
from torch_topoopt.fabric.own_command import own_command
from torch_topoopt.links.errors import FabricError
from torch_topoopt.processes.scratch import process_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

STATE_VARIABLE = "TOPOOPT_STATE_DIR"  # also of the scripts of `topoopt fabric script`
_STATE_DIR = "/run/topoopt"
_CAP_NET_ADMIN = 12  # <linux/capability.h>
_IPV4 = 2  # AF_INET
_IPV4_SETTINGS = Path("/proc/sys/net/ipv4")
# After a pause, TCP keeps its window.
_OF_TCP = RETRANSMIT_SOON | {"tcp_slow_start_after_idle": "0"}
# Any interface may lead to the source of a packet (2), because its way back may differ. Packets may
# leave where they came in; hosts would redirect the sender then.
_OF_PORTS = {
    "forwarding": "1",
    "rp_filter": "2",
    "accept_redirects": "0",
    "arp_ignore": "1",
    "arp_announce": "2",
}


@dataclass(frozen=True)
class HostPort:
    """The interface that has an address of this host, and its MAC address."""

    interface: str
    mac: str


@dataclass
class _ForwardingState:
    """Changes of a process (`owner`, which started at `owner_start`): the earlier values of
    `settings`, by path, and its `address` on the interface lo."""

    owner: int
    owner_start: int
    address: str
    settings: dict[str, str]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class HostForwarding:
    """This host forwards between its `interfaces`, and has `address` for forwarded connections.

    Undoes what an ended process has left first. Raises FabricError if this process may not, or if
    another one does so here.
    """

    def __init__(self, interfaces: Iterable[str], address: str) -> None:
        require_rights()
        undo_left()  # of an ended process
        self.tables = KernelTables("this host's routes")
        self._path = state_file()
        self._state = _ForwardingState(os.getpid(), process_start(os.getpid()), address, {})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("x", encoding="utf-8"):
                pass
        except FileExistsError:
            raise FabricError(
                f"another job or server forwards on this host ({self._path}); end it first, or "
                "give each server a network namespace of its own"
            ) from None
        except OSError as error:
            raise FabricError(
                f"{self._path}: cannot be written: {error.strerror}; {STATE_VARIABLE} moves it"
            ) from None
        try:
            self._set_up(interfaces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Undoes all changes; harmless if that is done."""
        if self._path.exists():
            _undo(self._path, self._state)
        self.tables.close()

    def _set_up(self, interfaces: Iterable[str]) -> None:
        wanted = {_IPV4_SETTINGS / name: value for name, value in _OF_TCP.items()}
        wanted = {path: value for path, value in wanted.items() if path.exists()}
        for interface in interfaces:
            folder = _IPV4_SETTINGS / "conf" / interface
            wanted |= {folder / name: value for name, value in _OF_PORTS.items()}
        try:
            self._state.settings |= {str(path): path.read_text().strip() for path in wanted}
            self._state.save(self._path)
            for path, value in wanted.items():
                path.write_text(value)
        except OSError as error:
            raise FabricError(f"{error.filename}: {error.strerror}") from None
        with _kernel() as kernel:
            (lo,) = kernel.link_lookup(ifname="lo")
            kernel.addr("replace", index=lo, address=self._state.address, prefixlen=32)


def ports_here(addresses: Iterable[str]) -> Mapping[str, HostPort]:
    """The ports of this host with any of these IPv4 addresses, by address."""
    wanted, found = set(addresses), {}
    with _kernel() as kernel:
        links = {link["index"]: link for link in kernel.get_links()}
        for entry in kernel.get_addr(family=_IPV4):
            address = entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")
            if address in wanted:
                link = links[entry["index"]]
                mac = link.get_attr("IFLA_ADDRESS") or ""
                found[address] = HostPort(link.get_attr("IFLA_IFNAME"), mac)
    return found


def state_file() -> Path:
    """The state file of this process's network namespace."""
    folder = os.environ.get(STATE_VARIABLE) or _STATE_DIR
    return Path(folder, f"forwarding-{os.stat('/proc/thread-self/ns/net').st_ino}.json")


def undo_left(*, dry_run: bool = False) -> bool:
    """Undoes the changes of an ended process here; False if there are none.

    Raises FabricError if this process may not undo them.
    """
    path = state_file()
    try:
        state = _ForwardingState(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return False
    except (ValueError, TypeError):  # ended before anything was changed
        state = _ForwardingState(0, 0, "", {})
    if state.owner and process_start(state.owner) == state.owner_start:
        return False
    if not dry_run:
        require_rights()
        _undo(path, state)
    return True


def _undo(path: Path, state: _ForwardingState) -> None:
    tables = KernelTables("this host's routes")
    try:
        tables.clear()
    finally:
        tables.close()
    with _kernel() as kernel:
        (lo,) = kernel.link_lookup(ifname="lo")
        own = {entry.get_attr("IFA_LOCAL") for entry in kernel.get_addr(family=_IPV4, index=lo)}
        if state.address in own:
            kernel.addr("del", index=lo, address=state.address, prefixlen=32)
    for name, value in state.settings.items():
        with contextlib.suppress(FileNotFoundError):  # the interface has gone
            Path(name).write_text(value)
    path.unlink(missing_ok=True)


def require_rights(status: Path = Path("/proc/self/status")) -> None:
    """Raises FabricError where this process may not change routes of its host."""
    if not sys.platform.startswith("linux"):
        raise FabricError("routes of hosts need Linux")
    lines = status.read_text().splitlines()
    (effective,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    if not effective >> _CAP_NET_ADMIN & 1:
        raise FabricError(
            "routes of hosts need root, or the right CAP_NET_ADMIN; start it with sudo "
            f"{own_command()} ..."
        )
    try:
        import pyroute2  # noqa: F401 - tests whether it is installed
    except ImportError:
        raise FabricError(
            "routes of hosts need the package pyroute2 (pip install pyroute2)"
        ) from None


@contextlib.contextmanager
def _kernel() -> Iterator[Any]:
    """An IPRoute of this namespace; turns its errors into FabricError."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with netns_kernel.open_route() as kernel:
            yield kernel
    except (NetlinkError, OSError) as error:
        raise FabricError(f"this host's kernel refused: {error}") from None
