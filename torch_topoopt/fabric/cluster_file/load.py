"""Reads a cluster file, or an equivalent file of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.exo_state import cluster_of_exo, is_exo
from torch_topoopt.fabric.cluster_file.mlx_hostfile import cluster_of_hostfile, is_hostfile
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.file_kinds import CLUSTER_FILE, EXO_LIST, MLX_HOSTFILE, wrong_content

if TYPE_CHECKING:
    import os


def load_cluster(path: str | os.PathLike[str]) -> ClusterFile:
    """Reads a cluster file, an MLX hostfile or a state of exo; raises DocumentError with path."""
    try:
        return cluster_of(Path(path).read_bytes(), Path(path).stem)
    except OSError as error:
        raise DocumentError(f"{path}: cannot read this cluster file: {error.strerror}") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None


def cluster_of(content: bytes, name: str) -> ClusterFile:
    """The cluster of a file's content; `name` is that of a hostfile, which has none. Raises
    DocumentError."""
    try:
        value = strict_yaml.parse(content.decode("utf-8"))
        if is_hostfile(value):
            return cluster_of_hostfile(value, name)
        if is_exo(value):
            return cluster_of_exo(value, name)
        return ClusterFile.from_value(value)
    except UnicodeDecodeError:
        problem = wrong_content(content, CLUSTER_FILE) or "not a text file"
        raise DocumentError(problem) from None
    except DocumentError as error:
        problem = wrong_content(content, CLUSTER_FILE, MLX_HOSTFILE, EXO_LIST) or str(error)
        raise DocumentError(problem) from None
