"""`--tensorboard`: a run as an event file for TensorBoard."""

from __future__ import annotations

import importlib.util
import io
import json
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.run.experiment import Experiment

FOLDER = "tensorboard"


def require() -> None:
    """Raises InputError if tensorboard is not installed; imports nothing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("tensorboard: is not installed; pip install tensorboard")


def write(run_dir: Path, experiment: Experiment) -> Path:
    """Writes the event file below `run_dir`/tensorboard and returns that folder, for --logdir.

    A step is a second of the run if iterations are not counted; a step of the search is an
    evaluation. Configuration and figures are hyperparameters, so that runs can be compared.
    """
    import numpy as np
    from PIL import Image
    from torch.utils.tensorboard import SummaryWriter

    folder = run_dir / FOLDER
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_hparams(
            experiment.config,
            {f"run/{name}": value for name, value in experiment.summary.items()},
            run_name=".",
        )
        for sample in experiment.search:
            writer.add_scalar("search/best_s", sample.best_s, sample.evaluations)
            writer.add_scalar("search/current_s", sample.current_s, sample.evaluations)
        for time_s, values in experiment.series:
            step = int(values.get("iteration", values.get("steps", time_s)))
            for name, value in values.items():
                if name != "iteration":
                    writer.add_scalar(f"train/{name}", value, step)
        picture = np.asarray(Image.open(io.BytesIO(experiment.heatmap)).convert("RGB"))
        writer.add_image("traffic", picture, dataformats="HWC")
        writer.add_text("links", _table(experiment))
        writer.add_text("config", f"```\n{json.dumps(experiment.config, indent=2)}\n```")
    return folder


def _table(experiment: Experiment) -> str:
    """In Markdown."""
    if not experiment.links:
        return "no link was used"
    names = list(experiment.links[0])
    rows = [names, ["---"] * len(names)]
    rows += [[str(link[name]) for name in names] for link in experiment.links]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
