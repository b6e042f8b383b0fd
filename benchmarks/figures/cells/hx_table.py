"""Table II of the HammingMesh paper (docs/planning/hammingmesh.md)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.comparison.hammingmesh import table

if TYPE_CHECKING:
    from torch_topoopt.comparison.hammingmesh import Size

DEPENDS_ON = ("csrc/topology", "torch_topoopt/architectures", "torch_topoopt/comparison")


def table_2(*, size: Size, level: str, message_bytes: int, seed: int) -> Any:
    """Rows of the table; `seed` changes nothing at flow level."""
    return [asdict(row) for row in table(size, level, message_bytes=message_bytes)]
