"""`--wandb`: a run for Weights & Biases, offline by default (WANDB_MODE); no key is needed."""

from __future__ import annotations

import importlib.util
import io
import os
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.run.experiment import Experiment

_LINK_COLUMNS = (
    "link",
    "sent_bytes",
    "relayed_bytes",
    "busy_s",
    "iteration_bytes",
    "predicted_bytes",
)


def require() -> None:
    """Raises InputError if wandb is not installed; imports nothing."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError("wandb: is not installed; pip install wandb")


def write(run_dir: Path, experiment: Experiment) -> Path:
    """Writes the run below `run_dir`/wandb and returns its folder, for `wandb sync`.

    The plan is the configuration and an artifact, records are logged in order against `time_s`, the
    search against its evaluations, and links are a table.
    """
    import wandb
    from PIL import Image

    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_MODE", "offline")
    if os.environ["WANDB_MODE"] == "offline":  # error reports stay on the machine, too
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "torch_topoopt"),
        name=os.environ.get("WANDB_NAME", experiment.name),
        dir=run_dir,
        config=experiment.config,
    )
    with run:
        run.define_metric("*", step_metric="time_s")
        run.define_metric("search/*", step_metric="search/evaluations")
        for sample in experiment.search:
            run.log(
                {
                    "search/evaluations": sample.evaluations,
                    "search/current_s": sample.current_s,
                    "search/best_s": sample.best_s,
                }
            )
        for time_s, values in experiment.series:
            run.log({"time_s": time_s, **values})
        rows = [[link[name] for name in _LINK_COLUMNS] for link in experiment.links]
        picture = Image.open(io.BytesIO(experiment.heatmap))
        run.log(
            {
                "links": wandb.Table(columns=list(_LINK_COLUMNS), data=rows),
                "traffic": wandb.Image(picture),
            }
        )
        run.summary.update(experiment.summary)
        for link in experiment.links:
            run.summary[f"sent_bytes/{link['link']}"] = link["sent_bytes"]
        plan = wandb.Artifact(f"plan-{experiment.config['plan_digest']}", type="plan")
        plan.add_file(str(experiment.plan_path))
        run.log_artifact(plan)
        files = str(run.dir)  # <folder of the run>/files
    return run_dir / "wandb" / os.path.basename(os.path.dirname(files))
