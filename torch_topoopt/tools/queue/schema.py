"""The tables of the queue, as the steps from an empty file to the newest version.

`PRAGMA user_version` counts the steps that a file has had. To change a table: add a step, never
edit one. Two rules are kept by the tables themselves, whatever a program does: a side of a server
is held by one job at most, and so is a server that processes run on.
"""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        submitted_at REAL NOT NULL,
        changed_at REAL NOT NULL,
        servers INTEGER NOT NULL,
        ports INTEGER NOT NULL,
        plan TEXT NOT NULL,
        spec TEXT NOT NULL,
        cancelled INTEGER NOT NULL DEFAULT 0,
        layout TEXT,
        assigned_order INTEGER,
        outcome TEXT,
        exit_code INTEGER,
        problem TEXT,
        attempts INTEGER NOT NULL DEFAULT 0,
        next_try_at REAL NOT NULL DEFAULT 0
    );
    CREATE TABLE held_sides (
        server TEXT NOT NULL,
        side TEXT NOT NULL,
        job INTEGER NOT NULL REFERENCES jobs(id),
        PRIMARY KEY (server, side)
    );
    CREATE TABLE used_servers (
        server TEXT PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs(id)
    );
    """,
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at REAL NOT NULL,
        job INTEGER REFERENCES jobs(id),
        text TEXT NOT NULL
    );
    CREATE INDEX events_of_job ON events (job);
    """,
)
