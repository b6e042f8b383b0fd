"""What outlives a restart of the controller, in SQLite (WAL): one transaction for each request.

The ids of all requests are kept as long as the file is, so that no request is ever taken twice.
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
        avoided TEXT NOT NULL
    );
"""


class RouteStore:
    """Raises ValueError for a file of another network, and sqlite3.Error for one that is none."""

    def __init__(self, path: str | os.PathLike[str], file: NetworkFile) -> None:
        self._file = file
        self._database = sqlite3.connect(path, timeout=1)
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")  # one controller at a time
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_TABLES)
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

    def load(self, scheme: str) -> RouteState:
        """The state as it was after the last request that was stored."""
        state = RouteState(self._file, scheme)
        read = self._database.execute
        flows = [
            AssignedFlow(
                FlowReport(flow, source, target, size, period),
                job,
                None if (numbers := json.loads(path)) is None else tuple(numbers),
                changed,
                frozenset(map(tuple, json.loads(avoided))),
            )
            for flow, job, source, target, size, period, path, changed, avoided in read(
                "SELECT id, job, source, target, bytes, period_s, path, changed, avoided "
                "FROM flows ORDER BY rowid"
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
        """Stores what one request has done: its id (None: a lease that ended), changed and ended
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
                json.dumps(flow.path),
                flow.changed,
                json.dumps(sorted(flow.avoided)),
            )
            for flow in (state.flows[name] for name in changed)
        ]
        with self._database as database:
            if request is not None:
                database.execute("INSERT INTO requests VALUES (?)", (request,))
            database.executemany("DELETE FROM flows WHERE id = ?", [(name,) for name in ended])
            database.executemany(
                "INSERT INTO flows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET path = excluded.path, changed = excluded.changed, avoided = excluded.avoided",
                rows,
            )
            database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(state.epoch),))
            database.execute("DELETE FROM dead")
            database.executemany("INSERT INTO dead VALUES (?, ?)", map(sorted, state.dead))

    def save_ports(self, host: str, state: RouteState) -> None:
        """To be called before `save`, which commits both."""
        text = json.dumps(state.ports[host])
        self._database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host, text))

    def roll_back(self) -> None:
        self._database.rollback()

    def _meta(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])
