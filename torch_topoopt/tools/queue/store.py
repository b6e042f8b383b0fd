"""The queue: one SQLite file that daemon and commands share, and the only way to reach the daemon.

A command writes its request for the daemon, so requests are kept while no daemon runs, and no other
protocol is needed. Write-ahead logging lets `status` read while the daemon writes. Every change of
a job's state is one transaction with its resources (sides, servers) and its event; it fails unless
the job is still in the state that the caller read.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.links.errors import FabricError
from torch_topoopt.tools.queue.jobs import CANCELLED, FINAL, QUEUED, JobLayout, JobSpec, QueuedJob
from torch_topoopt.tools.queue.schema import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "queue.sqlite"
BUSY_S = 30.0  # for which commands wait for others that write
_BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite keeps beside its own
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class StoreError(FabricError):
    """A queue that cannot be used as it is."""


class StoreLockedError(StoreError):
    """Another process keeps the queue locked; a retry may succeed."""


@dataclass(frozen=True)
class Event:
    """An event of a job (None: of the daemon)."""

    JSON_FIELDS: ClassVar = ("at", "text")

    at: float
    job: int | None
    text: str


class _Connection(sqlite3.Connection):
    """A connection that raises StoreLockedError if another process has the lock."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        with _saying_locked():
            return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        with _saying_locked():
            return super().executemany(*arguments)


@contextmanager
def _saying_locked() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _LOCKED:  # the rest says why
            raise StoreLockedError(
                "state: another process keeps the queue locked; try again"
            ) from None
        raise


def _make_private(folder: Path) -> None:
    """Hides the file from other users, because values of --env may be passwords.

    Raises OSError, and StoreError if other users can write to the folder.
    """
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0):
        raise StoreError(f"state: {folder} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise StoreError(
            f"state: others may write to {folder} (mode {found.st_mode & 0o7777:o}); run "
            f"`chmod 700 {folder}`"
        )
    handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(handle, 0o600)  # one that an older version made
    finally:
        os.close(handle)
    for ending in _BESIDE:  # new ones get the mode of the file
        with suppress(FileNotFoundError):
            (folder / f"{FILE}{ending}").chmod(0o600)


