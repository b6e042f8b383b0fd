"""`--wandb`: the metrics of a run for Weights & Biases, offline unless WANDB_MODE says more."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import LinkTraffic, Plan


def require() -> None:
    """Raises InputError if wandb is not installed; imports nothing."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError("wandb: not installed, but --wandb asks for it; pip install wandb")


def write(run_dir: Path, plan: Plan, train: list[dict[str, Any]], links: list[LinkTraffic]) -> Path:
    """Writes the run below `run_dir`/wandb and returns its folder, for `wandb sync`.

    Training records are logged in order against `time_s`; plan and bytes per link are its summary.
    """
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_MODE", "offline")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "torch_topoopt"),
        name=os.environ.get("WANDB_NAME", run_dir.name),
        dir=run_dir,
        config={
            "model": plan.model,
            "servers": plan.cluster.servers,
            "degree": plan.cluster.degree,
            "link_gbps": plan.cluster.link_gbps,
            "seed": plan.seed,
            "plan_digest": plan.digest(),
        },
    )
    with run:
        run.define_metric("*", step_metric="time_s")
        for record in train:
            run.log(record)
        if plan.predicts_time:
            run.summary["predicted_iteration_s"] = plan.prediction.iteration_s
        for link in links:
            name = f"sent_bytes/{link.source}.{link.source_port}-{link.target}.{link.target_port}"
            run.summary[name] = link.sent_bytes
        files = str(run.dir)  # <folder of the run>/files
    return run_dir / "wandb" / os.path.basename(os.path.dirname(files))
