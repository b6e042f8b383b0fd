"""The persistent state of the controller, in SQLite (WAL): one transaction for each request.

The ids of all requests are kept as long as the file, so that no request is accepted twice.
"""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from torch_topoopt.route_control.controller.messages import FlowReport
from torch_topoopt.route_control.controller.state import AssignedFlow, RouteState

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from torch_topoopt.route_control.network_file import NetworkFile

_LAYOUT = 2  # of the tables
_MOST_TEXTS = 1_000_000  # of paths
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS hosts (name TEXT PRIMARY KEY, ports TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS dead (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b));
    CREATE TABLE IF NOT EXISTS flows (
        id TEXT PRIMARY KEY,
        job TEXT NOT NULL,
        source TEXT NOT NULL,
        target TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        period_s REAL,
        path TEXT NOT NULL,
        changed INTEGER NOT NULL,
        avoided TEXT NOT NULL,
        rate_bits_per_s REAL
    );
"""


class RouteStore:
    """Raises ValueError for a file of another network, and sqlite3.Error for a non-database."""

    def __init__(self, path: str | os.PathLike[str], file: NetworkFile) -> None:
        self._file = file
        self._path_texts: dict[tuple[int, ...] | None, str] = {}
        self._dead: frozenset[frozenset[str]] | None = None
        self._database = sqlite3.connect(path, timeout=1)
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")  # one controller at a time
        self._database.execute("PRAGMA journal_mode = WAL")
        # Writes are in the kernel before a request is answered, so a killed controller loses
        # nothing. A power failure may lose the last requests, but never parts of one.
        self._database.execute("PRAGMA synchronous = NORMAL")
        (layout,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and layout != _LAYOUT:
            self.close()
            raise ValueError(
                f"state-file: {path} has layout {layout}, not {_LAYOUT}; give the controller a "
                "new file"
            )
        self._database.executescript(_TABLES)
        self._database.execute(f"PRAGMA user_version = {_LAYOUT}")
        network = file.to_json()
        with self._database as database:
            database.execute("INSERT OR IGNORE INTO meta VALUES ('network', ?)", (network,))
        if self._meta("network") != network:
            self.close()
            raise ValueError(
                f"state-file: {path} is of another network; give the controller a new file"
            )

    def close(self) -> None:
        self._database.close()

    def load(self, scheme: str, *, limits_rates: bool = False) -> RouteState:
        """The state after the last stored request."""
        state = RouteState(self._file, scheme, limits_rates=limits_rates)
        read = self._database.execute
        flows = [
            AssignedFlow(
                FlowReport(flow, source, target, size, period),
                job,
                None if (numbers := json.loads(path)) is None else tuple(numbers),
                changed,
                frozenset(map(tuple, json.loads(avoided))),
                rate if limits_rates else None,
            )
            for flow, job, source, target, size, period, path, changed, avoided, rate in read(
                "SELECT id, job, source, target, bytes, period_s, path, changed, avoided, "
                "rate_bits_per_s FROM flows ORDER BY rowid"
            )
        ]
        ports = {
            host: {
                target: {int(port): tuple(path) for port, path in table.items()}
                for target, table in json.loads(text).items()
            }
            for host, text in read("SELECT name, ports FROM hosts")
        }
        dead = frozenset(frozenset(ends) for ends in read("SELECT a, b FROM dead"))
        self._dead = dead  # as in the file
        state.restore(int(self._meta("epoch") or 0), flows, ports, dead)
        return state

    def seen(self, request: str) -> bool:
        found = self._database.execute("SELECT 1 FROM requests WHERE id = ?", (request,))
        return found.fetchone() is not None

    def save(
        self,
        request: str | None,
        state: RouteState,
        changed: Iterable[str],
        ended: Iterable[str] = (),
    ) -> None:
        """Stores the effect of one request: its id (None: an expired lease), changed and ended
        flows, epoch and links.

        New flows are loaded in the order of `changed`: the scheme's answer depends on it.
        """
        rows = [
            (
                flow.report.id,
                flow.job,
                flow.report.source,
                flow.report.target,
                flow.report.bytes,
                flow.report.period_s,
                self._path_text(flow.path),
                flow.changed,
                json.dumps(sorted(flow.avoided)) if flow.avoided else "[]",
                flow.rate_bits_per_s,
            )
            for flow in map(state.flows.__getitem__, changed)
        ]
        with self._database as database:
            if request is not None:
                database.execute("INSERT INTO requests VALUES (?)", (request,))
            database.executemany("DELETE FROM flows WHERE id = ?", [(name,) for name in ended])
            database.executemany(
                "INSERT INTO flows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET path = excluded.path, changed = excluded.changed, "
                "avoided = excluded.avoided, rate_bits_per_s = excluded.rate_bits_per_s",
                rows,
            )
            database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(state.epoch),))
            if state.dead != self._dead:
                database.execute("DELETE FROM dead")
                database.executemany("INSERT INTO dead VALUES (?, ?)", map(sorted, state.dead))
        self._dead = state.dead

    def save_ports(self, host: str, state: RouteState) -> None:
        """Call it before `save`, which commits both."""
        text = json.dumps(state.ports[host])
        self._database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host, text))

    def _path_text(self, path: tuple[int, ...] | None) -> str:
        text = self._path_texts.get(path)
        if text is None:
            if len(self._path_texts) >= _MOST_TEXTS:
                self._path_texts.clear()
            text = self._path_texts[path] = json.dumps(path)
        return text

    def roll_back(self) -> None:
        self._database.rollback()

    def _meta(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])
