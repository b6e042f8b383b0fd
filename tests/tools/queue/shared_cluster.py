"""A small cluster to share, for tests: n servers with two ports each, perhaps 1x2 switches."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import (
    PortEntry,
    SelectorEntry,
    ServerEntry,
    SwitchEntry,
)
from torch_topoopt.tools.queue.jobs import JobSpec
from torch_topoopt.tools.queue.store import FILE

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.tools.queue.store import Store


def make_cluster(
    servers: int,
    *,
    lookahead: bool = True,
    kind: str = "memory",
    addresses: tuple[str, ...] = ("",),
    selector: tuple[str, ...] = (),
) -> ClusterFile:
    """Port k of server i: sockets 2 i + k + 1, and 2 (n + i) + k + 1 for look-ahead.

    With two `addresses` there are two switches, and port k is on switch k: sockets i + 1 and
    n + i + 1, as in the paper.
    """
    count = len(addresses)
    entries = []
    for i in range(servers):
        ports = []
        for k in range(2):
            near = f"{i + 1}" if count == 2 else f"{2 * i + k + 1}"
            far = f"{servers + i + 1}" if count == 2 else f"{2 * (servers + i) + k + 1}"
            switch = k % count
            ports.append(
                PortEntry(
                    f"p{k}",
                    f"10.{k + 1}.0.{i + 1}/16" if count == 2 else f"10.1.{k}.{i + 1}/16",
                    gbps=1.0,
                    switch=f"ocs{switch}:{near}",
                    lookahead=f"ocs{switch}:{far}" if lookahead else None,
                )
            )
        entries.append(ServerEntry(f"h{i}", f"10.0.0.{i + 1}", ports=tuple(ports)))
    sockets = tuple(str(n + 1) for n in range(4 * servers // count))
    return ClusterFile(
        1,
        "lab",
        tuple(entries),
        (),
        tuple(SwitchEntry(f"ocs{s}", kind, a, sockets=sockets) for s, a in enumerate(addresses)),
        (SelectorEntry("command", selector, 30) if selector else SelectorEntry("memory"))
        if lookahead
        else None,
    ).validate()


def program(
    folder: Path, text: str = "exit 0", *, arguments: tuple[str, ...] = (), name: str = "job.sh"
) -> JobSpec:
    """A job that is a shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return JobSpec(JobSpec.VERSION, "program", str(path), arguments, str(folder)).validate()


def used_servers(store: Store) -> dict[str, int]:
    """Server -> the job whose processes run there."""
    with closing(sqlite3.connect(store.folder / FILE)) as connection:
        return dict(connection.execute("SELECT server, job FROM used_servers").fetchall())
