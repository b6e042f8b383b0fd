"""The persistent state of the controller, in SQLite (WAL): one transaction for each request.

The flows of one report are one row, because rows for hundreds of flows would take longer than the
decision. Later changes of a flow, and ends of some flows of a report, have rows of their own. The
ids of all requests are kept as long as the file, so that no request is accepted twice.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from array import array
from typing import TYPE_CHECKING

from torch_topoopt.route_control.controller.messages import read_flows
from torch_topoopt.route_control.controller.state import AssignedFlow, RouteState

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch_topoopt.route_control.network_file import NetworkFile

    Path = tuple[int, ...]

_LAYOUT = 3  # of the tables
_INTEGER = "i"  # of packed paths
_MOST_TEXTS = 200_000  # of paths
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS hosts (name TEXT PRIMARY KEY, ports TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS dead (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b));
    CREATE TABLE IF NOT EXISTS reports (
        number INTEGER PRIMARY KEY,
        body BLOB NOT NULL,
        path_lengths BLOB NOT NULL,
        path_switches BLOB NOT NULL,
        changed INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS ended (
        report INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY (report, id)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS changes (
        id TEXT PRIMARY KEY,
        path TEXT NOT NULL,
        changed INTEGER NOT NULL,
        avoided TEXT NOT NULL,
        rate_bits_per_s REAL
    ) WITHOUT ROWID;
"""


