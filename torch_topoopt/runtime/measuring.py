"""The cost model of a job: what messages cost, from the plan or measured when the job starts.

Collectives choose their algorithm by it, so all ranks must have the same.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan import CostModel
from torch_topoopt.plan.codec import write_text_atomically

if TYPE_CHECKING:
    from datetime import timedelta

    from torch_topoopt.plan import Plan

CostTuple = tuple[float, float, float, float]

log = logging.getLogger("torch_topoopt")


def cost_of(plan: Plan, session: Any, members: dict[str, Any], timeout: timedelta) -> CostTuple:
    """The plan's cost model as the C++ backend takes it, or one that all ranks measure together.

    `members` are the arguments that describe the group of all ranks. A measured model is written to
    the run folder, from where it can be copied into the plan.
    """
    seconds_per_byte = 1 / plan.cluster.link_bytes_per_s
    if plan.cost_model is not None:
        model = plan.cost_model
        return (model.message_s, model.hop_s, seconds_per_byte, model.reduce_s_per_byte)
    cost: CostTuple = session.measure_cost(
        **members, seconds_per_byte=seconds_per_byte, timeout=timeout
    )
    if members["rank"] == 0 and len(set(members["servers"])) > 1:
        _record(CostModel(message_s=cost[0], hop_s=cost[1], reduce_s_per_byte=cost[3]))
    return cost


def _record(model: CostModel) -> None:
    log.info(
        "measured: a message takes %.1f us and %.1f us per link, adding up %.2f ns per byte",
        model.message_s * 1e6,
        model.hop_s * 1e6,
        model.reduce_s_per_byte * 1e9,
    )
    if run_dir := os.environ.get("TOPOOPT_RUN_DIR"):
        section = {"cost_model": vars(model)}
        write_text_atomically(Path(run_dir) / "cost_model.json", json.dumps(section) + "\n")
