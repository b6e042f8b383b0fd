"""The cost model of a job: what messages cost, from the plan or measured when the job starts.

Collectives choose their algorithm by it, so all ranks must have the same.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan import CostModel
from torch_topoopt.plan.codec import write_text_atomically

if TYPE_CHECKING:
    from datetime import timedelta

    from torch_topoopt.plan import Plan

log = logging.getLogger("torch_topoopt")


def cost_of(plan: Plan, session: Any, group: Any, timeout: timedelta) -> CostModel:
    """The plan's cost model, or one that all ranks measure together; its beta is never None.

    `group` is the _backend.GroupConfig of all ranks. A measured model is written to the run folder,
    from where it can be copied into the plan.
    """
    rated = 1 / plan.cluster.link_bytes_per_s
    if plan.cost_model is not None:
        return replace(plan.cost_model, beta_s_per_byte=plan.cost_model.beta_s_per_byte or rated)
    group.cost = CostModel(0.0, 0.0, 0.0, rated)
    measured: CostModel = session.measure_cost(group, timeout)
    if group.rank == 0 and len(set(group.servers)) > 1:
        _record(measured)
    return measured


def _record(model: CostModel) -> None:
    log.info(
        "measured: a message takes %.1f us and %.1f us per link, reducing %.2f ns per byte",
        model.alpha_s * 1e6,
        model.per_hop_latency_s * 1e6,
        model.gamma_s_per_byte * 1e9,
    )
    if run_dir := os.environ.get("TOPOOPT_RUN_DIR"):
        section = {"cost_model": asdict(model)}
        del section["cost_model"]["beta_s_per_byte"]  # as the links are rated
        write_text_atomically(Path(run_dir) / "cost_model.json", json.dumps(section) + "\n")
