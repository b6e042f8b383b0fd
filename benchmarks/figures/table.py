"""The table of all figures: `figures/table.json`, and its part of docs/planning/figures.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from figures.figure import Figure, Quantity

BEGIN = "<!-- begin: written by `make figures` -->"
END = "<!-- end: written by `make figures` -->"
_COLUMNS = ("figure", "quantity", "model", "mode", "paper", "ours", "ratio", "within", "reason")


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


def write_document(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Replaces what stands between the markers of `path`; ValueError where there are none."""
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{path}: has no part between {BEGIN!r} and {END!r}")
    path.write_text(f"{before}{BEGIN}\n{as_markdown(rows)}{END}{after}", encoding="utf-8")


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people, with the size of each row and the processor time of its figure."""
    head = (*_COLUMNS[:-1], "size", "CPU s", "commit", "reason")
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in rows:
        within = {None: "", True: "yes", False: "no"}[row["within"]]
        cells = [
            *(row["figure"], row["quantity"], row["model"], row["mode"]),
            *(_number(row[name]) for name in ("paper", "ours", "ratio")),
            *(within, row["size"], f"{row['cpu_s']:.0f}", row["commit"], row["reason"]),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
