"""Reads the description of a server in a file of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.fabric.server_file.infragraph import read_infragraph
from torch_topoopt.fabric.server_file.nccl_topology import read_nccl_topology
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.file_kinds import INFRAGRAPH, NCCL_TOPOLOGY, wrong_content

if TYPE_CHECKING:
    import os

    from torch_topoopt.fabric.server_file.description import ServerDescription


def load_server(path: str | os.PathLike[str]) -> ServerDescription:
    """The server of a topology of NCCL or an InfraGraph; raises DocumentError with the path."""
    try:
        content = Path(path).read_bytes()
        if problem := wrong_content(content, NCCL_TOPOLOGY, INFRAGRAPH):
            raise DocumentError(problem)
        if content.lstrip().startswith(b"<"):
            return read_nccl_topology(content)
        value = strict_yaml.parse(content.decode("utf-8"))
        if not isinstance(value, dict):
            raise DocumentError("neither a topology of NCCL nor an InfraGraph")
        return read_infragraph(value)
    except OSError as error:
        raise DocumentError(f"{path}: cannot read this file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: not a text file") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None
