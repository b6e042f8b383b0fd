"""Network namespaces of this machine: make, enter and remove them, and what the kernel can do.

Needs root and pyroute2, which is imported only here and where a namespace is wired.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch_topoopt.fabric.netns.layout import fabric_of
from torch_topoopt.fabric.own_command import own_command
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them

NUD_PERMANENT = 0x80  # <linux/neighbour.h>
_CLONE_NEWNET = 0x40000000  # <sched.h>
_MS_BIND, _MS_BIND_ALL, _MS_SHARED_ALL = 0x1000, 0x5000, 0x104000  # <sys/mount.h>
_MNT_DETACH = 2
_END_S = 5.0  # for processes that were killed

Result = TypeVar("Result")


def require() -> None:
    """Raises FabricError where no namespace can be made, and says what is missing."""
    if not sys.platform.startswith("linux"):
        raise FabricError("netns: needs Linux; use --fabric loopback")
    if os.geteuid() != 0:
        raise FabricError(
            f"netns: needs root for network namespaces; start it with sudo {own_command()} ..., or "
            "use --fabric loopback"
        )
    try:
        import pyroute2  # noqa: F401 - tests whether it is installed
    except ImportError:
        raise FabricError("netns: needs the package pyroute2 (pip install pyroute2)") from None
    try:
        _in_thread(lambda: _check(_libc().unshare(_CLONE_NEWNET), "unshare"))
    except OSError as error:
        raise FabricError(
            f"netns: this machine does not let root make network namespaces ({error.strerror}); "
            "a container needs the right to (CAP_SYS_ADMIN)"
        ) from None


def path_of(namespace: str) -> str:
    return str(NAMESPACES / namespace)


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def of_fabric(name: str) -> list[str]:
    """The existing namespaces of a fabric."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(n for n in os.listdir(NAMESPACES) if fabric_of(n) == name)


def create(namespace: str) -> None:
    """Makes a namespace that outlives this process; raises FabricError.

    Like `ip netns add`, it mounts a thread's namespace on a file of its name. pyroute2 would start
    a process for each, and time out on a busy machine.
    """
    path = path_of(namespace)
    try:
        _share_mounts()
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))
    except FileExistsError:
        raise FabricError(f"netns: there is a namespace {namespace} already") from None
    except OSError as error:
        raise FabricError(f"netns: {path}: {error.strerror}") from None

    def mount() -> None:
        _check(_libc().unshare(_CLONE_NEWNET), "unshare")
        own = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        _check(_libc().mount(own.encode(), path.encode(), b"none", _MS_BIND, None), "mount")

    try:
        _in_thread(mount)
    except OSError as error:
        os.unlink(path)
        raise FabricError(f"netns: cannot make the namespace {namespace}: {error}") from None


def _share_mounts() -> None:
    """Makes namespaces visible to every process, also to one with its own mounts.

    Only a mount can be shared, so the folder becomes one, once, under the lock of `ip netns`.
    """
    NAMESPACES.mkdir(mode=0o755, parents=True, exist_ok=True)
    here = str(NAMESPACES).encode()
    folder = os.open(NAMESPACES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _libc().mount(b"", here, b"none", _MS_SHARED_ALL, None) != 0:
            _check(_libc().mount(here, here, b"none", _MS_BIND_ALL, None), "mount")
            _check(_libc().mount(b"", here, b"none", _MS_SHARED_ALL, None), "mount --make-shared")
    finally:
        os.close(folder)


@contextlib.contextmanager
def open_route(namespace: str | None = None) -> Iterator[Any]:
    """A pyroute2 IPRoute inside a namespace (None: this process's own)."""
    from pyroute2 import IPRoute

    def netlink() -> socket.socket:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)

    kernel = netlink() if namespace is None else inside(namespace, netlink)
    route = IPRoute(fileno=kernel.detach())  # which it closes
    try:
        yield route
    finally:
        route.close()


def inside(namespace: str, call: Callable[[], Result]) -> Result:
    """Returns or raises the result of `call()` in a thread that has entered the namespace.

    Sockets that it makes stay in the namespace for good.
    """

    def run() -> Result:
        try:
            with open(path_of(namespace)) as file:
                _check(_libc().setns(file.fileno(), _CLONE_NEWNET), "setns")
        except OSError as error:
            raise FabricError(
                f"netns: cannot enter the namespace {namespace}: {error.strerror}"
            ) from None
        return call()

    return _in_thread(run)


def _in_thread(call: Callable[[], Result]) -> Result:
    """Returns or raises the result of `call()` in a thread of its own."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:  # a signal: let the thread finish before its namespace is removed
        thread.join(_END_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def processes(namespaces: Iterable[str]) -> list[int]:
    """The processes that run in any of them.

    Raises FabricError if this one does: it cannot outlive them.
    """
    wanted = {}
    for namespace in namespaces:
        if identity := _identity(path_of(namespace)):
            wanted[identity] = namespace
    own = _identity("/proc/self/ns/net")
    if own in wanted:
        raise FabricError(
            f"netns: this command runs in the namespace {wanted[own]} itself; nothing was removed, "
            "leave the namespace first"
        )
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and _identity(f"/proc/{entry}/ns/net") in wanted
    ]


def _identity(path: str) -> tuple[int, int] | None:
    """Of the namespace at a path; None if it has gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def remove(namespaces: Iterable[str]) -> None:
    """Kills the processes in the namespaces and removes these; raises FabricError.

    Ignores namespaces that do not exist.
    """
    present = [namespace for namespace in namespaces if exists(namespace)]
    deadline = time.monotonic() + _END_S
    while running := processes(present):
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise FabricError(f"netns: process {running[0]} does not end; nothing was removed")
        time.sleep(0.01)
    for namespace in present:
        _libc().umount2(path_of(namespace).encode(), _MNT_DETACH)
        try:
            os.unlink(path_of(namespace))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FabricError(
                f"netns: cannot remove the namespace {namespace}: {error.strerror}"
            ) from None


@contextlib.contextmanager
def scratch_interface() -> Iterator[tuple[Any, str, int]]:
    """A temporary namespace for tests of the kernel: (IPRoute, namespace, interface index)."""
    namespace = f"topoopt-probe{secrets.token_hex(4)}"
    create(namespace)
    try:
        with open_route(namespace) as route:
            route.link("add", ifname="a", kind="veth", peer={"ifname": "b"})
            yield route, namespace, route.link_lookup(ifname="a")[0]
    finally:
        remove([namespace])
