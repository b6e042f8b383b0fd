"""Distributed PyTorch training on machines that are wired directly to each other."""

import importlib
import sys
from typing import Any

from torch_topoopt.runtime.metrics import log

__all__ = ["__version__", "log", "new_process_group", "parallelize", "pipeline", "stats"]
__version__ = "0.1.0"


def stats() -> dict[str, list[dict[str, Any]]]:
    """Bytes and seconds of this rank's links and of its groups' rings; see `backend.stats`.

    Empty lists where no "topoopt" process group was ever created.
    """
    backend = sys.modules.get("torch_topoopt.runtime.backend")  # importing it would import torch
    if backend is None:
        return {"links": [], "rings": []}
    counters: dict[str, list[dict[str, Any]]] = backend.stats()
    return counters


def new_process_group(store: Any, rank: int, world_size: int, **options: Any) -> Any:
    """A process group beside torch.distributed's; see `separate_groups.new_process_group`."""
    module = importlib.import_module("torch_topoopt.runtime.separate_groups")  # imports torch
    return module.new_process_group(store, rank, world_size, **options)


def parallelize(module: Any, example_batch: Any, **options: Any) -> Any:
    """Distributes a module over the ranks by the job's plan; see `parallel.parallelize`."""
    package = importlib.import_module("torch_topoopt.parallel")  # which imports torch
    return package.parallelize(module, example_batch, **options)


def pipeline(module: Any, example_batch: Any, loss: Any, **options: Any) -> Any:
    """Cuts a module into the stages of the job's plan; see `parallel.pipeline`."""
    package = importlib.import_module("torch_topoopt.parallel")
    return package.pipeline(module, example_batch, loss, **options)
