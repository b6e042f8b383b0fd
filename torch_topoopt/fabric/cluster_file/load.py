"""Reads a cluster file, or another program's file that says the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.mlx_hostfile import cluster_of_hostfile, is_hostfile
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    import os


def load_cluster(path: str | os.PathLike[str]) -> ClusterFile:
    """Reads a cluster file, or an MLX hostfile; raises DocumentError prefixed with the path."""
    try:
        value = strict_yaml.parse(Path(path).read_text(encoding="utf-8"))
        if is_hostfile(value):
            return cluster_of_hostfile(value, Path(path).stem)
        return ClusterFile.from_value(value)
    except OSError as error:
        raise DocumentError(f"{path}: cannot read this cluster file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: not a text file") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None
