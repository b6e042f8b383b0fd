"""Distributed PyTorch training on machines that are wired directly to each other."""

import sys
from typing import Any

from torch_topoopt.metrics import log

__all__ = ["__version__", "log", "stats"]
__version__ = "0.1.0.dev0"


def stats() -> dict[str, list[dict[str, Any]]]:
    """Bytes and seconds of this rank's links and of its groups' rings; see `backend.stats`.

    Empty lists where no "topoopt" process group was ever created.
    """
    backend = sys.modules.get("torch_topoopt.backend")  # importing it would import torch
    if backend is None:
        return {"links": [], "rings": []}
    counters: dict[str, list[dict[str, Any]]] = backend.stats()
    return counters
