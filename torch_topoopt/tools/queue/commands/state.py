"""The folder of a cluster's queue, for the sub-verbs of `topoopt cluster`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

VARIABLE = "TOPOOPT_CLUSTER"


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--cluster",
        metavar="CLUSTER.yaml",
        default=os.environ.get(VARIABLE),
        help=f"servers, switches, and what is plugged into what (default: ${VARIABLE})",
    )
    options.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder of the queue (default: $XDG_STATE_HOME/torch_topoopt/clusters/<its name>)",
    )


def load_cluster(arguments: argparse.Namespace) -> ClusterFile:
    """Reads --cluster; raises InputError or DocumentError."""
    from torch_topoopt.fabric.cluster_file.load import load_cluster

    if not arguments.cluster:
        raise InputError(f"cluster: missing; say --cluster lab.yaml, or set {VARIABLE}")
    cluster = load_cluster(arguments.cluster)
    if not cluster.switches and cluster.hammingmesh is None:
        raise InputError(
            f"{arguments.cluster}: switches: none; a cluster is shared by moving circuits, and "
            "cables that people plugged do not move (one that is a hammingmesh needs none)"
        )
    return cluster


def folder_of(arguments: argparse.Namespace, cluster: ClusterFile | None) -> Path:
    """--state, or the folder that belongs to the cluster, or the only one that there is."""
    if arguments.state is not None:
        return Path(os.path.abspath(arguments.state))
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(base) / "torch_topoopt" / "clusters"
    if cluster is not None:
        return folder / cluster.name
    there = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    if len(there) != 1:
        found = f"{', '.join(there)} are queues" if there else "there is no queue"
        raise InputError(f"state: {found} in {folder}; name one by --cluster or --state")
    return folder / there[0]


def find(arguments: argparse.Namespace) -> Path:
    """The folder for verbs that do not need the cluster itself."""
    if arguments.state is None and arguments.cluster:
        return folder_of(arguments, load_cluster(arguments))
    return folder_of(arguments, None)
