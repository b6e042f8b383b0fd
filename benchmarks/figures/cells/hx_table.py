"""Table II of the HammingMesh paper (docs/planning/hammingmesh.md)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from figures.papers.hammingmesh import table

if TYPE_CHECKING:
    from figures.papers.hammingmesh import Size

DEPENDS_ON = ("csrc/topology", "torch_topoopt/architectures", "torch_topoopt/comparison")


def table_2(*, size: Size, message_bytes: int, seed: int) -> Any:
    """Rows of the table; nothing in them is random."""
    return [asdict(row) for row in table(size, message_bytes=message_bytes)]
