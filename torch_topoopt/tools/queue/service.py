"""The daemon as a process: one on each queue, until a signal ends it."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Plan
from torch_topoopt.tools.queue import jobs as j
from torch_topoopt.tools.queue.partition import check_fits
from torch_topoopt.tools.queue.store import Event, StoreError, StoreLockedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.tools.queue.daemon import Daemon
    from torch_topoopt.tools.queue.store import Store

_LOCK = "daemon.lock"
_BUSY_S = 2.0  # then it handles signals, and retries
_LOCKED_LIMIT_S = 600.0
_LOOK_S = 0.1  # for what commands have written, and for processes that have ended


@contextmanager
def only_daemon(folder: Path) -> Iterator[None]:
    """Holds the daemon's lock of `folder`; raises StoreError if another process has it.

    The kernel releases it at the end of the process, even after a kill.
    """
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(handle, 20, 0).decode().strip()
            raise StoreError(
                f"state: a daemon (process {pid}) serves {folder} already; one is enough"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def daemon_pid(folder: Path) -> int | None:
    """The daemon's process number; None if no daemon runs."""
    try:
        handle = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(handle, 20, 0) or 0)
    finally:
        os.close(handle)
    return None


def bind_cluster(store: Store, cluster: ClusterFile, *, change: bool) -> None:
    """Makes sure that queue and cluster file belong together.

    The file may only `change` while no job has servers. Raises StoreError.
    """
    text, known = cluster.to_yaml(), store.meta("cluster")
    if known == text:
        return
    if known is not None:
        holding = [job for job in store.jobs(ended=False) if job.state != j.QUEUED]
        if holding or not change:
            why = f"{holding[0].title} has servers of that one" if holding else "restart the daemon"
            raise StoreError(
                f"cluster: this file of {cluster.name} says something else than the one that the "
                f"queue in {store.folder} was made for; {why}"
            )
    store.set_meta("cluster", text)
    for job in store.jobs(ended=False):
        try:
            check_fits(Plan.from_json(job.plan), cluster)
        except FabricError as error:
            store.move(job, j.FAILED, f"failed: {error}", problem=str(error))


def serve(
    daemon: Daemon,
    store: Store,
    wake: threading.Event,
    show: Callable[[Event], None],
    *,
    until_idle: bool = False,
) -> None:
    """Steps until a signal's exception, or with `until_idle` until no job is left."""
    store.wait_for_locks(_BUSY_S)
    lock = _Lock(show)
    shown = max((number for number, _ in store.events()), default=0)
    recovered = False
    while True:
        wake.clear()
        try:
            if not recovered:
                daemon.recover()
                recovered = True
            progress = daemon.step()
            for number, event in store.events(after=shown):
                show(event)
                shown = number
            lock.is_free()
            if progress:
                continue
            if until_idle and not store.jobs(ended=False):
                return
        except StoreLockedError:
            lock.is_held()
        wake.wait(_LOOK_S)


class _Lock:
    """Warns of another process that keeps the queue locked."""

    def __init__(self, show: Callable[[Event], None]) -> None:
        self._show = show
        self._since: float | None = None

    def is_held(self) -> None:
        """Raises StoreError once that has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._say("another process keeps the queue locked; trying again until it is free")
        elif now - self._since > _LOCKED_LIMIT_S:
            raise StoreError(
                f"state: another process has kept the queue locked for {_LOCKED_LIMIT_S:g} s; end "
                "it (`fuser queue.sqlite` names it) and start the daemon again"
            )

    def is_free(self) -> None:
        if self._since is not None:
            self._say(f"the queue is free again after {age(time.monotonic() - self._since)}")
            self._since = None

    def _say(self, text: str) -> None:
        self._show(Event(time.time(), None, text))


def age(seconds: float) -> str:
    """`12 s`, `5 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