class RouteStore:
    """Raises ValueError for a file of another network, and sqlite3.Error for a non-database."""

    def __init__(self, path: str | os.PathLike[str], file: NetworkFile) -> None:
        self._file = file
        self._path_texts = _PathTexts()
        self._dead: frozenset[frozenset[str]] | None = None
        self._report_of: dict[str, int] = {}  # flow -> its row in `reports`
        self._unnoted: list[tuple[Sequence[str], int]] = []  # flows that are not in _report_of yet
        self._left: dict[int, int] = {}  # row -> its flows that have not ended
        self._last_report = 0
        self._new_report = 0  # not committed yet; 0: none
        self._changed: set[str] = set()  # flows with a row in `changes`
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
        flows = self._read_flows(limits_rates=limits_rates)
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

    def _read_flows(self, *, limits_rates: bool) -> list[AssignedFlow]:
        """All flows, in the order of their reports."""
        read = self._database.execute
        ended = set(read("SELECT report, id FROM ended"))
        changes = {row[0]: row[1:] for row in read("SELECT * FROM changes")}
        self._report_of, self._left, self._changed = {}, {}, set(changes)
        self._unnoted.clear()
        self._new_report, self._last_report = 0, 0
        flows: list[AssignedFlow] = []
        for number, body, lengths, switches, epoch in read("SELECT * FROM reports ORDER BY number"):
            message = read_flows(body)
            for report, path in zip(message.flows, _unpacked(lengths, switches), strict=True):
                if (number, report.id) in ended:
                    continue
                changed, avoided, rate = epoch, [], None
                if report.id in changes:
                    text, changed, avoided, rate = changes[report.id]
                    path = None if (at := json.loads(text)) is None else tuple(at)
                    avoided = json.loads(avoided)
                flows.append(
                    AssignedFlow(
                        *(report, message.job, path, changed),
                        frozenset(map(tuple, avoided)),
                        rate if limits_rates else None,
                    )
                )
                self._report_of[report.id] = number
                self._left[number] = self._left.get(number, 0) + 1
            self._last_report = number
        return flows

    def begin(self, request: str) -> bool:
        """Stores the id of a request; false if it is there. `save` commits it, and `roll_back`
        forgets it."""
        try:
            self._database.execute("INSERT INTO requests VALUES (?)", (request,))
        except sqlite3.IntegrityError:
            return False
        return True

    def save(self, state: RouteState, changed: Sequence[str], ended: Iterable[str] = ()) -> None:
        """Stores the effect of one request or of an expired lease: changed and ended flows, epoch
        and links."""
        with self._database as database:
            self._end(dict.fromkeys(ended))
            self.save_flows(state, changed)
            database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(state.epoch),))
            if state.dead != self._dead:
                database.execute("DELETE FROM dead")
                database.executemany("INSERT INTO dead VALUES (?, ?)", map(sorted, state.dead))
        self._new_report = 0
        self._dead = state.dead

    def save_flows(self, state: RouteState, flows: Sequence[str]) -> None:
        """Stores the paths, rates and avoided paths of flows that differ from their reports. `save`
        commits them."""
        if not flows:
            return
        of, new = self._noted_reports(), self._new_report
        rates = state.limits_rates
        rows = [
            (
                *(name, self._path_texts[(flow := state.flows[name]).path], flow.changed),
                json.dumps(sorted(flow.avoided)) if flow.avoided else "[]",
                flow.rate_bits_per_s,
            )
            for name in flows
            if of[name] != new or (rates and state.flows[name].rate_bits_per_s is not None)
        ]
        self._database.executemany("INSERT OR REPLACE INTO changes VALUES (?, ?, ?, ?, ?)", rows)
        self._changed.update(row[0] for row in rows)

    def save_report(
        self, body: bytes, ids: Sequence[str], paths: tuple[bytes, bytes], epoch: int
    ) -> None:
        """Stores new flows with their `packed` paths. `body` is a request of exactly these flows.
        Call it before `save`, which commits both."""
        self._last_report += 1
        self._new_report = self._last_report
        self._unnoted.append((ids, self._last_report))
        self._left[self._last_report] = len(ids)
        row = self._last_report, body, *paths, epoch
        self._database.execute("INSERT INTO reports VALUES (?, ?, ?, ?, ?)", row)

    def _noted_reports(self) -> dict[str, int]:
        """The row of each flow; new ones are noted here, since saving their report does not need
        them."""
        for names, number in self._unnoted:
            self._report_of.update(dict.fromkeys(names, number))
        self._unnoted.clear()
        return self._report_of

    def _end(self, ids: Collection[str]) -> None:
        """Deletes reports whose flows have all ended."""
        if not ids:
            return
        of_reports: dict[int, list[str]] = {}
        report_of = self._noted_reports()
        for name in ids:
            of_reports.setdefault(report_of.pop(name), []).append(name)
        for number, names in of_reports.items():
            self._left[number] -= len(names)
            if self._left[number]:
                some = [(number, name) for name in names]
                self._database.executemany("INSERT INTO ended VALUES (?, ?)", some)
            else:
                del self._left[number]
                self._database.execute("DELETE FROM ended WHERE report = ?", (number,))
                self._database.execute("DELETE FROM reports WHERE number = ?", (number,))
        if was_changed := self._changed.intersection(ids):
            gone = [(name,) for name in was_changed]
            self._database.executemany("DELETE FROM changes WHERE id = ?", gone)
            self._changed -= was_changed

    def save_ports(self, host: str, state: RouteState) -> None:
        """Call it before `save`, which commits both."""
        text = json.dumps(state.ports[host])
        self._database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host, text))

    def roll_back(self) -> None:
        self._database.rollback()

    def _meta(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])


def packed(paths: Sequence[Path | None]) -> tuple[bytes, bytes]:
    """The number of switches of each path, 0 for None, and all switches; texts take longer."""
    lengths = array(_INTEGER, [len(path or ()) for path in paths])
    switches = array(_INTEGER, itertools.chain.from_iterable(filter(None, paths)))
    return lengths.tobytes(), switches.tobytes()


def _unpacked(lengths: bytes, switches: bytes) -> Iterator[Path | None]:
    """The paths of `packed`."""
    numbers = iter(array(_INTEGER, switches))
    for length in array(_INTEGER, lengths):
        yield tuple(itertools.islice(numbers, length)) or None


class _PathTexts(dict["Path | None", str]):
    """Paths as JSON."""

    def __missing__(self, path: Path | None) -> str:
        if len(self) >= _MOST_TEXTS:
            self.clear()
        text = self[path] = json.dumps(path)
        return text
