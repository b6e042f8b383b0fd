"""Network namespaces of this machine: make, enter and remove them, and what the kernel can do.

Needs root and pyroute2, which is imported only here and where a namespace is wired.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.netns_layout import fabric_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them

_CLONE_NEWNET = 0x40000000
_END_S = 5.0  # for processes that were killed

Result = TypeVar("Result")


def require() -> None:
    """Raises FabricError where no namespace can be made, and says what is missing."""
    if not sys.platform.startswith("linux"):
        raise FabricError("netns: needs Linux; use --fabric loopback")
    if os.geteuid() != 0:
        raise FabricError(
            "netns: needs root for network namespaces; use sudo, or --fabric loopback"
        )
    try:
        import pyroute2  # noqa: F401 - whether it is there is the question
    except ImportError:
        raise FabricError("netns: needs the package pyroute2 (pip install pyroute2)") from None
    libc = ctypes.CDLL(None, use_errno=True)
    failure: list[int] = []

    def attempt() -> None:
        if libc.unshare(_CLONE_NEWNET) != 0:
            failure.append(ctypes.get_errno())

    thread = threading.Thread(target=attempt)  # its namespace ends with it
    thread.start()
    thread.join()
    if failure:
        raise FabricError(
            f"netns: this machine does not let root make network namespaces "
            f"({os.strerror(failure[0])}); in a container, run it with the right to (CAP_SYS_ADMIN)"
        )


def path_of(namespace: str) -> str:
    return str(NAMESPACES / namespace)


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def of_fabric(name: str) -> list[str]:
    """The namespaces of a fabric that are there."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(n for n in os.listdir(NAMESPACES) if fabric_of(n) == name)


def create(namespace: str) -> None:
    """Makes a namespace that outlives this process, with its `lo` up; raises FabricError."""
    from pyroute2 import netns

    try:
        netns.create(namespace)
    except OSError as error:
        why = "it exists already" if error.errno == errno.EEXIST else error.strerror
        raise FabricError(f"netns: cannot make the namespace {namespace}: {why}") from None


def open_route(namespace: str | None = None) -> Any:
    """A pyroute2 IPRoute inside a namespace (None: this process's own); close it."""
    from pyroute2 import IPRoute

    return IPRoute() if namespace is None else IPRoute(netns=path_of(namespace))


def inside(namespace: str, call: Callable[[], Result]) -> Result:
    """What `call()` returns, or raises, in a thread that has entered the namespace.

    Sockets that it makes stay in the namespace for good.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter(namespace)
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(namespace: str) -> None:
    """For the calling thread alone, which must end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with open(path_of(namespace)) as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET) == 0:
                return
            reason = os.strerror(ctypes.get_errno())
    except OSError as error:
        reason = str(error.strerror)
    raise FabricError(f"netns: cannot enter the namespace {namespace}: {reason}")


def processes(namespaces: Iterable[str]) -> list[int]:
    """The processes that run in any of them, this one excepted."""
    inodes = set()
    for namespace in namespaces:
        with contextlib.suppress(OSError):
            inodes.add(os.stat(path_of(namespace)).st_ino)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended since
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    found.append(int(entry))
    return found


def remove(namespaces: Iterable[str]) -> None:
    """Kills what runs in the namespaces and takes them away; raises FabricError.

    Harmless for those that are not there.
    """
    from pyroute2 import netns

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
        try:
            netns.remove(namespace)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise FabricError(
                    f"netns: cannot remove the namespace {namespace}: {error.strerror}"
                ) from None


@contextlib.contextmanager
def scratch_interface() -> Iterator[tuple[Any, str, int]]:
    """A namespace to try things in: (IPRoute, namespace, index of an interface); then it goes."""
    namespace = f"topoopt-probe{secrets.token_hex(4)}"
    create(namespace)
    try:
        with open_route(namespace) as route:
            route.link("add", ifname="a", kind="veth", peer={"ifname": "b"})
            yield route, namespace, route.link_lookup(ifname="a")[0]
    finally:
        remove([namespace])
