"""The files of a job that runs, for tests without ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.backend.ranks import make_plan, wired
from support.dumps import link, save_statuses, status
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.rank_paces import RankPace

if TYPE_CHECKING:
    from pathlib import Path


def a_running_job(folder: Path) -> Path:
    """Of four servers on a ring with links of 1 Gb/s, of which one is slow."""
    plan = make_plan(4, 2, gbps=1.0)
    with wired(plan, folder, gbps=1.0):
        pass  # what it has written stays
    ranks = []
    for rank in range(4):
        own = [of for of in plan.network.links if of.source == rank]
        links = [
            link(rank, of.target, 1, 1, source_port=of.source_port, target_port=of.target_port,
                 gbps=0.1 if (rank, of.source_port) == (2, 1) else 0.75, busy=1.0)
            for of in own
        ]  # fmt: skip
        ranks.append(status(rank, world_size=4, links=links))
    events = [
        {"event": "step", "time_s": i, "iteration": i, "step_s": 0.2, "loss": 3 - i}
        for i in range(3)
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "metrics.jsonl").write_text(lines)
    save_statuses(folder, *ranks)
    for rank in range(4):
        RankPace(1, rank, 7, 0.2, 0.15 if rank == 2 else 0.08).save(JobFolder(folder).pace(rank))
    return folder
