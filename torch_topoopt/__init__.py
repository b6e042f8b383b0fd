"""Distributed PyTorch training on machines that are wired directly to each other."""

from torch_topoopt.metrics import log

__all__ = ["__version__", "log"]
__version__ = "0.1.0.dev0"
