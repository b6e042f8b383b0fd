"""The table of all figures: `figures/table.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from figures.figure import Figure, Quantity


def rows_of(figure: Figure, quantities: Iterable[Quantity], **shared: Any) -> list[dict[str, Any]]:
    """The rows of one figure; `shared` (size, commit, seed, CPU seconds) stands in each."""
    return [
        {
            "figure": figure.name,
            "quantity": q.quantity,
            "model": q.model,
            "mode": q.mode,
            "paper": q.paper,
            "ours": round(float(q.ours), 6),
            "ratio": None if q.ratio is None else round(q.ratio, 4),
            "within": q.within,
            "reason": "" if q.within in (None, True) else q.reason,
            **shared,
        }
        for q in quantities
    ]


def share(rows: Iterable[Mapping[str, Any]]) -> str:
    """How many of these rows have a number of a paper, and how many of them are near it.

    Rows of several modes and readings that have one quantity are also counted as one number, which
    is near if one of them is.
    """
    compared = [row for row in rows if row["within"] is not None]
    if not compared:
        return "no row has a paper's number"
    near = sum(row["within"] for row in compared)
    numbers: dict[tuple[str, ...], bool] = {}
    for row in compared:
        name = (row["figure"], row["quantity"], row["model"])
        numbers[name] = numbers.get(name, False) or row["within"]
    found = sum(numbers.values())
    return (
        f"{near} of {len(compared)} rows with a paper's number are within 15 % "
        f"({near / len(compared):.1%}); in one mode or reading at least, {found} of "
        f"{len(numbers)} numbers are ({found / len(numbers):.1%})"
    )


class FigureTable:
    """The rows of all figures, in the order of the paper. Rows of full sizes are not replaced by
    those of quick ones."""

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        """Raises ValueError for a file that is not such a table."""
        self._path = path
        self._order = list(order)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            try:
                self.rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}: is not a table of figures; remove it") from None

    def replace(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Gives figure `name` these rows, and writes the file."""
        kept = [row for row in self.rows if row["figure"] == name]
        quick = all(row["size"] == "quick" for row in rows)
        if quick and any(row["size"] == "full" for row in kept):
            return
        self.rows = [row for row in self.rows if row["figure"] != name] + rows
        places = {known: place for place, known in enumerate(self._order)}
        self.rows.sort(key=lambda row: places.get(row["figure"], len(places)))
        text = ",\n".join(json.dumps(row, sort_keys=False) for row in self.rows)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(f'{{"rows": [\n{text}\n]}}\n', encoding="utf-8")
