"""A small HammingMesh to share, for tests."""

from __future__ import annotations

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import HammingMeshEntry, PortEntry, ServerEntry


def make_mesh_cluster(columns: int, rows: int, board: tuple[int, int] = (1, 1)) -> ClusterFile:
    """`columns` x `rows` boards; server n is h<n>, with four ports."""
    count = columns * rows * board[0] * board[1]
    servers = tuple(
        ServerEntry(
            f"h{n}",
            f"10.0.{n // 250}.{n % 250 + 1}",
            ports=tuple(
                PortEntry(f"p{k}", f"10.{k + 1}.{n // 250}.{n % 250 + 1}/16", gbps=1.0)
                for k in range(4)
            ),
        )
        for n in range(count)
    )
    mesh = HammingMeshEntry((columns, rows), board, 16)
    return ClusterFile(1, "mesh", servers, hammingmesh=mesh).validate()
