"""Reads the description of a server in a file of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.server_file.nccl_topology import read_nccl_topology
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.file_kinds import NCCL_TOPOLOGY, wrong_content

if TYPE_CHECKING:
    import os

    from torch_topoopt.fabric.server_file.description import ServerDescription


def load_server(path: str | os.PathLike[str]) -> ServerDescription:
    """The server of a topology of NCCL; raises DocumentError prefixed with the path."""
    try:
        content = Path(path).read_bytes()
        return read_nccl_topology(content)
    except OSError as error:
        raise DocumentError(f"{path}: cannot read this file: {error.strerror}") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {wrong_content(content, NCCL_TOPOLOGY) or error}") from None
