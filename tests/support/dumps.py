"""Dumps and statuses as ranks write them, for tests without ranks."""

from __future__ import annotations

import os
import pickle
import platform
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOW_NS = 1_800_000_000_000_000_000


def collective(number: int, name: str = "all_reduce", **changes: Any) -> dict[str, Any]:
    """An entry of group "0". `sizes`, `types`, `root`, `state`, `failed`, `group`, `age_s`."""
    sizes, types = changes.get("sizes", [[4]]), changes.get("types", ["Float"])
    return {
        "record_id": number,
        "pg_id": int(changes.get("group", "0")),
        "process_group": (changes.get("group", "0"), "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"c10d:{name}",
        "time_created_ns": NOW_NS - int(changes.get("age_s", 60) * 1e9),
        "input_sizes": sizes,
        "input_dtypes": types,
        "output_sizes": sizes,
        "output_dtypes": types,
        "state": changes.get("state", "completed"),
        "is_p2p": False,
        "topoopt": {
            "failed": changes.get("failed", False),
            "bytes": 16,
            "root": changes.get("root", -1),
        },
    }


def message(
    name: str, sender: int, receiver: int, *, place: int = 1, tag: int = 0, state: str = "started"
) -> dict[str, Any]:
    entry = collective(0, name, state=state)
    ends = {"sender": sender, "receiver": receiver, "tag": tag, "in_flow": place}
    return {**entry, "is_p2p": True, "topoopt": {**entry["topoopt"], **ends}}


def link(source: int, target: int, sent: int, received: int, **changes: Any) -> dict[str, Any]:
    """Port 0 of one server to port 0 of another, as `source` counts it."""
    return {
        "source": source,
        "source_port": 0,
        "target": target,
        "target_port": 0,
        "sends": True,
        "up": True,
        "sent_bytes": sent,
        "received_bytes": received,
        "relayed_bytes": 0,
        "relay_peak_bytes": 0,
        "gbps": 0.0,
        "busy": 0.0,
        **changes,
    }


def dump(
    rank: int,
    entries: Sequence[dict[str, Any]],
    *,
    world_size: int = 2,
    why: str = "all_reduce: Timed out",
    links: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    groups = {entry["process_group"][0] for entry in entries} | {"0"}
    everybody = str(list(range(world_size)))
    return {
        "version": "2.10",
        "pg_config": {
            group: {"name": group, "desc": "default_pg", "ranks": everybody} for group in groups
        },
        "pg_status": {
            group: {
                "last_enqueued_collective": max(
                    [e["collective_seq_id"] for e in entries if e["process_group"][0] == group],
                    default=0,
                )
            }
            for group in groups
        },
        "entries": list(entries),
        "topoopt": {
            "rank": rank,
            "world_size": world_size,
            "server": rank,
            "attempt": 0,
            "host": "tester",
            "pid": 1000 + rank,
            "time_ns": NOW_NS,
            "why": why,
            "operations_called": len(entries),
            "links": list(links),
        },
    }


def save(folder: Path, *dumps: dict[str, Any]) -> Path:
    """Each into its file; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in dumps:
        name = f"rank_{one['topoopt']['rank']}"
        (folder / name).write_bytes(pickle.dumps(one, protocol=2))
    return folder


def status(rank: int, **changes: Any) -> dict[str, Any]:
    """Of a rank that is this process."""
    return {
        "version": 1,
        "rank": rank,
        "world_size": 2,
        "server": rank,
        "attempt": 0,
        "host": platform.node(),
        "pid": os.getpid(),
        "time_ns": time.time_ns(),
        "failure": "",
        "iteration": 7,
        "operations_called": 40,
        "operations_unfinished": 0,
        "operations": [],
        "links": [],
        **changes,
    }


def save_statuses(run: Path, *statuses: dict[str, Any]) -> Path:
    """Into the folder of a run, which is returned."""
    (run / "status").mkdir(parents=True, exist_ok=True)
    for one in statuses:
        (run / "status" / f"rank-{one['rank']}").write_bytes(pickle.dumps(one, protocol=2))
    return run
