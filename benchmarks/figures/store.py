"""Rows of cells that have been computed, one file each."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

from figures.cell import Cell, CellResult

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class CellStore:
    """The results in a folder. A file that was not written to its end counts as none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self, cell: Cell) -> CellResult | None:
        """The result of `cell`, if it has been computed with the sources of today."""
        try:
            kept = json.loads(self._path(cell).read_text(encoding="utf-8"))
            return CellResult(kept["row"], "", kept["cpu_s"], kept["wall_s"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def longest_first(self, cells: Iterable[Cell]) -> list[Cell]:
        """`cells` in descending order of the processor time that they took before, with whatever
        sources; those that were never computed come first."""
        before: dict[tuple[str, str], float] = {}
        for path in self._folder.glob("*.json"):
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                of = kept["function"], json.dumps(kept["parameters"], sort_keys=True)
                before[of] = max(before.get(of, 0.0), kept["cpu_s"])
            except (FileNotFoundError, ValueError, KeyError):
                continue
        return sorted(
            cells, key=lambda cell: -before.get((cell.function, cell.arguments), math.inf)
        )

    def add(self, cell: Cell, result: CellResult) -> None:
        """Keeps a result that has no error."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "function": cell.function,
            "parameters": cell.parameters,
            "cpu_s": round(result.cpu_s, 3),
            "wall_s": round(result.wall_s, 3),
            "row": result.row,
        }
        path = self._path(cell)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(kept), encoding="utf-8")
        part.replace(path)

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.key()}.json"
