"""The cost model of a job: the cost of messages, from the plan or measured when the job starts.

Collectives choose their algorithm by it, so all ranks need the same one. The algorithm determines
the order of rounding, so all jobs of one plan need the same one, too. Therefore rank 0 keeps the
measurement of a plan's first job in $XDG_CACHE_HOME/torch_topoopt (~/.cache by default), and later
jobs use it, unless TOPOOPT_COST_MODEL=measure.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.links.meeting import broadcast, failure_broadcast, receive
from torch_topoopt.plan import CostModel, kept_files
from torch_topoopt.plan.codec import decode, json_text, write_text_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.plan import AllReduceTime, Plan
    from torch_topoopt.runtime.session_types import GroupConfig

_TOPIC = "cost model"

log = logging.getLogger("torch_topoopt")


def cost_of(
    plan: Plan, session: Any, group: GroupConfig, timeout: timedelta, meeting: Meeting
) -> CostModel:
    """The plan's cost model, or one that all ranks measure together; its beta is never None.

    `group` is that of all ranks. A measured model is kept for later jobs of the same plan with the
    same ranks on its servers. It is also written to the run folder, to be copied into the plan.
    Raises FabricError for an unknown value of TOPOOPT_COST_MODEL.
    """
    rated = 1 / plan.cluster.link_bytes_per_s
    if plan.cost_model is not None:
        return replace(plan.cost_model, beta_s_per_byte=plan.cost_model.beta_s_per_byte or rated)
    if len(set(group.servers)) == 1:
        return CostModel(0.0, 0.0, 0.0, rated)  # no traffic over links
    before = None
    if group.rank == 0:
        path = kept_file(plan, group.servers)
        with failure_broadcast(meeting, _TOPIC):
            before = _read(path)
            known = None if kept_files.measures_again() else before
            broadcast(meeting, _TOPIC, None if known is None else asdict(known))
    deadline = time.monotonic() + timeout.total_seconds()
    section = receive(meeting, _TOPIC, deadline)
    if section is not None:
        model: CostModel = replace(decode(CostModel, section), beta_s_per_byte=rated)
    else:
        group.cost = CostModel(0.0, 0.0, 0.0, rated)
        group.circuits = None  # measured are those of the plan
        model = session.measure_cost(group, timeout)
    if group.rank == 0:
        _record(model, "measured" if section is None else f"measured by an earlier job ({path})")
        if section is None:
            _keep(path, model, before)
    return model


def kept_file(plan: Plan, servers: Sequence[int]) -> Path:
    """The file of the model that was measured for `plan` with ranks on those servers, here."""
    return kept_files.kept_file("cost", [plan.to_json(), list(servers), socket.gethostname()])


def _read(path: Path) -> CostModel | None:
    try:
        kept: CostModel = decode(CostModel, json.loads(path.read_text())["cost_model"])
        return kept.validate()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("%s is not what a job has kept there (%s); measured again", path, error)
        return None


def _keep(path: Path, model: CostModel, before: CostModel | None) -> None:
    if before is not None:
        log.warning(
            "the cost model was measured again, as %s says: algorithms, and with them the "
            "rounding of sums, may differ from those of earlier jobs of this plan",
            kept_files.COST_MODEL_VARIABLE,
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, _text(model))
    except OSError as error:
        log.warning(
            "the cost model that was measured cannot be kept (%s): the next job of this plan "
            "measures anew and may choose other algorithms, which round sums differently; a "
            "cost_model in the plan fixes them",
            error,
        )


def _record(model: CostModel, how: str) -> None:
    log.info(
        "%s: a message takes %.1f us and %.1f us per link, reducing %.2f ns per byte%s",
        how,
        model.alpha_s * 1e6,
        model.per_hop_latency_s * 1e6,
        model.gamma_s_per_byte * 1e9,
        _described(model),
    )
    if run_dir := os.environ.get("TOPOOPT_RUN_DIR"):
        write_text_atomically(Path(run_dir) / "cost_model.json", _text(model))


def _described(model: CostModel) -> str:
    """The fastest algorithm at each measured size."""
    fastest: dict[int, AllReduceTime] = {}
    for one in model.all_reduce:
        if one.bytes not in fastest or one.seconds < fastest[one.bytes].seconds:
            fastest[one.bytes] = one
    listed = [f"{t.bytes} B {t.seconds * 1e3:.3g} ms ({t.algorithm})" for t in fastest.values()]
    return f"; all_reduce of {', '.join(listed)}" if listed else ""


def _text(model: CostModel) -> str:
    section = {"cost_model": asdict(model)}
    del section["cost_model"]["beta_s_per_byte"]  # that of the links' rates applies
    if not model.all_reduce:
        del section["cost_model"]["all_reduce"]
    return json_text(section) + "\n"
