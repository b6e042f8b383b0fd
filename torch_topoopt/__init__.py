"""Distributed PyTorch training on machines that are wired directly to each other."""

__version__ = "0.1.0.dev0"