class Store:
    """An open queue. `folder` holds the file, and what the daemon keeps beside it."""

    def __init__(self, folder: Path, *, create: bool = False, upgrade: bool = False) -> None:
        """Opens it; raises StoreError if there is none, or one that this version cannot use.

        `upgrade`: brings an older file up to date, which only the daemon may do. This and every
        method raise StoreLockedError where another process keeps it locked for BUSY_S.
        """
        self.folder = folder
        path = folder / FILE
        if not create and not path.is_file():
            raise StoreError(f"state: there is no queue in {folder}; submit a job first")
        try:
            if create:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_private(folder)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, factory=_Connection
            )
            self._connection.row_factory = sqlite3.Row
            self._prepare(upgrade=upgrade)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"state: {path}: {error}") from None

    def wait_for_locks(self, seconds: float) -> None:
        """Replaces BUSY_S; no signal is handled during the wait."""
        self._connection.execute(f"PRAGMA busy_timeout={round(1000 * seconds)}")

    def close(self) -> None:
        self._connection.close()

    def _prepare(self, *, upgrade: bool) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        execute("PRAGMA foreign_keys=ON")
        newest = len(MIGRATIONS)
        with self._transaction():
            version = execute("PRAGMA user_version").fetchone()[0]
            if version > newest:
                raise StoreError(
                    f"state: {self.folder / FILE} has version {version}, and this torch_topoopt "
                    f"knows up to {newest}; upgrade torch_topoopt"
                )
            if 0 < version < newest and not upgrade:
                raise StoreError(
                    f"state: {self.folder / FILE} has version {version}, not {newest}; start "
                    "`topoopt cluster daemon` of this version once, which upgrades it"
                )
            for step in MIGRATIONS[version:]:
                for statement in step.split(";"):
                    execute(statement)
            if version == 0:
                self.set_meta("id", uuid.uuid4().hex)
            execute(f"PRAGMA user_version={newest}")
            if 0 < version < newest:
                self._event(None, f"upgraded the queue from version {version} to {newest}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        try:
            self._connection.execute("COMMIT")
        except StoreLockedError:
            self._connection.execute("ROLLBACK")
            raise

    def changes(self) -> int:
        """A number that changes when another process changes the queue."""
        number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return number

    def meta(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def submit(self, name: str, servers: int, ports: int, plan: str, spec: JobSpec) -> int:
        """A new job at the end of the queue; returns its number."""
        now = time.time()
        with self._transaction():
            cursor = self._connection.execute(
                "INSERT INTO jobs (name, state, submitted_at, changed_at, servers, ports, plan, "
                "spec) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (name, QUEUED, now, now, servers, ports, plan, spec.to_json()),
            )
            job = cursor.lastrowid
            assert job is not None
            self._event(job, f"submitted: {servers} servers with {ports} ports each")
        return job

    def cancel(self, job: int) -> str:
        """Requests the end of a job, and returns its state; one without servers ends at once.

        Raises StoreError for an unknown job.
        """
        with self._transaction():
            state = self.job(job).state
            if state == QUEUED:
                self._set(job, state=CANCELLED, changed_at=time.time(), problem=None)
                self._event(job, "cancelled in the queue")
                return CANCELLED
            if state not in FINAL:
                self._set(job, cancelled=1, next_try_at=0)
                self._event(job, f"asked to end while {state}")
        return state

    def jobs(self, *, ended: bool = True) -> list[QueuedJob]:
        """All jobs, in the order of submission; `ended`: also those that are over."""
        rows = self._connection.execute("SELECT * FROM jobs ORDER BY id").fetchall()
        return [_job(row) for row in rows if ended or row["state"] not in FINAL]

    def job(self, number: int) -> QueuedJob:
        """One job; raises StoreError for an unknown number."""
        row = self._connection.execute("SELECT * FROM jobs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise StoreError(f"job: there is no job {number} in {self.folder}")
        return _job(row)

    def assign(self, job: QueuedJob, layout: JobLayout, state: str, text: str) -> bool:
        """Assigns servers to a queued job; False if it is no longer queued."""
        with self._transaction():
            if self.job(job.id).state != job.state:
                return False
            order = self._connection.execute("SELECT MAX(assigned_order) FROM jobs").fetchone()[0]
            self._connection.executemany(
                "INSERT INTO held_sides VALUES (?, ?, ?)",
                [(server, layout.side, job.id) for server in layout.servers],
            )
            self._move(job.id, state, layout=layout.to_json(), assigned_order=(order or 0) + 1)
            self._event(job.id, text)
        return True

    def move(self, job: QueuedJob, state: str, text: str, **values: Any) -> bool:
        """Moves a job to another state; False if its state differs from that of `job`."""
        with self._transaction():
            if self.job(job.id).state != job.state:
                return False
            self._move(job.id, state, **values)
            self._event(job.id, text)
        return True

    def take_servers(self, job: QueuedJob, state: str, text: str) -> bool:
        """Like `move`; the job uses its servers from now on."""
        assert job.layout is not None
        with self._transaction():
            if self.job(job.id).state != job.state:
                return False
            self._connection.executemany(
                "INSERT INTO used_servers VALUES (?, ?)",
                [(server, job.id) for server in job.layout.servers],
            )
            self._move(job.id, state)
            self._event(job.id, text)
        return True

    def release_servers(self, job: QueuedJob, state: str, text: str, **values: Any) -> bool:
        """Like `move`; the job frees its servers, but still holds their sides."""
        with self._transaction():
            if self.job(job.id).state != job.state:
                return False
            self._connection.execute("DELETE FROM used_servers WHERE job = ?", (job.id,))
            self._move(job.id, state, **values)
            self._event(job.id, text)
        return True

    def release_sides(self, job: QueuedJob, state: str, text: str) -> bool:
        """Like `move`; the job holds nothing any more."""
        with self._transaction():
            if self.job(job.id).state != job.state:
                return False
            self._connection.execute("DELETE FROM held_sides WHERE job = ?", (job.id,))
            self._move(job.id, state)
            self._event(job.id, text)
        return True

    def postpone(self, job: QueuedJob, problem: str, next_try_at: float) -> None:
        """Records a problem and the time of the next try."""
        with self._transaction():
            self._set(job.id, problem=problem, attempts=job.attempts + 1, next_try_at=next_try_at)
            if problem != job.problem:
                self._event(job.id, problem)

    def settle(self, job: QueuedJob, text: str) -> None:
        """Clears the problem that `postpone` recorded."""
        with self._transaction():
            self._set(job.id, problem=None, attempts=0, next_try_at=0)
            self._event(job.id, text)

    def log(self, job: int | None, text: str) -> None:
        with self._transaction():
            self._event(job, text)

    def events(self, job: int | None = None, *, after: int = 0) -> list[tuple[int, Event]]:
        """Events of a job (None: all) with their numbers, the oldest first."""
        rows = self._connection.execute(
            "SELECT * FROM events WHERE id > ? AND (? IS NULL OR job = ?) ORDER BY id",
            (after, job, job),
        )
        return [(row["id"], Event(row["at"], row["job"], row["text"])) for row in rows]

    def _move(self, job: int, state: str, **values: Any) -> None:
        cleared = {"problem": None, "attempts": 0, "next_try_at": 0}
        self._set(job, **(cleared | values), state=state, changed_at=time.time())

    def _set(self, job: int, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*values.values(), job))

    def _event(self, job: int | None, text: str) -> None:
        self._connection.execute(
            "INSERT INTO events (at, job, text) VALUES (?, ?, ?)", (time.time(), job, text)
        )


def _job(row: sqlite3.Row) -> QueuedJob:
    values = {name: row[name] for name in row.keys() if name not in ("assigned_order", "layout")}  # noqa: SIM118
    layout = row["layout"]
    return QueuedJob(
        **values
        | {
            "spec": JobSpec.from_json(row["spec"]),
            "cancelled": bool(row["cancelled"]),
            "layout": None if layout is None else JobLayout.from_json(layout),
            "order": row["assigned_order"],
        }
    )
